// A rectangle of cells with their values, and where each of them lies: what a map is painted from.

import { binOf, binStart } from "./bins.js";

// The whole of a head in `rows` x `columns` cells, with the edges of bins.
export function wholePiece(view, values, rows, columns) {
  const { queries, keys } = view;
  return {
    values, rows, columns, single: rows === queries && columns === keys, renormalised: false, shape: `whole ${rows} ${columns}`,
    top: 0, left: 0, tall: queries, wide: keys,
    rowEdge: (row) => binStart(row, queries, rows),
    columnEdge: (column) => binStart(column, keys, columns),
    rowOf: (query) => binOf(query, queries, rows),
    columnOf: (key) => binOf(key, keys, columns),
  };
}

// Cells of `height` queries and `width` keys, from the query `top` and the key `left` on; the last ones hold what is left.
export function gridPiece(view, values, { rows, columns, height, width, top = 0, left = 0, renormalised = false, shape = null }) {
  return {
    values, rows, columns, single: height === 1 && width === 1, renormalised, shape,
    top, left, tall: rows * height, wide: columns * width,
    rowEdge: (row) => Math.min(view.queries, top + row * height),
    columnEdge: (column) => Math.min(view.keys, left + column * width),
    rowOf: (query) => Math.floor((query - top) / height),
    columnOf: (key) => Math.floor((key - left) / width),
  };
}

export function holds(piece, query, key) {
  return query >= piece.top && query < piece.top + piece.tall && key >= piece.left && key < piece.left + piece.wide;
}
