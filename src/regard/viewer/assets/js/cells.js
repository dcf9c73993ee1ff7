// A piece's cells: how many of a cell's pairs may attend at all, which are shown, and the greatest value among those.

const counted = new WeakMap();

// For each cell, the number of its (query, key) pairs that the mask allows. Pieces of one shape share it.
export function allowedPairs(piece, mask) {
  if (piece.shape === null) return (piece.pairs ??= count(piece, mask));
  if (!counted.has(mask)) counted.set(mask, new Map());
  const shapes = counted.get(mask);
  if (!shapes.has(piece.shape)) shapes.set(piece.shape, count(piece, mask));
  return shapes.get(piece.shape);
}

// Whether a cell is coloured: somebody may attend there, and it is not the first key's where that is left out.
export function shownCells(piece, mask, aside) {
  const pairs = allowedPairs(piece, mask);
  const hides = aside && !piece.renormalised && piece.left === 0;
  return (i) => pairs[i] > 0 && piece.values[i] >= 0 && !(hides && i % piece.columns === 0);
}

export function peakOf(piece, aside) {
  if (!piece.values) return 0;
  const hides = aside && !piece.renormalised && piece.left === 0;
  let peak = 0;
  for (let i = 0; i < piece.values.length; i++) {
    if (piece.values[i] > peak && !(hides && i % piece.columns === 0)) peak = piece.values[i];
  }
  return peak;
}

function count(piece, mask) {
  const pairs = new Uint32Array(piece.rows * piece.columns);
  for (let row = 0; row < piece.rows; row++) {
    for (let query = piece.rowEdge(row); query < piece.rowEdge(row + 1); query++) {
      for (let at = query * mask.intervals; at < (query + 1) * mask.intervals; at++) {
        addRun(piece, pairs, row, piece.renormalised ? Math.max(1, mask.starts[at]) : mask.starts[at], mask.ends[at]);
      }
    }
  }
  return pairs;
}

function addRun(piece, pairs, row, start, end) {
  const first = Math.max(0, piece.columnOf(Math.max(start, piece.left)));
  for (let column = first; column < piece.columns && piece.columnEdge(column) < end; column++) {
    const shared = Math.min(end, piece.columnEdge(column + 1)) - Math.max(start, piece.columnEdge(column));
    if (shared > 0) pairs[row * piece.columns + column] += shared;
  }
}
