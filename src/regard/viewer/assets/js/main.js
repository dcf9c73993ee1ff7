// Puts the page together: one view, one store, and the panels that listen to it.

import { createAnswers } from "./answers.js";
import { createBar } from "./bar.js";
import { ORDERS, createGrid } from "./grid.js";
import { createHead } from "./head.js";
import { loadHead } from "./head_data.js";
import { createHelp } from "./help.js";
import { startKeyboard } from "./keyboard.js";
import { createLesson } from "./lesson_panel.js";
import { createLegend } from "./legend.js";
import { createMap } from "./map.js";
import { pageSource } from "./page_source.js";
import { createSearch } from "./search.js";
import { createStore } from "./store.js";
import { createText } from "./text.js";
import { startTheme } from "./theme.js";
import { View } from "./view.js";

startTheme();
const view = new View(pageSource());
const at = (id) => document.getElementById(id);
const store = createStore(start(view), (given, initial) => checked(view, given, initial));
const search = createSearch(view, store);
const help = createHelp(at("help"));
const answers = createAnswers(at("answers"), view, store);
const lesson = createLesson(at("lesson"), view, store);
createBar(at("bar"), view, search, help, answers, lesson);
createGrid(at("grid"), view, store);
const head = createHead(at("head"), view, store);
const map = createMap(at("head"), view, store);
const panels = [head, map, createLegend(at("head"), view, store), createText(at("text"), view, store)];
startKeyboard(view, store, { search, help, map, answers, lesson });
store.listen((_, changed) => (changed.has("layer") || changed.has("head")) && show());
show();

// Loads the chosen head; of several chosen in quick succession, only the last is shown.
async function show() {
  const { layer, head: which } = store.get();
  const loaded = await loadHead(view, layer, which);
  const now = store.get();
  if (now.layer !== layer || now.head !== which) return;
  for (const panel of panels) panel.show(loaded);
  document.body.dataset.shown = `${layer}.${which}`;
}

// Opens where something can be seen at once: at the sharpest link that is not just one to a neighbour.
function start({ calls }) {
  const best = { weight: -1, layer: 0, head: 0, token: 0 };
  calls.forEach((call, layer) => call.summary.link.forEach(([query, key, weight], head) => {
    if (weight > best.weight && Math.abs(query - key) > 2) Object.assign(best, { weight, layer, head, token: Math.max(0, query) });
  }));
  const { layer, head, token } = best;
  return { layer, head, token, direction: "reads", scale: "log", aside: false, source: "means", sort: "layer", found: null };
}

// An address that somebody typed may say anything: only what exists is taken over.
function checked(view, given, initial) {
  const among = {
    layer: (v) => Number.isInteger(v) && v >= 0 && v < view.calls.length,
    head: (v) => Number.isInteger(v) && v >= 0 && v < view.heads(valid("layer", given) ? given.layer : initial.layer),
    token: (v) => Number.isInteger(v) && v >= 0 && v < view.keys,
    direction: (v) => ["reads", "readers"].includes(v),
    scale: (v) => ["log", "root", "linear"].includes(v),
    aside: (v) => typeof v === "boolean",
    source: (v) => ["means", "keys"].includes(v) && !(v === "keys" && view.exactMap),
    sort: (v) => Object.hasOwn(ORDERS, v),
  };
  function valid(name, values) {
    return name in values && among[name](values[name]);
  }
  const kept = Object.fromEntries(Object.entries(given).filter(([name]) => valid(name, given)));
  if ("layer" in kept && !("head" in kept)) kept.head = 0;
  return kept;
}
