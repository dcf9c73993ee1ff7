// Paints the cells of the large map: block means, or the exact strongest keys of every query.

import { allowedPairs, peakOf } from "./cells.js";
import { cssColour, mapImage, scaleOf } from "./colour.js";
import { themeColour } from "./theme.js";

// The greatest value that the map will show: the top of its colour scale.
export function peak(view, loaded, { source, aside }) {
  if (source === "means") return peakOf(loaded.values, view.mapColumns, aside);
  const { data, head } = loaded;
  let greatest = 0;
  for (let at = 0; at < data.weights[head].length; at++) {
    if (data.weights[head][at] > greatest && !(aside && data.indices[head][at] === 0)) greatest = data.weights[head][at];
  }
  return greatest;
}

export function paintCells(context, view, loaded, window, state) {
  const position = scaleOf(state.scale, peak(view, loaded, state));
  context.save();
  context.beginPath();
  context.rect(window.left, window.top, window.side, window.side);
  context.clip();
  paintHatching(context, window);
  if (state.source === "means") paintMeans(context, view, loaded, window, state, position);
  else paintKeys(context, view, loaded, window, state, position);
  context.restore();
}

function paintHatching(context, { left, top, side }) {
  context.fillStyle = themeColour("--masked");
  context.fillRect(left, top, side, side);
  context.strokeStyle = themeColour("--hatch");
  context.lineWidth = 1;
  context.beginPath();
  for (let at = -side; at < side; at += 7) {
    context.moveTo(left + at, top + side);
    context.lineTo(left + at + side, top);
  }
  context.stroke();
}

function paintMeans(context, view, { values, mask }, window, { aside }, position) {
  if (!values.length) return;
  const { mapRows: rows, mapColumns: columns } = view;
  const pairs = allowedPairs(view, mask);
  const picture = new OffscreenCanvas(columns, rows);
  const shown = (i) => pairs[i] > 0 && !(aside && i % columns === 0);
  picture.getContext("2d").putImageData(mapImage(values, rows, columns, position, shown), 0, 0);
  context.imageSmoothingEnabled = false;
  const { x, y, span, left, top, side } = window;
  context.drawImage(picture, x * columns, y * rows, span * columns, span * rows, left, top, side, side);
}

function paintKeys(context, view, { data, head, mask }, window, { aside }, position) {
  const [firstQuery, lastQuery] = window.queryRange;
  const height = Math.max(1, window.rowHeight);
  context.fillStyle = cssColour(0);
  for (let query = firstQuery; query < lastQuery; query++) {
    for (let at = query * mask.intervals; at < (query + 1) * mask.intervals; at++) {
      const start = aside ? Math.max(1, mask.starts[at]) : mask.starts[at];
      if (mask.ends[at] > start) context.fillRect(window.xOf(start), window.yOf(query), (mask.ends[at] - start) * window.columnWidth, height);
    }
  }
  for (const at of weakestFirst(data, head)) {
    const key = data.indices[head][at];
    const row = Math.floor(at / data.kept);
    const first = row ? view.sampledQuery(row - 1) + 1 : 0;
    const last = view.sampledQuery(row) + 1;
    if (key === data.none || last <= firstQuery || first >= lastQuery || (aside && key === 0)) continue;
    context.fillStyle = cssColour(position(data.weights[head][at]));
    context.fillRect(window.xOf(key), window.yOf(first), Math.max(1.2, window.columnWidth), Math.max(1.2, (last - first) * window.rowHeight));
  }
}

const orders = new WeakMap();

// Where links are smaller than a pixel, the strong ones must end on top.
function weakestFirst(data, head) {
  const weights = data.weights[head];
  if (!orders.has(weights)) orders.set(weights, Uint32Array.from(weights.keys()).sort((a, b) => weights[a] - weights[b]));
  return orders.get(weights);
}
