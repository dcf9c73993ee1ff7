// What the lesson needs of one query, read from the view's blob of scores.

export async function lessonData(view, layer, head, query) {
  const kept = view.header.lesson_queries;
  const { scale, dim, softcap, sinks, bias, value_heads: valueHeads } = view.calls[layer].lesson;
  const heads = view.heads(layer), { keys } = view;
  const read = await view.once(`lesson/${layer}`, (reader) => ({
    scores: rows(reader, heads * kept, keys),
    allowed: reader.integers(heads * kept * keys, 1),
    bias: bias ? rows(reader, heads * kept, keys) : null,
    norms: valueHeads ? rows(reader, valueHeads, keys) : null,
    sinks: sinks ? floats(reader, heads) : null,
  }));
  // The kept query of each bin is its last.
  const at = head * kept + Math.floor(((query + 1) * kept - 1) / view.queries);
  return {
    scores: read.scores(at),
    allowed: Array.from(read.allowed.subarray(at * keys, (at + 1) * keys), Boolean),
    bias: read.bias && read.bias(at),
    norms: read.norms && read.norms(Math.floor((head * valueHeads) / heads)),
    sink: read.sinks && read.sinks[head],
    scale, dim, softcap,
  };
}

// Rows of linear codes: each has its lowest number, its step, and whole steps above the lowest.
function rows(reader, count, length) {
  const low = floats(reader, count), step = floats(reader, count);
  const codes = reader.integers(count * length, 2);
  return (row) => Float64Array.from(codes.subarray(row * length, (row + 1) * length), (code) => low[row] + step[row] * code);
}

function floats(reader, count) {
  return new Float32Array(reader.integers(count, 4).buffer);
}
