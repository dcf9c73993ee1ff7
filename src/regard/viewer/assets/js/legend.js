// The map's legend: the colour scale with its values, the switches, and what is exact and what is pooled.

import { allowedPairs } from "./cells.js";
import { colours, valueAt } from "./colour.js";
import { element, segments } from "./dom.js";
import { peak } from "./map_cells.js";
import { PRECISION, countText, plural, weightText } from "./numbers.js";
import { onTheme } from "./theme.js";

export function createLegend(root, view, store) {
  const bar = element("canvas", { width: 256, height: 1, "aria-hidden": "true" });
  const low = element("span", { class: "soft" }), high = element("span", { class: "soft" });
  const scale = segments("Colour scale", [["log", "Log"], ["root", "Root"], ["linear", "Linear"]], (value) => store.update({ scale: value }));
  const source = segments("Map shows", [["means", "Block means"], ["keys", `Strongest ${view.header.kept_keys} keys`]], (value) => store.update({ source: value }));
  const aside = element("input", { type: "checkbox", id: "aside", onchange: () => store.update({ aside: aside.checked }) });
  const note = element("span");
  const masked = element("span", { hidden: true }, element("i", { class: "swatch" }), "masked. ");
  root.append(
    element("div", { class: "legend" },
      element("div", { class: "bar" }, low, bar, high),
      scale.node,
      view.exactMap ? null : source.node,
      element("label", { for: "aside" }, aside, "Without first token")),
    element("p", { class: "note" }, masked, note),
  );
  let loaded = null;

  function paint() {
    const state = store.get();
    scale.press(state.scale);
    source.press(state.source);
    aside.checked = state.aside;
    note.textContent = describe(view, state.source);
    if (!loaded) return;
    masked.hidden = allowedPairs(view, loaded.mask).reduce((a, b) => a + b, 0) === view.queries * view.keys;
    const greatest = peak(view, loaded, state);
    low.textContent = state.scale === "log" ? `≤ ${weightText(valueAt("log", greatest, 0))}`.replace("≤ <", "<") : "0";
    high.textContent = weightText(greatest);
    const image = new ImageData(256, 1);
    const table = colours();
    for (let i = 0; i < 256; i++) image.data.set([table[3 * i], table[3 * i + 1], table[3 * i + 2], 255], 4 * i);
    bar.getContext("2d").putImageData(image, 0, 0);
  }

  onTheme(paint);
  store.listen(paint);
  paint();
  return {
    show(next) {
      loaded = next;
      paint();
    },
  };
}

// In words, which numbers are exact and which are pooled.
function describe(view, source) {
  const kept = view.header.kept_keys;
  const pooledAt = `${Math.ceil(view.queries / view.mapRows)} × ${Math.ceil(view.keys / view.mapColumns)}`;
  const map = view.exactMap ? `Every cell is one weight, ${PRECISION}.` : source === "means"
    ? `Pooled: a cell is the mean of up to ${pooledAt} weights.`
    : `Single weights, ${PRECISION}: the ${kept} strongest keys of ${view.everyQuery ? "every query" : "each query kept"}; the rest is left blank.`;
  return map + coarser(view);
}

// What a long text had to give up, and which of its numbers are means.
function coarser(view) {
  if (view.everyQuery && view.everyKey) return "";
  const keys = view.everyKey ? "every key" : `${countText(view.sampledKeys)} bins of ${plural(view.keys, "key")}`;
  return ` Coarser for length: strongest keys kept for ${queriesKept(view)}, received mass for ${keys}; ≈ marks the mean of a bin.`;
}

function queriesKept(view) {
  return view.everyQuery ? "every query" : `${countText(view.sampled)} of ${plural(view.queries, "query")}`;
}
