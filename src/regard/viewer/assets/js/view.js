// A view that lies in the page: its header, and the numbers of each call, decoded when first asked for.

import { binOf, binStart } from "./bins.js";
import { peakOf } from "./cells.js";
import { NO_TEXT } from "./dom.js";
import { PlaneReader, inflate } from "./format.js";
import { describe } from "./legend_text.js";
import { lessonData } from "./lesson_data.js";
import { keysOfQuery, readersOfKey } from "./links.js";
import { PRECISION } from "./numbers.js";
import { wholePiece } from "./piece.js";

export class View {
  constructor(source, header) {
    this.source = source;
    this.header = header;
    const { tokens, queries, keys, calls } = header;
    Object.assign(this, { tokens, queries, keys, calls });
    this.live = false;
    this.precision = PRECISION;
    this.offset = keys - queries; // query i is token i + offset
    this.sampled = header.sampled_queries ?? queries;
    this.sampledKeys = header.sampled_keys ?? keys;
    [this.mapRows, this.mapColumns] = header.map ?? [0, 0];
    this.exactMap = this.mapRows === queries && this.mapColumns === keys;
    this.lessonQueries = header.lesson_queries ?? queries; // how many queries have their steps
    this.everyQuery = this.sampled === queries;
    this.everyKey = this.sampledKeys === keys;
    this.repeats = true; // until a summary says that no token repeats
    this.pending = new Map();
  }

  heads(layer) {
    return this.calls[layer].heads;
  }

  // The numbers of a head; null where nobody has looked at its layer yet.
  summary(layer, head) {
    if (this.calls[layer].summary === null) return null;
    const { entropy, first, previous, distance, induction, link } = this.calls[layer].summary;
    const [query, key, weight] = link[head];
    return {
      entropy: entropy[head], first: first[head], previous: previous[head], distance: distance[head],
      induction: induction ? induction[head] : null,
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

  // One head as a small map.
  async thumbnail(layer, head) {
    const [maps, mask] = await Promise.all([this.maps(layer), this.mask(layer, head)]);
    return { piece: wholePiece(this, maps[head], this.mapRows, this.mapColumns), mask };
  }

  // Everything about one head: its profiles, its mask, and here its map and kept keys.
  async head(layer, head) {
    const [{ piece, mask }, data] = await Promise.all([this.thumbnail(layer, head), this.keysOf(layer)]);
    const profiles = { entropy: data.entropy[head], distance: data.distance[head], received: data.received[head] };
    return { layer, head, mask, profiles, piece, data, summary: this.summary(layer, head) };
  }

  // What the map shows of a head in this window: pieces to paint in order, the top of the scale, and in words.
  shown(loaded, window, { source, aside }) {
    const peak = source === "keys" ? keptPeak(loaded, aside) : peakOf(loaded.piece, aside);
    return { pieces: [loaded.piece], peak, note: describe(this, source) };
  }

  // The piece that the pair is painted from.
  pieceAt(loaded) {
    return loaded.piece;
  }

  // The keys of a query, strongest first, and the query that they are of.
  async keysOfQuery(loaded, query) {
    return keysOfQuery(this, loaded.data, loaded.head, query);
  }

  // The queries that attend a key, strongest first.
  async readersOfKey(loaded, key) {
    return readersOfKey(this, loaded.data, loaded.head, key);
  }

  // What the steps of a query are computed from.
  async lesson(layer, head, query) {
    return lessonData(this, layer, head, query);
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

// The greatest weight among the strongest keys that are kept.
function keptPeak({ data, head }, aside) {
  let greatest = 0;
  for (let at = 0; at < data.weights[head].length; at++) {
    if (data.weights[head][at] > greatest && !(aside && data.indices[head][at] === 0)) greatest = data.weights[head][at];
  }
  return greatest;
}

// Distance to anything but the first token, which is far away from everybody.
function reachOf(distance, first) {
  return distance === null || first === null ? null : distance * (1 - first);
}

export function splitHeads(array, heads) {
  const size = heads ? array.length / heads : 0;
  return Array.from({ length: heads }, (_, head) => array.subarray(head * size, (head + 1) * size));
}
