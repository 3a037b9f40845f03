/* SPDX-License-Identifier: Apache-2.0
 * Frame of the interactive figures: finds them in a page, hands each to its kind's module, and
 * offers the controls that all kinds share. No build step and no ES modules: a browser loads
 * neither from file://. Python (mlsys_gpu.viz) computes the data; here it is only drawn.
 */
(function () {
  "use strict";
  if (window.mlsysViz) return; // a notebook brings this file along with each figure

  const kinds = new Map();
  let counter = 0;

  function fill(node, attrs, children) {
    for (const [name, value] of Object.entries(attrs || {})) {
      if (value === null || value === undefined || value === false) continue;
      if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
      else node.setAttribute(name, value === true ? "" : value);
    }
    node.append(...children.flat(Infinity).filter((c) => c !== null && c !== undefined && c !== false));
    return node;
  }
  const el = (tag, attrs, ...children) => fill(document.createElement(tag), attrs, children);
  const svg = (tag, attrs, ...children) =>
    fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attrs, children);

  const unique = (stem) => `mg-${stem}-${++counter}`;
  const group = (n) => Number(n).toLocaleString("en-US");
  const bytes = (n) =>
    n >= 1048576 && n % 1048576 === 0 ? `${group(n / 1048576)} MiB`
    : n >= 1024 ? `${group(+(n / 1024).toFixed(2))} KiB` : `${group(n)} B`;

  /** Native radio buttons drawn as a row of segments: Tab reaches it, arrows change it. */
  function choice(legend, options, value, onchange) {
    const name = unique("choice");
    const inputs = new Map();
    const items = options.map(({ id, label }, i) => {
      const input = el("input", {
        type: "radio", name, value: id, id: `${name}-${i}`, checked: id === value,
        onchange: () => onchange(id),
      });
      inputs.set(id, input);
      return [input, el("label", { for: `${name}-${i}` }, label)];
    });
    const element = el("fieldset", { class: "mg-choice" }, el("legend", {}, legend),
      el("div", { class: "mg-segments" }, items));
    return { element, set: (id) => { inputs.get(id).checked = true; } };
  }

  /** Previous, play, next and a slider over `count` steps. */
  function stepper({ label, count, value = 0, onchange, interval = 1400 }) {
    let at = value;
    let timer = null;
    const slider = el("input", {
      type: "range", min: 0, max: Math.max(0, count - 1), step: 1, value: at, "aria-label": label,
      oninput: () => { stop(); go(Number(slider.value)); },
    });
    const shown = el("output", { class: "mg-step-shown" });
    const prev = el("button", { type: "button", "aria-label": `Previous: ${label}`,
      onclick: () => { stop(); go(at - 1); } }, "◀");
    const next = el("button", { type: "button", "aria-label": `Next: ${label}`,
      onclick: () => { stop(); go(at + 1); } }, "▶");
    const play = el("button", { type: "button", class: "mg-play",
      onclick: () => (timer ? stop() : run()) }, "Play");
    function stop() {
      clearInterval(timer);
      timer = null;
      play.textContent = "Play";
    }
    function run() {
      if (at >= count - 1) go(0);
      play.textContent = "Pause";
      timer = setInterval(() => {
        if (!element.isConnected) { stop(); return; }
        go(at + 1);
        if (at >= count - 1) stop();
      }, interval);
    }
    function show() {
      slider.value = at;
      slider.setAttribute("aria-valuetext", `${at + 1} of ${count}`);
      shown.textContent = `${at + 1} of ${count}`;
      prev.disabled = at === 0;
      next.disabled = at >= count - 1;
    }
    function go(to) {
      const was = at;
      at = Math.min(Math.max(to, 0), count - 1);
      show();
      if (at !== was) onchange(at);
    }
    const element = el("div", { class: "mg-stepper", role: "group", "aria-label": label },
      el("span", { class: "mg-label" }, label), prev, play, next, slider, shown);
    show();
    return { element, set: go, get: () => at };
  }

  /** A list of terms and values that is refreshed in place. */
  function readout() {
    const element = el("dl", { class: "mg-readout" });
    return {
      element,
      set(pairs) {
        element.replaceChildren(...pairs.map(([term, value]) =>
          el("div", {}, el("dt", {}, term), el("dd", {}, value))));
      },
    };
  }

  /** Cells in rows and columns; one of them takes Tab, arrows, Home and End move, Space picks.
   * cell(r, c) gives {label, content, attrs}; onselect(r, c) follows the focus with `follow`,
   * else it waits for Space, Enter or a click. */
  function cells({ label, rows, cols, cell, onselect, follow = true, className = "" }) {
    const all = [];
    let row = 0;
    let col = 0;
    const element = el("div", {
      class: `mg-cells ${className}`, role: "grid", "aria-label": label,
      "aria-rowcount": rows, "aria-colcount": cols, style: `--cols:${cols}`,
    });
    for (let r = 0; r < rows; r++) {
      const line = el("div", { class: "mg-cells-row", role: "row" });
      all.push([]);
      for (let c = 0; c < cols; c++) {
        const made = cell(r, c);
        const node = made === null
          ? el("div", { role: "gridcell", class: "mg-cell mg-cell-none", "aria-hidden": "true" })
          : el("div", {
            role: "gridcell", class: "mg-cell", tabindex: -1, "aria-label": made.label,
            "aria-selected": "false", onclick: () => move(r, c, true), ...made.attrs,
          }, made.content);
        all[r].push(made === null ? null : node);
        line.append(node);
      }
      element.append(line);
    }
    function mark() {
      for (const line of all) {
        for (const node of line) if (node) { node.tabIndex = -1; node.setAttribute("aria-selected", "false"); }
      }
      const node = all[row][col];
      node.tabIndex = 0;
      node.setAttribute("aria-selected", "true");
    }
    function move(r, c, pick) {
      if (!all[r] || !all[r][c]) return;
      row = r;
      col = c;
      mark();
      all[r][c].focus();
      if (pick || follow) onselect(r, c);
    }
    element.addEventListener("keydown", (event) => {
      const to = {
        ArrowLeft: [row, col - 1], ArrowRight: [row, col + 1],
        ArrowUp: [row - 1, col], ArrowDown: [row + 1, col],
        Home: [event.ctrlKey ? 0 : row, 0],
        End: [event.ctrlKey ? rows - 1 : row, cols - 1],
      }[event.key];
      if (to) {
        event.preventDefault();
        move(to[0], to[1], false);
      } else if (event.key === " " || event.key === "Enter") {
        event.preventDefault();
        onselect(row, col);
      }
    });
    mark();
    return {
      element,
      at: (r, c) => all[r] && all[r][c],
      set(r, c) { row = r; col = c; mark(); },
    };
  }

  function draw(node) {
    const kind = kinds.get(node.dataset.kind);
    if (!kind || node.dataset.ready) return;
    node.dataset.ready = "yes";
    const stage = node.querySelector(".mg-fig-stage");
    const live = el("p", { class: "mg-hidden", role: "status" });
    const inner = el("div", { class: "mg-fig-inner" });
    const ui = {
      el, svg, unique, group, bytes, choice, stepper, readout, cells,
      say: (text) => { live.textContent = text; },
    };
    try {
      kind(inner, JSON.parse(node.querySelector(".mg-fig-data").textContent), ui);
      stage.replaceChildren(inner, live); // only now: a figure that fails keeps its static form
    } catch (error) {
      console.error(`figure ${node.dataset.kind}:`, error);
    }
  }

  function start() {
    document.querySelectorAll("figure.mg-fig").forEach(draw);
  }

  window.mlsysViz = {
    start,
    register(kind, make) {
      kinds.set(kind, make);
      if (document.readyState !== "loading") start();
    },
  };
  document.addEventListener("DOMContentLoaded", start);
})();
