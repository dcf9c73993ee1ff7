// What a point of the map says when the pointer rests on it.

import { allowedPairs } from "./cells.js";
import { element, tokenElement } from "./dom.js";
import { isAllowed, keptWeight, keysOfQuery } from "./links.js";
import { PRECISION, exactText, numberText, plural, shareText, weightText } from "./numbers.js";

export function tipFor(view, loaded, window, { query, key }, state) {
  const pair = element("div", {}, tokenElement(view.name(query + view.offset)), ` ${query + view.offset} → `, tokenElement(view.name(key)), ` ${key}`);
  if (state.source === "keys") return [pair, ...keysTip(view, loaded, query, key)];
  const piece = view.pieceAt(loaded, window, state, { query, key });
  if (!piece) return [pair, element("div", {}, "being computed")];
  if (!piece.values) return [pair, element("div", {}, "masked: may not attend")];
  const row = piece.rowOf(query), column = piece.columnOf(key);
  const cell = row * piece.columns + column;
  const value = piece.values[cell];
  if (allowedPairs(piece, loaded.mask)[cell] === 0 || value < 0) return [pair, element("div", {}, piece.renormalised && key === 0 ? "left out" : "masked: may not attend")];
  if (piece.single) return [pair, ...singleTip(view, loaded, { query, key }, value, state)];
  const rows = [piece.rowEdge(row), piece.rowEdge(row + 1) - 1], columns = [piece.columnEdge(column), piece.columnEdge(column + 1) - 1];
  const width = columns[1] - columns[0] + 1;
  return [
    element("div", {}, `queries ${span(rows, view.offset)} → keys ${span(columns, 0)}`),
    element("div", {}, element("b", { "data-value": value }, weightText(value)), ` mean of ${plural((rows[1] - rows[0] + 1) * width, "pair")}`),
    element("div", {}, `${shareText(Math.min(1, value * width))} of a query's attention lies here`),
  ];
}

// One weight; of a live view its logit and rank too, as soon as its row is there.
function singleTip(view, loaded, { query, key }, value, { aside }) {
  if (!view.live) return [element("div", {}, element("b", { "data-value": value }, weightText(value)), ` ${PRECISION}`)];
  const more = view.rows.pair(loaded, query, key, aside);
  return [
    element("div", {}, element("b", { "data-value": value }, exactText(value)), aside ? " without the first key" : ""),
    element("div", { class: "more" }, more ? `logit ${numberText(more.logit, 3)} · rank ${more.rank} of ${more.among}` : "…"),
  ];
}

// What a bar of a profile says: what a key received, or the entropy of a query.
export function profileTip(view, { profiles }, { key, query }) {
  const token = key ?? query + view.offset;
  const received = key !== undefined;
  const value = received ? profiles.received[view.sampledBin(key)] : profiles.entropy[view.sampledRow(query)];
  const binned = received ? !view.everyKey : !view.everyQuery;
  return [
    element("div", {}, tokenElement(view.name(token)), ` ${token}`),
    element("div", {}, `${received ? "received" : "entropy"} ${binned ? "≈ " : ""}`, element("b", { "data-value": value }, numberText(value)), received ? "" : " nats"),
  ];
}

function keysTip(view, { data, head, mask }, query, key) {
  if (!isAllowed(mask, query, key)) return [element("div", {}, mask.exact ? "masked: may not attend" : "outside the mask's extent")];
  const weight = keptWeight(view, data, head, query, key);
  if (weight !== null) return [element("div", {}, element("b", { "data-value": weight }, weightText(weight)), ` ${PRECISION}`)];
  const { query: kept, links } = keysOfQuery(view, data, head, query);
  if (kept !== query) return [element("div", {}, `not sampled; the next query kept is ${kept + view.offset}`)];
  const least = links.length ? links[links.length - 1].weight : 0;
  return [element("div", {}, `not among its ${links.length} strongest keys: at most ${weightText(least)}`)];
}

function span([first, last], offset) {
  return first === last ? String(first + offset) : `${first + offset}–${last + offset}`;
}
