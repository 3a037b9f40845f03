/* SPDX-License-Identifier: Apache-2.0
 * Kind "execution-hierarchy": walk from the grid to a thread; follow a GEMM's data step by step.
 */
mlsysViz.register("execution-hierarchy", (stage, data, ui) => {
  "use strict";
  const { el } = ui;
  const path = data.start.slice(); // index of the chosen cluster, CTA, warpgroup, warp, thread
  let depth = 0; // 0 is the grid; path[depth - 1] says which child of the level above
  let step = 0;
  let arch = data.arches.find((a) => a.id === data.arch);
  const counts = data.counts; // children of grid, cluster, CTA, warpgroup, warp

  const view = ui.choice("Show", [
    { id: "levels", label: "Hierarchy" }, { id: "pipeline", label: "GEMM data pipeline" },
  ], "levels", show);
  const which = ui.choice("Architecture",
    data.arches.map((a) => ({ id: a.id, label: a.id[0].toUpperCase() + a.id.slice(1) })), arch.id,
    (id) => { arch = data.arches.find((a) => a.id === id); rebuild(); });
  const levels = el("div", { class: "mg-levels" });
  const pipeline = el("div", { class: "mg-pipeline" });
  stage.append(el("div", { class: "mg-controls" }, view.element, which.element), levels, pipeline);

  const short = (level) => level.name.replace(" (thread block)", "");
  const nameAt = (d) => (d === 0 ? "Grid" : `${short(arch.levels[d])} ${path[d - 1]}`);

  function position() {
    const [cluster, cta, warpgroup, warp, thread] = path;
    const pairs = [];
    if (depth >= 1) pairs.push(["cluster", `${cluster} of ${counts[0]}`]);
    if (depth >= 2) {
      pairs.push(["blockIdx.x", ui.group(cluster * counts[1] + cta)]);
      pairs.push(["rank in cluster", `${cta}`]);
    }
    if (depth >= 3) pairs.push(["warpgroup in CTA", `${warpgroup}`]);
    if (depth >= 4) pairs.push(["warp in CTA", `${warpgroup * counts[3] + warp}`]);
    if (depth >= 5) {
      pairs.push(["threadIdx.x",
        `${(warpgroup * counts[3] + warp) * counts[4] + thread}`]);
      pairs.push(["lane", `${thread}`]);
    }
    return pairs;
  }

  function drawLevels(focus) {
    const level = arch.levels[depth];
    const child = arch.levels[depth + 1];
    const crumbs = el("ol", { class: "mg-crumbs", "aria-label": "Where you are" },
      Array.from({ length: depth + 1 }, (_, d) => el("li", {}, el("button", {
        type: "button", "aria-current": d === depth ? "step" : null,
        onclick: () => { depth = d; drawLevels("crumb"); },
      }, nameAt(d)))));
    const parts = [crumbs];
    let grid = null;
    if (child) {
      const n = counts[depth];
      const cols = n <= 4 ? n : n <= 12 ? 4 : 8;
      grid = ui.cells({
        label: `${nameAt(depth)}: ${n} × ${short(child)}, press Space to go inside`,
        rows: Math.ceil(n / cols), cols, follow: false, className: `mg-children mg-of-${child.id}`,
        cell: (r, c) => {
          const i = r * cols + c;
          return i >= n ? null : {
            label: `${short(child)} ${i}`,
            content: n > 12 ? `${i}` : `${short(child)} ${i}`,
          };
        },
        onselect: (r, c) => { path[depth] = r * cols + c; depth += 1; drawLevels("grid"); },
      });
      const chosen = path[depth];
      grid.set(Math.floor(chosen / cols), chosen % cols);
      parts.push(el("p", { class: "mg-hint" },
        `${nameAt(depth)} holds ${n} ${short(child).toLowerCase().replace("cta", "CTA")}s${depth < 3 ? " in this example" : ""}. Choose one to go inside.`));
      parts.push(grid.element);
    } else {
      parts.push(el("p", { class: "mg-hint" },
        "A thread is the last level: below it are only its registers."));
    }
    const where = position();
    if (where.length) {
      const place = ui.readout();
      place.element.classList.add("mg-place");
      place.set(where);
      parts.push(place.element);
    }
    const facts = ui.readout();
    facts.set([
      ["How many", level.count], ["Runs", level.runs], ["Synchronises by", level.sync],
      ["In a GEMM", level.gemm],
    ]);
    parts.push(el("p", { class: "mg-sub" }, level.name), facts.element);
    const left = el("div", { class: "mg-levels-main" }, parts);
    const right = el("div", { class: "mg-levels-side" },
      el("p", { class: "mg-sub" }, `Memory that ${depth === 0 ? "the whole grid" : "a " + short(level).toLowerCase().replace("cta", "CTA")} can address`),
      el("ul", { class: "mg-memories" }, arch.memories.map((m) => {
        const seen = level.sees.includes(m.id);
        return el("li", { class: `mg-memory ${seen ? "mg-seen" : "mg-unseen"}`, "data-memory": m.id },
          el("strong", {}, `${m.name} (${m.short})`),
          el("span", { class: "mg-seen-mark" }, seen ? "✓ sees" : "✗ not as a whole"),
          el("span", {}, m.size), el("span", {}, `Shared by ${m.scope}`));
      })));
    levels.replaceChildren(left, right);
    const sees = arch.memories.filter((m) => level.sees.includes(m.id)).map((m) => m.name);
    ui.say(`${nameAt(depth)}. Sees ${sees.join(", ")}.`);
    if (focus === "grid" && grid) grid.element.querySelector('[tabindex="0"]').focus();
    else if (focus) crumbs.lastElementChild.querySelector("button").focus();
  }

  let flow = null;
  function drawPipeline() {
    const steps = arch.pipeline;
    step = Math.min(step, steps.length - 1);
    const places = arch.id === "blackwell" ? ["gmem", "smem", "tc", "tmem", "reg", "gmem2"]
      : ["gmem", "smem", "tc", "reg", "gmem2"];
    const names = Object.fromEntries(arch.memories.map((m) => [m.id, m.short]));
    const words = { ...names, tc: "Tensor core", gmem2: "GMEM", reg: "Registers" };
    const detail = { gmem: "A, B", gmem2: "D" };
    const boxes = new Map();
    const arrows = [];
    flow = el("ol", { class: "mg-flow" });
    places.forEach((id, i) => {
      if (i) {
        const arrow = el("li", { class: "mg-arrow", "aria-hidden": "true" });
        arrows.push(arrow);
        flow.append(arrow);
      }
      const box = el("li", { class: "mg-box", "data-place": id }, el("strong", {}, words[id]),
        detail[id] ? el("span", {}, detail[id]) : null);
      boxes.set(id, box);
      flow.append(box);
    });
    const facts = ui.readout();
    const title = el("p", { class: "mg-sub" });
    function draw() {
      const s = steps[step];
      const last = step === steps.length - 1;
      const ends = [s.from, last ? "gmem2" : s.to];
      const [a, b] = ends.map((id) => places.indexOf(id));
      places.forEach((id, i) => {
        boxes.get(id).classList.toggle("mg-on", i >= a && i <= b);
      });
      arrows.forEach((arrow, i) => {
        const on = i >= a && i < b;
        arrow.classList.toggle("mg-on", on);
        arrow.classList.toggle("mg-again", on && Boolean(s.loop));
      });
      title.textContent = `${step + 1}. ${s.title}`;
      facts.set([["What", s.what], ["How much", s.size], ["Who", s.who], ["Waits for", s.wait]]);
      ui.say(`${s.title}: ${words[s.from]} to ${words[s.to]}, ${s.size}`);
    }
    const control = ui.stepper({
      label: "Step", count: steps.length, value: step, interval: 2600,
      onchange: (to) => { step = to; draw(); },
    });
    pipeline.replaceChildren(control.element, flow, title, facts.element);
    draw();
  }

  function show(id) {
    levels.hidden = id !== "levels";
    pipeline.hidden = id !== "pipeline";
  }
  function rebuild() {
    drawLevels();
    drawPipeline();
  }
  rebuild();
  show("levels");
});
