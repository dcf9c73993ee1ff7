// A map's cells: how many of a cell's pairs may attend at all, and the greatest value among those shown.

import { binOf } from "./bins.js";

const counted = new WeakMap();

// For each cell, the number of its (query, key) pairs that the mask allows.
export function allowedPairs(view, mask) {
  if (!counted.has(mask)) counted.set(mask, count(view, mask));
  return counted.get(mask);
}

export function peakOf(values, columns, aside) {
  let peak = 0;
  for (let i = 0; i < values.length; i++) {
    if (values[i] > peak && !(aside && i % columns === 0)) peak = values[i];
  }
  return peak;
}

function count(view, mask) {
  const pairs = new Uint32Array(view.mapRows * view.mapColumns);
  for (let row = 0; row < view.mapRows; row++) {
    for (let query = view.rowEdge(row); query < view.rowEdge(row + 1); query++) {
      for (let at = query * mask.intervals; at < (query + 1) * mask.intervals; at++) {
        addRun(view, pairs, row, mask.starts[at], mask.ends[at]);
      }
    }
  }
  return pairs;
}

function addRun(view, pairs, row, start, end) {
  for (let column = columnOf(view, start); column < view.mapColumns && view.columnEdge(column) < end; column++) {
    const shared = Math.min(end, view.columnEdge(column + 1)) - Math.max(start, view.columnEdge(column));
    if (shared > 0) pairs[row * view.mapColumns + column] += shared;
  }
}

// The row or column of cells in which a query or key lies.
export function rowOf(view, query) {
  return binOf(query, view.queries, view.mapRows);
}

export function columnOf(view, key) {
  return binOf(key, view.keys, view.mapColumns);
}
