// A map's cells: how many of a cell's pairs may attend at all, and the greatest value among those shown.

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
  const row = Math.min(view.mapRows - 1, Math.floor((query * view.mapRows) / view.queries));
  return row + 1 < view.mapRows && view.rowEdge(row + 1) <= query ? row + 1 : row;
}

export function columnOf(view, key) {
  const column = Math.min(view.mapColumns - 1, Math.floor((key * view.mapColumns) / view.keys));
  return column + 1 < view.mapColumns && view.columnEdge(column + 1) <= key ? column + 1 : column;
}
