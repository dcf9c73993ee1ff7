// The keys: what each does, for the page and for its help.

import { ordered } from "./grid.js";
import { pin } from "./maps.js";
import { toggleTheme } from "./theme.js";

export const HELP = [
  ["← →", "previous or next head"],
  ["↑ ↓", "previous or next layer"],
  ["J K", "previous or next token"],
  ["R", "what the token reads, who reads it, or what every token receives"],
  ["/", "find in the text; Enter steps on"],
  ["S", "colour scale: log, root, linear"],
  ["F", "show the map without the first token"],
  ["B", "keep this head beside the next ones"],
  ["M", "block means or strongest keys (long texts)"],
  ["+ − 0", "zoom the map in, out, back; also wheel, drag, and arrows while the map has the focus"],
  ["T", "light or dark"],
  ["A", "the answers, where some were asked for"],
  ["L", "the formula step by step, for the chosen token and head"],
  ["?", "this help"],
];

export function startKeyboard(view, store, { search, help, maps, answers, lesson }) {
  const actions = {
    ArrowLeft: () => moveHead(view, store, -1),
    ArrowRight: () => moveHead(view, store, 1),
    ArrowUp: () => moveLayer(view, store, -1),
    ArrowDown: () => moveLayer(view, store, 1),
    j: () => moveToken(view, store, -1),
    k: () => moveToken(view, store, 1),
    r: () => store.update({ direction: { reads: "readers", readers: "received", received: "reads" }[store.get().direction] }),
    b: () => pin(store),
    s: () => store.update({ scale: { log: "root", root: "linear", linear: "log" }[store.get().scale] }),
    f: () => store.update({ aside: !store.get().aside }),
    m: () => view.exactMap || view.live || store.update({ source: store.get().source === "means" ? "keys" : "means" }),
    t: toggleTheme,
    a: () => answers.open(),
    l: () => lesson.open(),
    "+": () => maps.zoom(1.5),
    "=": () => maps.zoom(1.5),
    "-": () => maps.zoom(1 / 1.5),
    0: () => maps.zoom(0),
    "/": () => search.focus(),
    "?": () => help.open(),
  };

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    if (event.target.closest("input[type=search], select")) return;
    const action = actions[event.key] ?? actions[event.key.toLowerCase()];
    if (!action) return;
    event.preventDefault();
    action();
  });
}

// In layer order arrows move through the grid; sorted, they walk the ranking.
function moveHead(view, store, by) {
  const { layer, head, sort } = store.get();
  const places = ordered(view, sort);
  const at = places.findIndex(([l, h]) => l === layer && h === head);
  const [nextLayer, nextHead] = places[Math.min(places.length - 1, Math.max(0, at + by))];
  store.update({ layer: nextLayer, head: nextHead });
}

function moveLayer(view, store, by) {
  const { layer, head } = store.get();
  const next = Math.min(view.calls.length - 1, Math.max(0, layer + by));
  store.update({ layer: next, head: Math.min(head, view.heads(next) - 1) });
}

function moveToken(view, store, by) {
  store.update({ token: Math.min(view.keys - 1, Math.max(0, store.get().token + by)) });
}
