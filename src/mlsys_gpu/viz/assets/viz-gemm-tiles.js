/* SPDX-License-Identifier: Apache-2.0
 * Kind "gemm-tiles": output tiles, their CTAs, and the K loop of one of them.
 */
mlsysViz.register("gemm-tiles", (stage, data, ui) => {
  "use strict";
  const { el } = ui;
  const [BM, BN, BK] = data.tile;
  let picked = data.tiles[0];
  let step = 0;
  const small = data.k_steps + data.tiles_n > 14 ? " mg-small" : "";

  function block(rows, cols, name, label) {
    const nodes = [];
    const element = el("div", { class: `mg-block mg-${name}${small}`, style: `--cols:${cols}`, role: "img", "aria-label": label });
    for (let r = 0; r < rows; r++) {
      nodes.push([]);
      for (let c = 0; c < cols; c++) {
        const node = el("div", { class: "mg-cell" });
        nodes[r].push(node);
        element.append(node);
      }
    }
    return { element, nodes };
  }
  const a = block(data.tiles_m, data.k_steps, "a", `A, ${data.M} by ${data.K}`);
  const b = block(data.k_steps, data.tiles_n, "b", `B transposed, ${data.K} by ${data.N}`);
  const at = (m, n) => data.tiles[m * data.tiles_n + n];
  const d = ui.cells({
    label: `D, ${data.M} by ${data.N}: ${data.tiles_m} by ${data.tiles_n} tiles`,
    rows: data.tiles_m, cols: data.tiles_n, className: `mg-d${small}`,
    cell: (m, n) => ({
      label: `tile ${m}, ${n} of D, CTA ${at(m, n).cta.join(", ")}`,
      content: small ? "" : at(m, n).cta.join(","),
    }),
    onselect: (m, n) => { picked = at(m, n); paint(); },
  });
  const control = ui.stepper({
    label: "Step of the K loop", count: data.k_steps, onchange: (to) => { step = to; paint(); },
  });
  const facts = ui.readout();
  const all = ui.readout();
  all.set([
    ["CTAs", ui.group(data.ctas)],
    ["loaded by all CTAs", ui.bytes(data.loaded)],
    ["A, B and D once", ui.bytes(data.least)],
    ["each element of A", `loaded ${data.a_reuse} ×`],
    ["each element of B", `loaded ${data.b_reuse} ×`],
    ["FLOP per byte", data.intensity.toFixed(1)],
  ]);
  const name = (text, sub) => el("span", { class: "mg-matrix-name" }, el("strong", {}, text), ` ${sub}`);
  stage.append(
    el("p", { class: "mg-hint" },
      "Choose a tile of D. Strong colour: the operand tiles of this step; hatched: done; pale: still to come."),
    control.element,
    el("div", { class: "mg-scroll" }, el("div", { class: "mg-gemm", style: `--span:${data.k_steps + data.tiles_n}` },
      el("div", { class: "mg-corner" }),
      el("div", {}, name("Bᵀ", `K ↓ ${ui.group(data.K)}, N → ${ui.group(data.N)}`), b.element),
      el("div", {}, name("A", `M ↓ ${ui.group(data.M)}, K → ${ui.group(data.K)}`), a.element),
      el("div", {}, name("D", "the CTA in each tile"), d.element))),
    el("p", { class: "mg-sub" }, "The chosen tile"), facts.element,
    el("p", { class: "mg-sub" }, "The whole product"), all.element);

  function paint() {
    const mark = (node, mine, k) => {
      node.className = "mg-cell" + (mine ? (k < step ? " mg-done" : k === step ? " mg-now" : " mg-later") : "");
    };
    a.nodes.forEach((line, m) => line.forEach((node, k) => mark(node, m === picked.m, k)));
    b.nodes.forEach((line, k) => line.forEach((node, n) => mark(node, n === picked.n, k)));
    for (const t of data.tiles) d.at(t.m, t.n).classList.toggle("mg-picked", t === picked);
    const s = picked.steps[step];
    const before = step ? picked.steps[step - 1].loaded : 0;
    facts.set([
      ["CTA", `(${picked.cta.join(", ")})`],
      ["rows of A and D", `${picked.row0} to ${picked.row0 + picked.rows - 1}`],
      ["rows of B, columns of D", `${picked.col0} to ${picked.col0 + picked.cols - 1}`],
      ["K in this step", `${s.k0} to ${s.k0 + s.depth - 1}`],
      ["loaded in this step", ui.bytes(s.loaded - before)],
      ["loaded so far", ui.bytes(s.loaded)],
      ["FLOP so far", ui.group(s.flop)],
      ["stored at the end", ui.bytes(picked.stored)],
    ]);
    ui.say(`CTA ${picked.cta.join(", ")}, step ${step + 1} of ${data.k_steps}: K ${s.k0} to ${s.k0 + s.depth - 1}, ${ui.bytes(s.loaded)} loaded so far`);
  }
  paint();
});
