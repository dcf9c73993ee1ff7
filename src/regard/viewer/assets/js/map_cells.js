// Paints the cells of the large map: pieces of means or single weights, or the exact strongest keys of every query.

import { shownCells } from "./cells.js";
import { cssColour, mapImage, scaleOf } from "./colour.js";
import { themeColour } from "./theme.js";

export function paintCells(context, view, loaded, window, state, { pieces, peak }) {
  const position = scaleOf(state.scale, peak);
  context.save();
  context.beginPath();
  context.rect(window.left, window.top, window.side, window.side);
  context.clip();
  paintHatching(context, window);
  if (state.source === "keys") paintKeys(context, view, loaded, window, state, position);
  else for (const piece of pieces) paintPiece(context, view, piece, loaded.mask, window, state, position, peak);
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

// The part of a piece that is in sight, enlarged; its image is kept until something about its colours changes.
function paintPiece(context, view, piece, mask, window, { aside, scale }, position, peak) {
  if (!piece.values?.length) return;
  const name = [scale, peak, aside, document.documentElement.dataset.theme].join();
  if (piece.painted?.name !== name) {
    const picture = new OffscreenCanvas(piece.columns, piece.rows);
    picture.getContext("2d").putImageData(mapImage(piece, position, shownCells(piece, mask, aside)), 0, 0);
    piece.painted = { name, picture };
  }
  // In shares of the piece; beyond its edges there is nothing to draw.
  const share = (at, start, length) => Math.min(1, Math.max(0, (at - start) / length));
  const x0 = share(window.x * view.keys, piece.left, piece.wide), x1 = share((window.x + window.span) * view.keys, piece.left, piece.wide);
  const y0 = share(window.y * view.queries, piece.top, piece.tall), y1 = share((window.y + window.span) * view.queries, piece.top, piece.tall);
  if (x1 <= x0 || y1 <= y0) return;
  const left = window.xOf(piece.left + x0 * piece.wide), right = window.xOf(piece.left + x1 * piece.wide);
  const top = window.yOf(piece.top + y0 * piece.tall), bottom = window.yOf(piece.top + y1 * piece.tall);
  context.imageSmoothingEnabled = false;
  const { columns, rows } = piece;
  context.drawImage(piece.painted.picture, x0 * columns, y0 * rows, (x1 - x0) * columns, (y1 - y0) * rows, left, top, right - left, bottom - top);
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
