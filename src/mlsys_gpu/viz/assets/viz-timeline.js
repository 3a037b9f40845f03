/* SPDX-License-Identifier: Apache-2.0
 * Kind "timeline": a modelled run to scrub through. Tracks are drawn on a canvas (a run has tens of
 * thousands of spans); what the cursor is on is said in the page's text, where a screen reader and
 * the search of a page find it.
 */
mlsysViz.register("timeline", (stage, data, ui) => {
  "use strict";
  const { el } = ui;
  const END = data.cycles;
  const runName = `${data.kernel}, ${ui.group(END)} cycles`; // tells a page's timelines apart
  const SECTIONS = [
    ["role", "roles"], ["engine", "engines"], ["stage", "stages in shared memory"],
    ["tmem", "tensor memory"], ["barrier", "barriers"],
  ];
  const SAYS = {
    run: "runs", issue: "issues", wait: "waits for", busy: "busy", arriving: "arriving",
    full: "full", read: "being read", written: "being written", accumulate: "accumulating",
    phase: "", both: "both at work",
  };

  // ---- times ----
  const whole = (t) => ui.group(Math.round(t * 10) / 10);
  function micro(t, digits = 3) {
    return `${(t / data.clock_mhz).toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits })} µs`;
  }
  const percent = (part, of) => (of ? `${Math.round((100 * part) / of)} %` : "–");

  // ---- tracks: spans in order, lanes for those that overlap, an index for windows ----
  /** How many of `list` are at most `t` (list ascending). */
  function upto(list, t) {
    let lo = 0;
    let hi = list.length;
    while (lo < hi) {
      const mid = (lo + hi) >> 1;
      if (list[mid] <= t) lo = mid + 1;
      else hi = mid;
    }
    return lo;
  }
  function prepare(track) {
    const spans = [...track.spans].sort((a, b) => a[0] - b[0] || a[1] - b[1]);
    const starts = Float64Array.from(spans, (s) => s[0]);
    const latest = new Float64Array(spans.length); // latest end so far: where a window begins
    const ends = [];
    const lane = spans.map((s, i) => {
      latest[i] = Math.max(s[1], i ? latest[i - 1] : 0);
      let at = ends.findIndex((end) => end <= s[0]);
      if (at < 0) at = ends.length;
      ends[at] = s[1];
      return at;
    });
    const arrivals = [...(track.arrivals || [])].sort((a, b) => a[0] - b[0]);
    const times = [...new Set([...spans.flatMap((s) => [s[0], s[1]]), ...arrivals.map((a) => a[0])])];
    return {
      ...track, spans, starts, latest, lane, arrivals, lanes: Math.max(1, ends.length),
      events: Float64Array.from(times).sort(),
      sort: data.sorts[track.id] || "",
    };
  }
  const meets = data.overlaps.map((o) => ({
    id: `${o.group}/both`, name: "both at once", group: o.group, kind: "engine",
    spans: o.spans.map(([a, b]) => [a, b, -1, -1, "both"]), derived: true,
  }));
  const tracks = [...data.tracks, ...meets].map(prepare);
  const groups = [...new Set(tracks.map((t) => t.group))];
  const text = (span) => (span[2] < 0 ? "" : data.labels[span[2]]);

  const bare = (label) => label.replace(/^wait for (it: )?/, "");
  /** What a stage holds while span number i of its track lasts: what came into it last. */
  function holds(track, i) {
    while (i > 0 && track.spans[i][4] === "read") i -= 1;
    return text(track.spans[i]).replace(/^load /, "");
  }

  /** Spans of a track that hold at cycle t: begun, and not yet ended. */
  function at(track, t) {
    const found = [];
    for (let i = upto(track.starts, t) - 1; i >= 0 && track.latest[i] > t; i--) {
      if (track.spans[i][1] > t) found.unshift(track.spans[i]);
    }
    return found;
  }

  // ---- state ----
  const firstOf = (kind) => (tracks.find((t) => t.kind === kind) || tracks[0]).group;
  const everything = tracks.length <= 26;
  const shown = new Set(everything ? groups : [firstOf("role"), firstOf("engine")]);
  const kinds = [...new Set(tracks.map((t) => t.kind))];
  const shownKinds = new Set(kinds);
  let visible = [];
  let all = new Float64Array();
  let [v0, v1] = data.window;
  let now = data.cursor;
  let focus = 0; // index into visible; -1 for all tracks
  let lastRole = null;
  let home = data.window;
  let timer = null;
  let frame = 0;

  function choose() {
    const held = focus >= 0 && visible[focus];
    visible = SECTIONS.map(([kind]) => kind)
      .concat(kinds.filter((k) => !SECTIONS.some(([kind]) => kind === k)))
      .flatMap((kind) => groups.flatMap((g) => tracks.filter((t) => t.kind === kind && t.group === g)))
      .filter((t) => shown.has(t.group) && shownKinds.has(t.kind));
    all = Float64Array.from(new Set(visible.filter((t) => !t.derived).flatMap((t) => [...t.events]))).sort();
    focus = held ? visible.indexOf(held) : Math.min(focus, visible.length - 1);
  }
  const several = (kind) => new Set(visible.filter((t) => t.kind === kind).map((t) => t.group)).size > 1;
  const nameOf = (track) => (several(track.kind) ? `${track.group} ${track.name}` : track.name);

  // ---- colours and textures: what a colour says, a texture or a shape says too ----
  let paint = {};
  function readTheme(dpr) {
    const style = getComputedStyle(document.body);
    const c = (name) => style.getPropertyValue(`--mg-${name}`).trim() || "#888";
    function pattern(ground, ink, draw) {
      const size = 8;
      const tile = document.createElement("canvas");
      tile.width = tile.height = size * dpr;
      const g = tile.getContext("2d");
      g.scale(dpr, dpr);
      g.fillStyle = ground;
      g.fillRect(0, 0, size, size);
      g.strokeStyle = g.fillStyle = ink;
      draw(g, size);
      const made = g.createPattern(tile, "repeat");
      made.setTransform(new DOMMatrix().scale(1 / dpr));
      return made;
    }
    const slanted = (width) => (g, s) => {
      g.lineWidth = width;
      for (const d of [-s, 0, s]) {
        g.beginPath();
        g.moveTo(d - 1, s + 1);
        g.lineTo(d + s + 1, -1);
        g.stroke();
      }
    };
    const upright = (g, s) => { g.fillRect(0, 0, 2, s); g.fillRect(s / 2, 0, 2, s); };
    const level = (g, s) => { g.fillRect(0, 1, s, 1.5); g.fillRect(0, 1 + s / 2, s, 1.5); };
    const dots = (g, s) => { for (const p of [2, 6]) { g.beginPath(); g.arc(p, p, 1.5, 0, 7); g.fill(); } };
    const style2 = (fill, edge, ink, plate, inset = 0) => ({ fill, edge, ink, plate, inset });
    paint = {
      fg: c("fg"), muted: c("muted"), bg: c("bg"), panel: c("panel"), line: c("line"), soft: c("soft"),
      accent: c("accent"), accentBg: c("accent-bg"),
      run: style2(c("accent"), c("accent"), c("on-accent")),
      issue: style2(c("warm"), c("warm"), c("on-accent")),
      wait: style2(pattern(c("bg"), c("line"), slanted(1)), c("line"), c("fg"), c("bg"), 5),
      load: style2(pattern(c("accent-bg"), c("accent"), slanted(2)), c("accent"), c("fg"), c("accent-bg")),
      tensor: style2(c("good"), c("good"), c("on-accent")),
      busy: style2(c("violet"), c("violet"), c("on-accent")),
      both: style2(c("fg"), c("fg"), c("bg"), null, 5),
      arriving: style2(pattern(c("accent-bg"), c("accent"), slanted(2)), c("accent"), c("fg"), c("accent-bg")),
      full: style2(c("accent-bg"), c("accent"), c("fg")),
      read: style2(pattern(c("good-bg"), c("good"), dots), c("good"), c("fg"), c("good-bg")),
      written: style2(pattern(c("warm-bg"), c("warm"), level), c("warm"), c("fg"), c("warm-bg")),
      accumulate: style2(pattern(c("violet-bg"), c("violet"), upright), c("violet"), c("fg"), c("violet-bg")),
      phase0: style2(c("panel"), c("line"), c("fg")),
      phase1: style2(c("soft"), c("line"), c("fg")),
    };
  }
  function styleOf(track, span, index) {
    const state = span[4];
    if (state === "busy") {
      return { load: paint.load, compute: paint.tensor }[track.sort] || paint.busy;
    }
    if (state === "phase") return index % 2 ? paint.phase1 : paint.phase0;
    return paint[state] || paint.busy;
  }
  function bar(g, style, x, y, w, h) {
    y += Math.min(style.inset, h / 4);
    h -= 2 * Math.min(style.inset, h / 4);
    g.fillStyle = style.fill;
    g.fillRect(x, y, w, h);
    if (w > 3) {
      g.strokeStyle = style.edge;
      g.lineWidth = 1;
      g.strokeRect(x + 0.5, y + 0.5, w - 1, h - 1);
    }
  }
  const FONT = '12px system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif';
  const widths = new Map();
  function fit(g, string, room) {
    const key = g.font + string;
    let w = widths.get(key);
    if (w === undefined) widths.set(key, (w = g.measureText(string).width));
    if (w <= room) return [string, w];
    const keep = Math.floor((string.length * room) / w) - 1;
    if (keep < 2) return ["", 0];
    const cut = `${string.slice(0, keep).trimEnd()}…`;
    return [cut, g.measureText(cut).width];
  }

  /** On a texture: the whole label, or of a wait the barrier's name; else the texture alone. */
  function short(g, track, words, room) {
    for (const part of track.kind === "role" ? [words, words.split(/[, ]/)[0]] : [words]) {
      const w = fit(g, part, Infinity)[1];
      if (w <= room) return [part, w];
    }
    return ["", 0];
  }

  // ---- rows ----
  let rows = [];
  let width = 0;
  let gutter = 0;
  let height = 0;
  let dpr = 1;
  function layout() {
    const narrow = width < 560;
    const pen = canvas.getContext("2d");
    pen.font = FONT;
    const widest = Math.max(0, ...visible.map((t) => pen.measureText(t.name).width));
    gutter = narrow ? 0 : Math.min(200, Math.ceil(widest) + 18);
    rows = [];
    let y = 0;
    let before = "";
    visible.forEach((track, index) => {
      const section = SECTIONS.find(([k]) => k === track.kind);
      const title = `${track.group}: ${section ? section[1] : track.kind}`;
      if (title !== before) {
        rows.push({ title, y, h: 24 });
        y += 24;
        before = title;
      }
      const one = track.kind === "role" ? 28 : track.derived ? 18 : 21;
      const h = track.lanes === 1 ? one : track.lanes <= 4 ? track.lanes * 14 : Math.min(72, track.lanes * 8);
      const top = narrow ? 16 : 0;
      rows.push({ track, index, y: y + top, top: y, h, lane: h / track.lanes });
      y += top + h + 5;
    });
    height = y + 2;
  }
  const X = (t) => gutter + ((t - v0) / (v1 - v0)) * (width - gutter);
  const T = (x) => v0 + ((x - gutter) / (width - gutter)) * (v1 - v0);

  function size(node, w, h) {
    const W = Math.round(w * dpr);
    const H = Math.round(h * dpr);
    if (node.width !== W || node.height !== H) {
      node.width = W;
      node.height = H;
      node.style.width = `${w}px`;
      node.style.height = `${h}px`;
    }
    const g = node.getContext("2d");
    g.setTransform(dpr, 0, 0, dpr, 0, 0);
    g.clearRect(0, 0, w, h);
    g.font = FONT;
    g.textBaseline = "middle";
    return g;
  }
  function step(room, least) {
    const rough = ((v1 - v0) * least) / Math.max(1, room);
    const power = 10 ** Math.floor(Math.log10(rough));
    return [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough);
  }
  function ticks() {
    const by = Math.max(1, step(width - gutter, 96));
    const found = [];
    for (let t = Math.ceil(v0 / by) * by; t <= v1; t += by) found.push(t);
    return [found, by];
  }
  function drawAxis() {
    const g = size(axis, width, 54);
    const [list, by] = ticks();
    const digits = Math.max(0, Math.min(4, Math.ceil(-Math.log10(by / data.clock_mhz)) + 1));
    g.textAlign = "left";
    if (gutter) {
      g.fillStyle = paint.muted;
      g.fillText("cycles", 4, 10);
      g.fillText("time", 4, 26);
    }
    for (const t of list) {
      const x = X(t);
      g.fillStyle = paint.line;
      g.fillRect(Math.round(x), 0, 1, 54);
      const words = [whole(t), micro(t, digits)];
      if (x + 4 + Math.max(...words.map((s) => g.measureText(s).width)) > width) continue;
      g.fillStyle = paint.fg;
      g.fillText(words[0], x + 4, 10);
      g.fillStyle = paint.muted;
      g.fillText(words[1], x + 4, 26);
    }
  }
  function drawTrack(g, row) {
    const { track } = row;
    const { spans, latest, starts } = track;
    const last = upto(starts, v1);
    const painted = new Array(track.lanes).fill(-1);
    g.textAlign = "left";
    for (let i = upto(latest, v0); i < last; i++) {
      const span = spans[i];
      if (span[1] < v0) continue;
      const x0 = Math.max(gutter, X(span[0]));
      const x1 = Math.min(width, X(span[1]));
      const lane = track.lane[i];
      const w = Math.max(x1 - x0, 1);
      // Many spans in one pixel: the first stands for all.
      if (w <= 1) {
        const pixel = Math.floor(x0);
        if (painted[lane] === pixel) continue;
        painted[lane] = pixel;
      }
      const y = row.y + lane * row.lane;
      const h = track.lanes > 1 ? row.lane - 1 : row.lane;
      const style = styleOf(track, span, i);
      bar(g, style, x0, y, w, h);
      if (span[4] === "phase" && span[1] <= v1 && w > 6) { // the phase completes
        g.fillStyle = paint.fg;
        g.fillRect(x1 - 2, y, 2, h);
      }
      const words = track.kind === "stage" ? holds(track, i) : bare(text(span));
      if (w < 24 || h < 13 || !words) continue;
      const [cut, cw] = style.plate || track.kind === "stage" ? short(g, track, words, w - 20) : fit(g, words, w - 8);
      if (!cut) continue;
      const cy = y + h / 2;
      if (style.plate) {
        g.fillStyle = style.plate;
        g.fillRect(x0 + 2, cy - 7, cw + 4, 14);
      }
      g.fillStyle = style.ink;
      g.fillText(cut, x0 + 4, cy + 0.5);
    }
    let drawn = -9;
    g.fillStyle = paint.fg;
    for (const [t] of track.arrivals) {
      if (t < v0 || t > v1) continue;
      const x = X(t);
      if (x - drawn < 1.5) continue;
      drawn = x;
      g.beginPath();
      g.moveTo(x, row.y + row.h - 7);
      g.lineTo(x + 4, row.y + row.h);
      g.lineTo(x - 4, row.y + row.h);
      g.fill();
    }
  }
  function drawTracks() {
    const g = size(canvas, width, height);
    g.fillStyle = paint.soft;
    for (const t of ticks()[0]) g.fillRect(Math.round(X(t)), 0, 1, height);
    for (const row of rows) {
      if (row.title) {
        g.textAlign = "left";
        g.font = `650 ${FONT}`;
        g.fillStyle = paint.bg;
        g.fillRect(0, row.y, Math.min(width, g.measureText(row.title).width + 10), row.h);
        g.fillStyle = paint.muted;
        g.fillText(fit(g, row.title, width - 8)[0], 2, row.y + row.h - 9);
        g.font = FONT;
        continue;
      }
      g.fillStyle = paint.soft; // the line of a track at rest
      g.fillRect(gutter, Math.round(row.y + row.h / 2), width - gutter, 1);
      g.save();
      g.beginPath();
      g.rect(gutter, row.y - 1, width - gutter, row.h + 2);
      g.clip();
      drawTrack(g, row);
      g.restore();
      g.fillStyle = row.index === focus ? paint.accent : paint.fg;
      if (row.index === focus) g.font = `650 ${FONT}`;
      if (!gutter) g.fillText(fit(g, row.track.name, width - 12)[0], 6, row.y - 7);
      else if (row.h < 27 || fit(g, row.track.name, gutter - 14)[0] === row.track.name) {
        g.fillText(fit(g, row.track.name, gutter - 14)[0], 8, row.y + row.h / 2);
      } else { // "warps 4-7: wgmma, stores" in two lines
        const cut = row.track.name.indexOf(": ") + 1 || row.track.name.indexOf(" (") || 0;
        const parts = [row.track.name.slice(0, cut), row.track.name.slice(cut).trim()];
        parts.forEach((part, n) => g.fillText(fit(g, part, gutter - 14)[0], 8, row.y + row.h / 2 - 6.5 + 13 * n));
      }
      g.font = FONT;
    }
  }
  const mini = () => visible.filter((t) => t.kind === "role" || t.kind === "engine").slice(0, 8);
  function drawOverview() {
    const list = mini();
    const h = Math.max(1, list.length) * 8 + 8;
    const g = size(overview, width, h);
    const x = (t) => gutter + (t / END) * (width - gutter);
    g.fillStyle = paint.panel;
    g.fillRect(gutter, 0, width - gutter, h);
    list.forEach((track, n) => {
      let pixel = -1;
      track.spans.forEach((span, i) => {
        const x0 = x(span[0]);
        const w = Math.max(1, x(span[1]) - x0);
        if (w <= 1 && Math.floor(x0) === pixel) return;
        if (w <= 1) pixel = Math.floor(x0);
        if (span[4] === "wait") {
          g.fillStyle = paint.line;
          g.fillRect(x0, 7 + n * 8, w, 1);
          return;
        }
        const style = styleOf(track, span, i);
        g.fillStyle = style.fill;
        g.fillRect(x0, 5 + n * 8, w, 5);
      });
    });
    g.fillStyle = paint.fg;
    if (gutter) g.fillText("whole run", 4, h / 2);
    g.globalAlpha = 0.7;
    g.fillStyle = paint.bg;
    g.fillRect(gutter, 0, x(v0) - gutter, h);
    g.fillRect(x(v1), 0, width - x(v1), h);
    g.globalAlpha = 1;
    g.strokeStyle = paint.accent;
    g.lineWidth = 2;
    g.strokeRect(x(v0) + 1, 1, Math.max(3, x(v1) - x(v0) - 2), h - 2);
    g.fillStyle = paint.fg;
    g.fillRect(x(now) - 0.75, 0, 1.5, h);
  }
  function redraw() {
    if (!width) return;
    drawAxis();
    drawTracks();
    drawOverview();
    below.hidden = slider.scrollHeight <= slider.clientHeight + 4;
    place();
  }
  /** The cursor and the frame round the chosen track; cheap, so that scrubbing stays smooth. */
  function place() {
    const inside = now >= v0 && now <= v1;
    needle.hidden = !inside;
    needle.style.transform = `translateX(${X(now)}px)`;
    flag.hidden = !inside;
    flag.textContent = whole(now);
    const half = flag.offsetWidth / 2;
    flag.style.transform = `translateX(${Math.min(width - 2 * half, Math.max(0, X(now) - half))}px)`;
    const row = rows.find((r) => r.track && r.index === focus);
    chosen.hidden = !row;
    if (row) {
      chosen.style.top = `${row.top - 2}px`;
      chosen.style.height = `${row.y + row.h - row.top + 4}px`;
    }
  }

  // ---- what is said at the cursor ----
  function siteOf(track) {
    const spans = at(track, now);
    const span = spans[spans.length - 1];
    return span && span[3] >= 0 ? data.sites[span[3]] : null;
  }
  function rest(track) {
    if (track.kind === "stage" || track.kind === "tmem") return "free";
    if (track.kind === "barrier") return "no later phase completes";
    if (!track.spans.length || now < track.starts[0]) return "not started";
    if (now >= track.latest[track.latest.length - 1]) return "finished";
    return "idle";
  }
  function describe(track) {
    const spans = at(track, now);
    if (!spans.length) return [rest(track), "", "rest"];
    const span = spans[0];
    const [t0, t1, , , state] = span;
    const since = `since cycle ${whole(t0)}: ${whole(now - t0)} of ${whole(t1 - t0)} cycles`;
    if (track.kind === "barrier") {
      const n = track.spans.indexOf(span);
      const mine = track.arrivals.filter(([t]) => (t > t0 || (n === 0 && t >= t0)) && t <= t1);
      const come = mine.filter(([t]) => t <= now);
      const counts = new Map();
      for (const [t, label] of mine) if (t > now) counts.set(label, (counts.get(label) || 0) + 1);
      const open = [...counts].map(([label, many]) => data.labels[label] + (many > 1 ? ` × ${many}` : ""));
      // Arrivals and bytes complete a phase together; a count of both would be no barrier's count.
      const isBytes = ([, label]) => data.labels[label].startsWith("bytes come");
      const [bytes, landed] = [mine.filter(isBytes).length, come.filter(isBytes).length];
      const arrivals = `${come.length - landed} of ${mine.length - bytes} arrived`;
      const head = `${text(span)}: ${arrivals}${bytes ? `, ${landed} of ${bytes} copies have landed` : ""}`;
      return [head, `${open.length ? `pending: ${open.join("; ")}; ` : ""}completes at cycle ${whole(t1)}`, "phase"];
    }
    if (track.derived) return ["a load is in flight and the tensor core works", since, state];
    const says = SAYS[state] ?? state;
    if (track.kind === "stage") {
      const held = holds(track, track.spans.indexOf(span));
      const by = state === "read" && text(span) !== held ? ` by ${text(span)}` : "";
      return [`${says}: ${held}${by}`, since, state];
    }
    const more = spans.length > 1 ? ` (${spans.length} in flight)` : "";
    const word = state === "wait" && bare(text(span)) === text(span) ? `waits: ${text(span)}`
      : track.kind === "role" ? `${says} ${bare(text(span))}` : `${says}: ${text(span)}`;
    return [word + more, since, state];
  }
  function tell(track) {
    const [head, more] = describe(track);
    return `${nameOf(track)}: ${head}${more ? `, ${more}` : ""}`;
  }
  const told = new Map();
  function buildReadout() {
    told.clear();
    for (const box of [lists, barriers]) {
      box.style.minHeight = "";
      box.replaceChildren();
    }
    for (const [kind, title] of SECTIONS) {
      const list = visible.filter((t) => t.kind === kind && !t.derived);
      if (!list.length) continue;
      (kind === "barrier" ? barriers : lists).append(el("section", { class: "mg-tl-part" },
        el("p", { class: "mg-tl-part-title" }, title[0].toUpperCase() + title.slice(1)),
        el("ul", {}, list.map((track) => {
          const mark = el("span", { class: "mg-tl-mark", "aria-hidden": "true" });
          const head = el("span", { class: "mg-tl-what" });
          const more = el("span", { class: "mg-tl-since" });
          const item = el("li", { "data-track": track.id, onclick: () => pick(visible.indexOf(track)) },
            mark, el("span", { class: "mg-tl-said" }, el("strong", {}, nameOf(track)), " ", head), more);
          told.set(track, { item, head, more, mark });
          return item;
        }))));
    }
  }
  function readout() {
    where.textContent = `At cycle ${whole(now)}`;
    clock.textContent = `${micro(now)} after the start`;
    for (const [track, { item, head, more, mark }] of told) {
      const [what, since, state] = describe(track);
      head.textContent = what;
      more.textContent = since;
      mark.dataset.state = (state === "busy" && { compute: "tensor", load: "arriving" }[track.sort]) || state;
      item.classList.toggle("mg-tl-chosen", visible[focus] === track);
    }
    // Lines wrap now and then: what is below must not jump with each step.
    for (const box of [lists, barriers]) {
      box.style.minHeight = `${Math.max(parseFloat(box.style.minHeight) || 0, box.offsetHeight)}px`;
    }
  }

  // ---- source ----
  const pages = new Map();
  let file = null;
  function openFile(name) {
    if (file === name || !data.files[name]) return;
    file = name;
    if (!pages.has(name)) {
      const lines = data.files[name].map((line, i) => {
        const tags = el("span", { class: "mg-tl-tags" });
        const indent = line.slice(0, line.length - line.trimStart().length);
        const node = el("div", { class: "mg-tl-line", "data-line": i + 1 },
          tags, el("span", { class: "mg-tl-no" }, i + 1), el("code", {}, el("span", { class: "mg-tl-indent" }, indent), line.slice(indent.length) || " "));
        return { node, tags };
      });
      pages.set(name, { lines, element: el("div", { class: "mg-tl-code" }, lines.map((l) => l.node)), marked: [] });
    }
    fileName.textContent = name;
    code.replaceChildren(pages.get(name).element);
    code.setAttribute("aria-label", `Source, ${name}, ${runName}`);
  }
  function source() {
    const track = focus >= 0 ? visible[focus] : null;
    if (track && track.kind === "role") lastRole = track;
    if (!lastRole || !visible.includes(lastRole)) lastRole = visible.find((t) => t.kind === "role") || null;
    const main = (track && track.kind !== "role" && siteOf(track) ? track : null) || lastRole;
    const here = main && siteOf(main);
    if (here) openFile(here[0]);
    else if (!file) openFile(Object.keys(data.files)[0]);
    const open = pages.get(file);
    if (!open) return;
    for (const { node, tags } of open.marked) {
      node.className = "mg-tl-line";
      node.removeAttribute("aria-current");
      tags.replaceChildren();
    }
    open.marked = [];
    const roles = visible.filter((t) => t.kind === "role");
    const on = new Map(); // line -> letters of the roles that are there, the chosen one first
    const listed = roles.map((one, n) => {
      const site = siteOf(one);
      const letter = n < 26 ? String.fromCharCode(65 + n) : String(n + 1);
      const state = site ? at(one, now)[0][4] : "rest";
      const verb = { wait: "waits", run: "runs", issue: "issues" }[state] || rest(one);
      const line = site && site[0] === file && open.lines[site[1] - 1];
      if (line) {
        open.marked.push(line);
        line.node.classList.add(one === main ? "mg-tl-here" : "mg-tl-there");
        if (!on.has(line)) on.set(line, []);
        on.get(line)[one === main ? "unshift" : "push"](letter);
      }
      return el("li", { class: one === main ? "mg-tl-who-main" : "" },
        el("span", { class: "mg-tl-tag" }, letter), ` ${nameOf(one)} `,
        el("span", { class: "mg-tl-does" }, verb, site ? ` in line ${site[1]}${site[0] === file ? "" : ` of ${site[0]}`}` : ""));
    });
    for (const [line, letters] of on) { // room for two: the rest is a number
      const cut = letters.length > 2 ? [letters[0], `+${letters.length - 1}`] : letters;
      line.tags.append(...cut.map((letter) => el("span", { class: "mg-tl-tag" }, letter)));
    }
    who.replaceChildren(...listed);
    if (here && here[0] === file) {
      const line = open.lines[here[1] - 1];
      if (!open.marked.includes(line)) open.marked.push(line);
      line.node.className = "mg-tl-line mg-tl-here";
      line.node.setAttribute("aria-current", "true");
    }
    const line = here && here[0] === file && open.lines[here[1] - 1];
    if (line) { // within its box only: the page must not jump
      const top = line.node.offsetTop - code.clientHeight / 2 + line.node.offsetHeight / 2;
      if (line.node.offsetTop < code.scrollTop + 24 || line.node.offsetTop > code.scrollTop + code.clientHeight - 48) {
        code.scrollTop = top;
      }
      // Deep in a loop, where lines begin far to the right, show their beginning.
      const words = line.node.querySelector("code");
      const over = words.offsetLeft + words.offsetWidth + 8 - code.clientWidth;
      code.scrollLeft = over > 0 ? Math.min(over, Math.max(0, words.firstChild.offsetWidth - 28)) : 0;
    }
  }

  // ---- moving ----
  function update() {
    cancelAnimationFrame(frame);
    frame = 0;
    readout();
    source();
    const track = focus >= 0 ? visible[focus] : lastRole;
    slider.setAttribute("aria-valuenow", String(Math.round(now * 10) / 10));
    slider.setAttribute("aria-valuetext",
      `cycle ${whole(now)}; ${focus < 0 ? "all tracks; " : ""}${track ? tell(track) : ""}`);
    place();
  }
  /** At most one update a frame, whatever the pointer does. */
  function soon() {
    if (!frame) frame = requestAnimationFrame(() => { drawOverview(); update(); });
  }
  function show(a, b) {
    const span = Math.min(END, Math.max(16, b - a));
    const from = Math.min(Math.max(0, a), END - span);
    v0 = from;
    v1 = from + span;
    redraw();
  }
  function go(t, lazy) {
    now = Math.min(END, Math.max(0, t));
    const span = v1 - v0;
    if (now < v0 || now > v1) {
      const from = now < v0 ? now - 0.7 * span : now - 0.3 * span;
      show(from, from + span);
    }
    if (lazy) soon();
    else { drawOverview(); update(); }
  }
  function pick(index) {
    focus = Math.min(visible.length - 1, Math.max(-1, index));
    drawTracks();
    update();
    const row = rows.find((r) => r.track && r.index === focus);
    if (!row) return;
    if (row.top - 26 < slider.scrollTop) slider.scrollTop = row.top - 26;
    else if (row.y + row.h + 8 > slider.scrollTop + slider.clientHeight) slider.scrollTop = row.y + row.h + 8 - slider.clientHeight;
  }
  function hop(by) {
    const list = focus < 0 ? all : visible[focus].events;
    if (!list.length) return;
    const past = upto(list, now);
    // Rightwards from between two events the next one is list[past]; leftwards the one before now.
    const index = by > 0 ? past - 1 + by : (past && list[past - 1] === now ? past - 1 : past) + by;
    go(list[Math.min(list.length - 1, Math.max(0, index))]);
  }
  function zoom(factor, about = now >= v0 && now <= v1 ? now : (v0 + v1) / 2) {
    show(about - (about - v0) * factor, about + (v1 - about) * factor);
    ui.say(`Shown: cycles ${whole(v0)} to ${whole(v1)}`);
  }
  function pan(by) { show(v0 + by * (v1 - v0), v1 + by * (v1 - v0)); }
  function stop() {
    if (timer === null) return;
    clearInterval(timer);
    timer = null;
    play.textContent = "Play";
  }
  function run() {
    if (now >= END) go(0);
    play.textContent = "Pause";
    const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
    let before = performance.now();
    timer = setInterval(() => {
      if (!slider.isConnected) { stop(); return; }
      const moment = performance.now();
      // With reduced motion: from event to event, once a second. Else a window in twelve seconds.
      if (still) hop(1);
      else go(now + ((v1 - v0) * (moment - before)) / 12000, true);
      before = moment;
      const list = still ? (focus < 0 ? all : visible[focus].events) : null;
      if (now >= END || (list && now >= list[list.length - 1])) stop();
    }, still ? 1000 : 33);
  }
  const toggle = () => (timer === null ? run() : stop());

  const KEYS = {
    ArrowLeft: (e) => hop(e.shiftKey ? -10 : -1), ArrowRight: (e) => hop(e.shiftKey ? 10 : 1),
    ArrowUp: () => pick(focus - 1), ArrowDown: () => pick(focus + 1),
    Home: () => go(0), End: () => go(END),
    PageUp: () => pan(-0.5), PageDown: () => pan(0.5), "[": () => pan(-0.25), "]": () => pan(0.25),
    "+": () => zoom(0.5), "=": () => zoom(0.5), "-": () => zoom(2), "0": () => show(0, END),
    ",": () => go(now - 1), ".": () => go(now + 1), " ": toggle,
  };

  // ---- the parts ----
  const canvas = el("canvas", { class: "mg-tl-canvas", "aria-hidden": "true" });
  const axis = el("canvas", { class: "mg-tl-axis", "aria-hidden": "true" });
  const overview = el("canvas", { class: "mg-tl-overview", "aria-hidden": "true" });
  const needle = el("div", { class: "mg-tl-needle" });
  const flag = el("div", { class: "mg-tl-flag", "aria-hidden": "true" });
  const chosen = el("div", { class: "mg-tl-row" });
  const below = el("p", { class: "mg-hint mg-tl-below", hidden: true }, "↓ More tracks below: scroll, or choose with the arrow keys.");
  const tip = el("div", { class: "mg-tl-tip", hidden: true, "aria-hidden": "true" });
  const slider = el("div", {
    class: "mg-tl-tracks", role: "slider", tabindex: 0, "aria-label": "Cursor on the timeline",
    "aria-valuemin": 0, "aria-valuemax": END, "aria-valuenow": now, "aria-orientation": "horizontal",
  }, chosen, canvas, needle);
  slider.addEventListener("keydown", (event) => {
    const act = KEYS[event.key];
    if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    event.stopPropagation(); // pages and notebooks have plans of their own for arrows
    if (act !== toggle) stop();
    act(event);
  });
  function place2(event, node) {
    const box = node.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  }
  function drag(node, onmove) {
    let held = false;
    node.addEventListener("pointerdown", (event) => {
      if (event.button) return;
      held = true;
      stop();
      node.setPointerCapture(event.pointerId);
      onmove(event, true);
    });
    node.addEventListener("pointermove", (event) => { if (held) onmove(event, false); });
    for (const name of ["pointerup", "pointercancel"]) node.addEventListener(name, () => { held = false; });
  }
  drag(canvas, (event, first) => {
    tip.hidden = true;
    const [x, y] = place2(event, canvas);
    if (first) {
      const row = rows.find((r) => r.track && y >= r.top - 2 && y < r.y + r.h + 3);
      if (row && row.index !== focus) pick(row.index);
    }
    if (x >= gutter) go(Math.min(v1, Math.max(v0, T(x))), true);
  });
  drag(axis, (event) => go(Math.min(v1, Math.max(v0, T(Math.max(gutter, place2(event, axis)[0])))), true));
  drag(overview, (event) => {
    const t = ((place2(event, overview)[0] - gutter) / (width - gutter)) * END;
    show(t - (v1 - v0) / 2, t + (v1 - v0) / 2);
    go(Math.min(v1, Math.max(v0, t)), true);
  });
  canvas.addEventListener("pointermove", (event) => {
    const [x, y] = place2(event, canvas);
    const row = rows.find((r) => r.track && y >= r.y && y < r.y + r.h);
    const lane = row && Math.floor((y - row.y) / row.lane);
    const span = row && x >= gutter && at(row.track, T(x)).find((s) => row.track.lane[row.track.spans.indexOf(s)] === lane);
    tip.hidden = !span || event.buttons > 0 || event.pointerType === "touch";
    if (tip.hidden) return;
    const says = SAYS[span[4]] ?? span[4];
    const of = `${span[4] === "wait" && bare(text(span)) === text(span) ? "waits" : says} ${bare(text(span))}`;
    tip.textContent = `${of.trim()}: cycles ${whole(span[0])} to ${whole(span[1])} (${whole(span[1] - span[0])})`;
    const box = main.getBoundingClientRect();
    tip.style.left = `${Math.max(0, Math.min(event.clientX - box.left + 10, width - tip.offsetWidth))}px`;
    tip.style.top = `${event.clientY - box.top + 16}px`;
  });
  canvas.addEventListener("pointerleave", () => { tip.hidden = true; });
  slider.addEventListener("wheel", (event) => {
    if (event.ctrlKey) {
      event.preventDefault();
      zoom(event.deltaY > 0 ? 1.25 : 0.8, T(Math.max(gutter, place2(event, canvas)[0])));
    } else if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      event.preventDefault();
      pan(event.deltaX / Math.max(1, width - gutter));
    }
  }, { passive: false });

  const button = (label, words, act) => el("button", { type: "button", "aria-label": label, title: label, onclick: act }, words);
  const play = el("button", { type: "button", class: "mg-play", onclick: toggle }, "Play");
  const halt = (act) => () => { stop(); act(); };
  const controls = el("div", { class: "mg-tl-controls", role: "group", "aria-label": "Timeline" },
    button("Previous event of the chosen track", "◀", halt(() => hop(-1))), play,
    button("Next event of the chosen track", "▶", halt(() => hop(1))),
    el("span", { class: "mg-tl-gap" }),
    button("Zoom in", "+", () => zoom(0.5)), button("Zoom out", "−", () => zoom(2)),
    button("Earlier", "«", () => pan(-0.5)), button("Later", "»", () => pan(0.5)),
    button("The whole run", "Whole run", () => show(0, END)),
    button("The window that was shown first", "Steady state", () => {
      show(...home);
      go(data.cursor);
    }));

  function chip(set, key, label) {
    const node = el("button", { type: "button", class: "mg-tl-chip", "aria-pressed": String(set.has(key)), onclick: () => {
      if (set.has(key)) set.delete(key);
      else set.add(key);
      node.setAttribute("aria-pressed", String(set.has(key)));
      rebuild();
    } }, label);
    return node;
  }
  const chips = tracks.length > 14 && el("div", { class: "mg-tl-chips", role: "group", "aria-label": "Tracks shown" },
    el("span", { class: "mg-label" }, "Show"),
    groups.length > 2 && groups.map((g) => chip(shown, g, g)),
    SECTIONS.filter(([k]) => kinds.includes(k)).map(([k, title]) => chip(shownKinds, k, title)));

  const states = new Set(tracks.flatMap((t) => t.spans.map((s) => s[4])));
  const engine = (sort) => tracks.some((t) => t.kind === "engine" && !t.derived && t.sort === sort);
  const legend = el("ul", { class: "mg-tl-legend" }, [
    ["run", "runs", states.has("run")], ["issue", "issues", states.has("issue")],
    ["wait", "waits", states.has("wait")],
    ["arriving", "load in flight", states.has("arriving") || engine("load")],
    ["full", "full, not yet read", states.has("full")], ["tensor", "tensor core works", engine("compute")],
    ["busy", "other engine works", engine("")],
    ["read", "being read", states.has("read")], ["written", "being written", states.has("written")],
    ["accumulate", "accumulating", states.has("accumulate")], ["phase", "phase of a barrier", states.has("phase")],
    ["arrival", "arrival", tracks.some((t) => t.arrivals.length)],
  ].filter((row) => row[2]).map(([state, words]) =>
    el("li", {}, el("span", { class: "mg-tl-mark", "data-state": state, "aria-hidden": "true" }), words)));

  const where = el("p", { class: "mg-tl-where" });
  const clock = el("p", { class: "mg-hint" });
  const lists = el("div", { class: "mg-tl-lists" });
  const barriers = el("div", { class: "mg-tl-lists mg-tl-more" });
  const fileName = el("span", { class: "mg-tl-file" });
  const who = el("ul", { class: "mg-tl-who" });
  const code = el("div", { class: "mg-tl-source", tabindex: 0, role: "region", "aria-label": `Source, ${runName}` });

  const facts = [];
  const s = data.summary || {};
  if (s.duration_us) facts.push(`${s.duration_us.toLocaleString("en-US", { maximumFractionDigits: 2 })} µs for the whole launch`);
  if (s.tflops) facts.push(`${s.tflops.toLocaleString("en-US", { maximumFractionDigits: 1 })} TFLOP/s`);
  if (s.bound) facts.push(`bound by ${s.bound}`);
  const meet = data.overlaps[0];
  const tensor = data.busy.find(([id]) => data.sorts[id] === "compute");
  const lead = tensor && el("p", { class: "mg-tl-lead" }, "The tensor core works ",
    el("strong", {}, `${percent(tensor[1], END)} of the time`),
    meet && ["; while it does, loads are in flight ", el("strong", {}, `${percent(meet.both, meet.compute)} of the time`),
      meet.both > 0.2 * meet.compute && tracks.some((t) => t.kind === "stage")
      && ": the next stage arrives (slanted) while this one is read (dotted)"], ".");

  const shares = el("div", { class: "mg-scroll", tabindex: 0, role: "region", "aria-label": `Shares of time, ${runName}` },
    el("table", { class: "mg-table mg-tl-shares" },
      el("caption", {}, `How each role spends the ${whole(END)} cycles shown`),
      el("thead", {}, el("tr", {}, el("td", {}), ["runs, issues, waits", "works", "waits", "waits for"].map((h) => el("th", { scope: "col" }, h)))),
      el("tbody", {}, data.shares.map((r) => {
        const part = (state, n) => el("span", { class: "mg-tl-mark", "data-state": state, style: `width:${(100 * n) / END}%` });
        return el("tr", { "data-track": r.track },
          el("th", { scope: "row" }, new Set(data.shares.map((q) => q.group)).size > 1 ? `${r.group} ${r.name}` : r.name),
          el("td", {}, el("span", { class: "mg-tl-bar", "aria-hidden": "true" }, part("run", r.run), part("issue", r.issue), part("wait", r.wait))),
          el("td", {}, percent(r.run + r.issue, END)), el("td", {}, percent(r.wait, END)),
          el("td", {}, r.waits.filter(([, n]) => n >= 0.005 * END).slice(0, 6)
            .map(([what, n]) => `${what} (${percent(n, END).replace(" ", "\u00a0")})`).join(", ") || "–"));
      }))));

  const key = (names, does) => el("div", {}, el("dt", {}, names), el("dd", {}, does));
  const keys = el("details", { class: "mg-tl-keys" }, el("summary", {}, "Keys and pointer"),
    el("dl", {},
      key("← →", "previous, next event of the chosen track (with Shift: ten)"),
      key("↑ ↓", "choose a track; above the first: all tracks"),
      key(", .", "one cycle back, on"), key("Home End", "start, end of the run"),
      key("+ −", "zoom in, out (or Ctrl and the wheel)"), key("[ ]", "pan by a quarter of what is shown"),
      key("Page Up, Page Down", "pan by half of it"), key("0", "the whole run"), key("Space", "play, pause"),
      key("Pointer", "drag on the tracks: cursor; on the strip above them: window")));

  const main = el("div", { class: "mg-tl-main" }, overview, el("div", { class: "mg-tl-top" }, axis, flag), slider, below, tip);
  stage.append(el("div", { class: "mg-tl" },
    el("p", { class: "mg-tl-note" },
      el("span", { class: "mg-badge mg-badge-modelled", title: "computed by the time model, not measured" }, "modelled"),
      ` ${data.note.replace(/^modelled:\s*/i, "").replace(/\.?$/, ".")} `, facts.length ? el("span", { class: "mg-tl-facts" }, `${facts.join(", ")}.`) : ""),
    lead, legend, controls, chips,
    el("p", { class: "mg-hint mg-tl-how" }, "Drag over the tracks, or with the keyboard: ← → go from event to event of the chosen track, ↑ ↓ choose a track, + − zoom."),
    el("div", { class: "mg-tl-grid" }, main,
      el("div", { class: "mg-tl-read" }, where, clock, lists),
      el("div", { class: "mg-tl-side" }, el("p", { class: "mg-sub" }, "Source ", fileName), who, code),
      barriers),
    shares, keys));

  function rebuild() {
    choose();
    buildReadout();
    if (width) { layout(); redraw(); }
    update();
  }
  function resize() {
    const w = Math.floor(main.clientWidth);
    if (!w) return;
    const ratio = Math.min(3, window.devicePixelRatio || 1);
    if (w === width && ratio === dpr) return;
    lists.style.minHeight = barriers.style.minHeight = "";
    if (!width && w < 560 && home[1] - home[0] < END) { // a phone: fewer steps, wider
      const half = (home[1] - home[0]) / 4;
      home = [Math.max(0, now - half), Math.min(END, now + half)];
      [v0, v1] = home;
    }
    width = w;
    dpr = ratio;
    readTheme(dpr);
    layout();
    redraw();
    source();
  }
  new ResizeObserver(resize).observe(main);
  const themed = new MutationObserver(() => { if (width) { readTheme(dpr); redraw(); } });
  for (const node of [document.documentElement, document.body]) {
    themed.observe(node, { attributes: true, attributeFilter: ["data-theme", "data-jp-theme-light", "class"] });
  }
  rebuild();
});
