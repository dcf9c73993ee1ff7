// A view: its header, and the numbers of each call, decoded when first asked for.

import { binOf, binStart } from "./bins.js";
import { NO_TEXT } from "./dom.js";
import { PlaneReader, inflate } from "./format.js";

export class View {
  constructor(source) {
    this.source = source;
    this.header = source.header();
    const { tokens, queries, keys, map, sampled_queries: sampled, sampled_keys: sampledKeys, calls } = this.header;
    Object.assign(this, { tokens, queries, keys, calls, sampled, sampledKeys });
    [this.mapRows, this.mapColumns] = map;
    this.offset = keys - queries; // query i is token i + offset
    this.exactMap = this.mapRows === queries && this.mapColumns === keys;
    this.everyQuery = sampled === queries;
    this.everyKey = sampledKeys === keys;
    this.pending = new Map();
  }

  heads(layer) {
    return this.calls[layer].heads;
  }

  summary(layer, head) {
    const { entropy, first, previous, distance, link } = this.calls[layer].summary;
    const [query, key, weight] = link[head];
    return {
      entropy: entropy[head], first: first[head], previous: previous[head], distance: distance[head],
      reach: reachOf(distance[head], first[head]),
      link: { query, key, weight },
    };
  }

  // What to call a token: one without text of its own by the character that it continues.
  name(token) {
    let begun = token;
    while (begun > 0 && this.tokens[begun] === "") begun--;
    return begun === token ? this.tokens[token] : [...this.tokens[begun]].slice(-1) + NO_TEXT;
  }

  // First query or key of a map's row or column (one past the last for row = rows).
  rowEdge(row) {
    return binStart(row, this.queries, this.mapRows);
  }

  columnEdge(column) {
    return binStart(column, this.keys, this.mapColumns);
  }

  sampledQuery(row) {
    return binStart(row + 1, this.queries, this.sampled) - 1;
  }

  // The sampled row, and the bin of the profiles over queries, that holds this query.
  sampledRow(query) {
    return binOf(query, this.queries, this.sampled);
  }

  // The bin of the profiles over keys that holds this key.
  sampledBin(key) {
    return binOf(key, this.keys, this.sampledKeys);
  }

  async maps(layer) {
    const cells = this.mapRows * this.mapColumns;
    const heads = this.heads(layer);
    return this.once(`map/${layer}`, (reader) => splitHeads(reader.values(heads * cells, 1), heads));
  }

  async keysOf(layer) {
    const { kept_keys: kept, index_width: width } = this.header;
    return this.once(`keys/${layer}`, (reader) => {
      const heads = this.heads(layer);
      const rows = heads * this.sampled;
      const split = (array) => splitHeads(array, heads);
      return {
        kept,
        weights: split(reader.values(rows * kept, 1)),
        indices: split(reader.integers(rows * kept, width)),
        none: 2 ** (8 * width) - 1,
        entropy: split(reader.values(rows, Math.log(Math.max(2, this.keys)))),
        distance: split(reader.values(rows, Math.max(1, this.keys))),
        received: split(reader.values(heads * this.sampledKeys, Math.max(1, this.queries))),
      };
    });
  }

  async mask(layer, head) {
    const number = this.calls[layer].masks[head];
    const { intervals, exact } = this.header.masks[number];
    return this.once(`mask/${number}`, (reader) => {
      const count = this.queries * intervals;
      const width = this.header.index_width;
      return { intervals, exact, starts: reader.integers(count, width), ends: reader.integers(count, width) };
    });
  }

  once(name, read) {
    if (!this.pending.has(name)) {
      const decoded = this.source.blob(name).then(inflate).then((bytes) => read(new PlaneReader(bytes)));
      this.pending.set(name, decoded);
    }
    return this.pending.get(name);
  }
}

// Distance to anything but the first token, which is far away from everybody.
function reachOf(distance, first) {
  return distance === null || first === null ? null : distance * (1 - first);
}

function splitHeads(array, heads) {
  const size = heads ? array.length / heads : 0;
  return Array.from({ length: heads }, (_, head) => array.subarray(head * size, (head + 1) * size));
}
