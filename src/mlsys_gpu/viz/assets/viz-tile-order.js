/* SPDX-License-Identifier: Apache-2.0
 * Kind "tile-order": rounds of tiles in several orders, and the block rows of A and B they read.
 */
mlsysViz.register("tile-order", (stage, data, ui) => {
  "use strict";
  const { el, svg } = ui;
  let choice = data.choices[0];
  let order = choice.orders.find((o) => o.group === data.group) || choice.orders[0];
  let round = 0;
  let stepper = null;

  const name = (shape) => shape.map(ui.group).join(" × ");
  const words = (o) => (o.group === o.m ? `all ${o.m}` : String(o.group));
  const mib = (n) => `${ui.group(Math.round(n / 1048576))} MiB`;
  const times = (n) => `${n.toFixed(1)} ×`;
  const holder = (className) => el("div", { class: className });
  const shapeAt = holder("mg-order-choice");
  const groupAt = holder("mg-order-choice");
  const stepAt = holder("mg-order-choice");
  const a = holder("mg-order-a");
  const b = holder("mg-order-b");
  const d = holder("mg-order-d");
  const now = ui.readout();
  const all = ui.readout();

  const key = (className, text) => el("li", {}, el("span", { class: `mg-order-key ${className}` }), text);
  const title = (strong, rest) =>
    el("span", { class: "mg-matrix-name" }, el("strong", {}, strong), ` ${rest}`);
  stage.append(
    shapeAt, groupAt, stepAt,
    el("ul", { class: "mg-tl-legend" }, key("mg-order-now", "tiles of this round"),
      key("mg-order-done", "done before"), key("mg-order-read-a", "read of A"),
      key("mg-order-read-b", "read of B")),
    el("div", { class: "mg-order-and" },
      el("div", { class: "mg-order" },
        el("div", {}), el("div", {}, title("B", "block columns of D"), b),
        el("div", { class: "mg-order-side" }, title("A", ""), a), d),
      el("div", {},
        el("p", { class: "mg-sub" }, "This round"), now.element,
        el("p", { class: "mg-sub" }, "The whole product"), all.element)));

  const box = (className, [y0, y1, x0, x1]) =>
    svg("rect", { class: className, x: x0, y: y0, width: x1 - x0, height: y1 - y0 });
  function picture(label, width, height, ...children) {
    return svg("svg", { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img",
      "aria-label": label }, children);
  }
  function grid(width, height) {
    const lines = [];
    for (let x = 1; x < width; x++) lines.push(`M${x} 0V${height}`);
    for (let y = 1; y < height; y++) lines.push(`M0 ${y}H${width}`);
    return svg("path", { class: "mg-order-grid", d: lines.join("") });
  }

  function controls() {
    const groups = choice.orders.map((o) => ({ id: String(o.group), label: words(o) }));
    groupAt.replaceChildren(ui.choice("Rows of tiles in a group", groups, String(order.group), (id) => {
      order = choice.orders.find((o) => String(o.group) === id);
      rounds();
    }).element);
    rounds();
  }
  function rounds() {
    round = Math.min(round, order.rounds.length - 1);
    // A fresh stepper: another order may have another number of rounds.
    stepper = ui.stepper({ label: "Round", count: order.rounds.length, value: round,
      onchange: (to) => { round = to; paint(); } });
    stepAt.replaceChildren(stepper.element);
    paint();
  }
  shapeAt.replaceChildren(ui.choice("M × N × K",
    data.choices.map((c, i) => ({ id: String(i), label: name(c.shape) })), "0", (id) => {
      const was = words(order);
      choice = data.choices[Number(id)];
      order = choice.orders.find((o) => words(o) === was)
        || (was.startsWith("all") ? choice.orders[choice.orders.length - 1] : choice.orders[0]);
      controls();
    }).element);
  if (data.choices.length < 2) shapeAt.remove();

  function paint() {
    const r = order.rounds[round];
    const { m, n } = order;
    const before = order.rounds.slice(0, round).flatMap((x) => x.boxes);
    d.style.aspectRatio = `${n} / ${m}`;
    d.replaceChildren(picture(`D: ${m} by ${n} tiles, round ${round + 1} marked`, n, m,
      before.map((x) => box("mg-order-done", x)), r.boxes.map((x) => box("mg-order-now", x)), grid(n, m)));
    a.replaceChildren(picture(`${r.rows} of ${m} block rows of A`, 1, m,
      r.a.map(([y0, y1]) => box("mg-order-read-a", [y0, y1, 0, 1])), grid(1, m)));
    b.replaceChildren(picture(`${r.columns} of ${n} block rows of B`, n, 1,
      r.b.map(([x0, x1]) => box("mg-order-read-b", [0, 1, x0, x1])), grid(n, 1)));
    now.set([
      ["tiles", `${r.tiles} of ${data.ctas} places`],
      ["block rows of A", `${r.rows}`],
      ["block rows of B", `${r.columns}`],
      ["loaded by the CTAs", mib(r.loaded)],
      ["different bytes", mib(r.distinct)],
      ["each byte serves", `${(r.loaded / r.distinct).toFixed(1)} loads`],
    ]);
    all.set([
      ["rounds", ui.group(order.rounds.length)],
      ["places in use", `${Math.round((100 * m * n) / (order.rounds.length * data.ctas))} %`],
      ["loaded by the CTAs", mib(order.loaded)],
      ["different bytes, added over rounds", mib(order.distinct)],
      ["A and B once", mib(order.least)],
      ["different bytes / A and B once", times(order.distinct / order.least)],
    ]);
    ui.say(`Round ${round + 1} of ${order.rounds.length}: ${r.tiles} tiles read ${r.rows} block rows of A and ${r.columns} of B, ${mib(r.distinct)} of different bytes`);
  }
  controls();
});
