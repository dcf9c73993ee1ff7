// The map's legend: the colour scale with its values, the switches, and what is exact and what is pooled.

import { colours, valueAt } from "./colour.js";
import { element, segments } from "./dom.js";
import { save } from "./export.js";
import { allowedCount } from "./links.js";
import { weightText } from "./numbers.js";
import { onTheme } from "./theme.js";

export function createLegend(root, view, store, maps) {
  const bar = element("canvas", { width: 256, height: 1, "aria-hidden": "true" });
  const low = element("span", { class: "soft" }), high = element("span", { class: "soft" });
  const scale = segments("Colour scale", [["log", "Log"], ["root", "Root"], ["linear", "Linear"]], (value) => store.update({ scale: value }));
  const source = segments("Map shows", [["means", "Block means"], ["keys", `Strongest ${view.header.kept_keys} keys`]], (value) => store.update({ source: value }));
  const aside = element("input", { type: "checkbox", id: "aside", onchange: () => store.update({ aside: aside.checked }) });
  const files = ["png", "svg", "csv"].map((kind) =>
    element("button", { type: "button", "aria-label": `Save what is seen as ${kind.toUpperCase()}`, onclick: () => save(kind, view, maps.main, store) }, kind.toUpperCase()));
  const note = element("span");
  const masked = element("span", { hidden: true }, element("i", { class: "swatch" }), "masked. ");
  root.append(
    element("div", { class: "legend" },
      element("div", { class: "bar" }, low, bar, high),
      scale.node,
      view.exactMap || view.live ? null : source.node,
      element("label", { for: "aside", title: view.live ? "Renormalised: the other keys share what the first one had" : "Left blank" }, aside, "Without first token")),
    element("div", { class: "below" },
      element("p", { class: "note" }, masked, note),
      element("div", { class: "segments save", role: "group", "aria-label": "Save what is seen" }, files)),
  );
  let loaded = null;

  function press() {
    const state = store.get();
    scale.press(state.scale);
    source.press(state.source);
    aside.checked = state.aside;
  }

  // What the map has just painted: the top of its scale, and what a cell of it is.
  function paint() {
    const told = maps.main.told();
    if (!told || !loaded) return;
    const { scale: name } = store.get();
    note.textContent = told.note;
    low.textContent = name === "log" ? `≤ ${weightText(valueAt("log", told.peak, 0))}`.replace("≤ <", "<") : "0";
    high.textContent = weightText(told.peak);
  }

  function paintBar() {
    const image = new ImageData(256, 1);
    const table = colours();
    for (let i = 0; i < 256; i++) image.data.set([table[3 * i], table[3 * i + 1], table[3 * i + 2], 255], 4 * i);
    bar.getContext("2d").putImageData(image, 0, 0);
  }

  onTheme(paintBar);
  store.listen(press);
  maps.listen(paint);
  press();
  paintBar();
  return {
    show(next) {
      loaded = next;
      masked.hidden = !excludes(view, next.mask);
      paint();
    },
  };
}

const answers = new WeakMap();

// Whether a mask keeps any query from any key.
function excludes(view, mask) {
  if (!answers.has(mask)) {
    let query = 0;
    while (query < view.queries && allowedCount(mask, query) === view.keys) query++;
    answers.set(mask, query < view.queries || !mask.exact);
  }
  return answers.get(mask);
}
