// In words, which numbers of a view are exact and which are pooled.

import { PRECISION, countText, plural } from "./numbers.js";

export function describe(view, source) {
  const kept = view.header.kept_keys;
  const pooledAt = `${Math.ceil(view.queries / view.mapRows)} × ${Math.ceil(view.keys / view.mapColumns)}`;
  const map = view.exactMap ? `Every cell is one weight, ${PRECISION}.` : source === "means"
    ? `Pooled: a cell is the mean of up to ${pooledAt} weights.`
    : `Single weights, ${PRECISION}: the ${kept} strongest keys of ${view.everyQuery ? "every query" : "each query kept"}; the rest is left blank.`;
  return map + coarser(view);
}

// The same of a live view, whose cells are as large as the zoom makes them.
export function describeCells(height, width, loading, aside) {
  const what = height === 1 && width === 1 ? "Every cell is one weight." : `Pooled: a cell is the mean of up to ${height} × ${width} weights; zoom in for each.`;
  return [what, aside ? "The profiles are of whole rows." : "", loading ? "Computing…" : ""].filter(Boolean).join(" ");
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
