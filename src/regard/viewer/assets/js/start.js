// Where a page opens, and which addresses it takes.

import { ORDERS } from "./grid.js";

export const PLAIN = { layer: 0, head: 0, token: 0, direction: "reads", scale: "log", aside: false, source: "means", sort: "layer", beside: "", place: "", found: null };

// Opens where something can be seen at once: at the sharpest link that is not just one to a neighbour.
export function start(view) {
  const best = { weight: -1, layer: 0, head: 0, token: 0 };
  view.calls.forEach(({ summary }, layer) => summary?.link.forEach(([query, key, weight], head) => {
    if (weight > best.weight && Math.abs(query - key) > 2) Object.assign(best, { weight, layer, head, token: Math.max(0, query) });
  }));
  // Where nobody has looked yet, the last token: it sees the most.
  const { layer, head, token } = best.weight < 0 && view.live ? { ...best, token: view.keys - 1 } : best;
  return { ...PLAIN, layer, head, token };
}

// An address that somebody typed may say anything: only what exists is taken over.
export function checked(view, given, initial) {
  const among = {
    layer: (v) => Number.isInteger(v) && v >= 0 && v < view.calls.length,
    head: (v) => Number.isInteger(v) && v >= 0 && v < view.heads(valid("layer", given) ? given.layer : initial.layer),
    token: (v) => Number.isInteger(v) && v >= 0 && v < view.keys,
    direction: (v) => ["reads", "readers", "received"].includes(v),
    scale: (v) => ["log", "root", "linear"].includes(v),
    aside: (v) => typeof v === "boolean",
    source: (v) => ["means", "keys"].includes(v) && !(v === "keys" && (view.exactMap || view.live)),
    sort: (v) => Object.hasOwn(ORDERS, v),
    beside: (v) => v === "" || exists(view, v),
    place: (v) => v === "" || /^[0-9.e-]+_[0-9.e-]+_[0-9.e-]+$/.test(v),
  };
  function valid(name, values) {
    return name in values && among[name](values[name]);
  }
  const kept = Object.fromEntries(Object.entries(given).filter(([name]) => valid(name, given)));
  if ("layer" in kept && !("head" in kept)) kept.head = 0;
  return kept;
}

function exists(view, named) {
  if (!/^\d+\.\d+$/.test(named)) return false;
  const [layer, head] = named.split(".").map(Number);
  return layer < view.calls.length && head < view.heads(layer);
}
