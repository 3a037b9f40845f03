/* SPDX-License-Identifier: Apache-2.0
 * Kind "layout": a tile's element (row, column) and where it lies in shared memory.
 * Every offset and every cost comes from Python; here they are only looked up.
 */
mlsysViz.register("layout", (stage, data, ui) => {
  "use strict";
  const { el } = ui;
  const per = data.perChunk;
  const chunks = data.cols / per;
  const lineChunks = 8; // 128 bytes: all 32 banks, 16 bytes a chunk
  const lines = Math.ceil((data.rows * data.cols * data.itemsize) / 128);
  let mode = data.modes.find((m) => m.swizzle === data.swizzle);
  let access = null;
  let row = 0;
  let col = 0;

  const modeName = (s) => (s === 0 ? "none" : `${s} B`);
  const swizzle = ui.choice("Swizzle",
    data.modes.map((m) => ({ id: String(m.swizzle), label: modeName(m.swizzle) })),
    String(mode.swizzle), (id) => { mode = data.modes.find((m) => String(m.swizzle) === id); place(); });
  const warp = ui.choice("A warp's access",
    [{ id: "", label: "none" }, ...data.accesses.map((a) => ({ id: a.name, label: a.name }))], "",
    (id) => { access = data.accesses.find((a) => a.name === id) || null; paint(true); });

  const colour = (r) => `mg-c${r % 8}`;
  const tile = ui.cells({
    label: `Tile of ${data.rows} rows and ${data.cols} columns, in chunks of ${per} columns`,
    rows: data.rows, cols: chunks, className: "mg-tile",
    cell: (r, c) => ({
      label: `row ${r}, columns ${c * per} to ${c * per + per - 1}`,
      content: `${r}.${c}`, attrs: { "data-at": `${r}.${c}` },
    }),
    onselect: (r, c) => { row = r; col = c * per + (col % per); column.value = col; paint(); },
  });
  const memory = ui.cells({
    label: "Shared memory, 128 bytes a row",
    rows: lines, cols: lineChunks, className: "mg-smem",
    cell: (r, c) => ({ label: `bytes ${r * 128 + c * 16} to ${r * 128 + c * 16 + 15}`, content: "" }),
    onselect: (r, c) => {
      const found = where.get(r * lineChunks + c);
      if (!found) return;
      [row, col] = [found[0], found[1] * per];
      tile.set(found[0], found[1]);
      column.value = col;
      paint();
    },
  });

  const column = el("input", {
    type: "number", min: 0, max: data.cols - 1, value: 0, id: ui.unique("column"),
    oninput: () => {
      const v = Number(column.value);
      if (!Number.isInteger(v) || v < 0 || v >= data.cols) return;
      col = v;
      tile.set(row, Math.floor(col / per));
      paint();
    },
  });
  const facts = ui.readout();
  const cost = el("p", { class: "mg-cost" });
  const where = new Map(); // position in memory, in chunks -> [row, chunk]

  const head = (names) => el("div", { class: "mg-heads", "aria-hidden": "true", style: `--cols:${names.length}` },
    names.map((n) => el("span", {}, n)));
  stage.append(
    el("div", { class: "mg-controls" }, swizzle.element, warp.element),
    el("div", { class: "mg-two" },
      el("div", {}, el("p", { class: "mg-sub" }, "The tile: row.chunk"),
        head(Array.from({ length: chunks }, (_, c) => `${c * per}`)), tile.element),
      el("div", {}, el("p", { class: "mg-sub" }, "Shared memory by bank"),
        head(Array.from({ length: lineChunks }, (_, c) => `${c * 4}`)), memory.element)),
    el("div", { class: "mg-controls" },
      el("label", { class: "mg-label", for: column.id }, "Column of the chosen element"), column),
    facts.element, cost);

  function cellsOf(r, c) {
    const index = mode.offsets[r][c] / 16;
    return [tile.at(r, c), memory.at(Math.floor(index / lineChunks), index % lineChunks)];
  }

  function place() {
    where.clear();
    for (let i = 0; i < lines * lineChunks; i++) {
      const node = memory.at(Math.floor(i / lineChunks), i % lineChunks);
      node.textContent = "";
      node.className = "mg-cell";
    }
    mode.offsets.forEach((offsets, r) => offsets.forEach((offset, c) => {
      where.set(offset / 16, [r, c]);
      const [a, b] = cellsOf(r, c);
      a.className = `mg-cell ${colour(c)}`;
      b.className = `mg-cell ${colour(c)}`;
      b.textContent = `${r}.${c}`;
      b.setAttribute("aria-label",
        `bytes ${offset} to ${offset + 15}: row ${r}, columns ${c * per} to ${c * per + per - 1}`);
    }));
    paint();
  }

  function laneOf(r, c) {
    return access ? access.lanes.findIndex(([lr, lc]) => lr === r && Math.floor(lc / per) === c) : -1;
  }

  function paint(announce) {
    mode.offsets.forEach((offsets, r) => offsets.forEach((_, c) => {
      const lane = laneOf(r, c);
      for (const node of cellsOf(r, c)) {
        node.classList.toggle("mg-picked", r === row && c === Math.floor(col / per));
        node.classList.toggle("mg-dim", Boolean(access) && lane < 0);
        node.classList.toggle("mg-lane", lane >= 0);
        // Eight lanes of 16 bytes are served together, so colour marks the pass of a lane.
        node.dataset.pass = lane >= 0 ? String(Math.floor(lane / 8)) : "";
        node.textContent = access ? (lane >= 0 ? `T${lane}` : "") : `${r}.${c}`;
      }
    }));
    const chunk = Math.floor(col / per);
    const offset = mode.offsets[row][chunk] + (col % per) * data.itemsize;
    const plain = data.modes[0].offsets[row][chunk];
    const [line, slot] = [Math.floor(offset / 128), Math.floor((offset % 128) / 16)];
    const lane = laneOf(row, chunk);
    memory.set(line, slot);
    const pairs = [
      ["element", `(${row}, ${col})`],
      ["byte offset", `${offset} = 0x${offset.toString(16).padStart(4, "0")}`],
      ["bank", `${Math.floor(offset / 4) % 32}`],
      ["line of 128 bytes", `${line}`],
      ["chunk in the line", `${slot}`],
    ];
    if (mode.swizzle) {
      const mask = mode.swizzle / 16 - 1;
      const within = chunk % (mode.swizzle / 16);
      pairs.push(["chunk in the span", `${within} XOR ${line & mask} = ${within ^ (line & mask)}`]);
      pairs.push(["without swizzle", `byte ${plain + (col % per) * data.itemsize}`]);
    }
    if (access) pairs.push(["lane", lane >= 0 ? `T${lane}` : "no lane of this access"]);
    facts.set(pairs);
    if (access) {
      const c = access.cost[String(mode.swizzle)];
      cost.textContent = `${access.text} The memory makes ${c.wavefronts} passes; ${c.ideal} would do`
        + (c.ways > 1 ? ` (${c.ways}-way bank conflicts).` : ", so there is no bank conflict.");
    } else cost.textContent = "";
    ui.say(announce && access ? cost.textContent
      : `element ${row}, ${col}: byte ${offset}, bank ${Math.floor(offset / 4) % 32}`);
  }
  place();
});
