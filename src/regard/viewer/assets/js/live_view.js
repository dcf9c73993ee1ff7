// A view whose numbers are computed when they are looked at: the same questions as of one that lies in the page.

import { peakOf } from "./cells.js";
import { describeCells } from "./legend_text.js";
import { gridPiece, holds } from "./piece.js";
import { LiveRows } from "./live_rows.js";
import { Tiles } from "./tiles.js";
import { View, splitHeads } from "./view.js";

const SMALL = 64; // cells of a thumbnail, along either side

export class LiveView extends View {
  constructor(source, header) {
    super(source, header);
    this.live = true;
    this.precision = "";
    this.listeners = [];
    this.tiles = new Tiles(source, this, () => this.tell("tiles"));
    this.rows = new LiveRows(source, this, () => this.tell("rows"));
    this.seen = new Map(); // layer to a promise of its thumbnails
    this.lookedAt = 0;
  }

  // Hear of what has been computed in the meantime: "layers", "tiles" or "rows".
  listen(listener) {
    this.listeners.push(listener);
  }

  tell(what) {
    for (const listener of this.listeners) listener(what);
  }

  // Looks at one layer after another, so that what is asked for by hand never waits for more than one of them.
  async lookAtAll(first) {
    const order = [first, ...this.calls.keys()].filter((layer, at, all) => all.indexOf(layer) === at);
    for (const layer of order) await this.look(layer, layer === first);
  }

  look(layer, chosen) {
    if (!this.seen.has(layer)) this.seen.set(layer, this.lookNow(layer, chosen));
    return this.seen.get(layer);
  }

  async lookNow(layer, chosen) {
    const how = chosen ? "?chosen=1" : "";
    this.calls[layer].summary = await this.source.json(`summary/${layer}${how}`);
    const cells = await this.source.floats(`thumbnails/${layer}${how}`);
    this.lookedAt++;
    this.repeats = this.calls[layer].summary.induction.some((value) => value !== null);
    this.tell("layers");
    return splitHeads(cells, this.heads(layer));
  }

  async thumbnail(layer, head) {
    // Only what has been looked at anyway: the page would ask for every layer in sight at once.
    if (!this.seen.has(layer)) return null;
    const [cells, mask] = await Promise.all([this.seen.get(layer), this.mask(layer, head)]);
    const height = cellSize(this.queries), width = cellSize(this.keys);
    const shape = { height, width, rows: Math.ceil(this.queries / height), columns: Math.ceil(this.keys / width), shape: "thumbnail" };
    return { piece: gridPiece(this, cells[head], shape), mask };
  }

  async head(layer, head) {
    const [profiles, mask] = await Promise.all([this.profiles(layer, head), this.mask(layer, head), this.look(layer, true)]);
    return { layer, head, mask, profiles, summary: this.summary(layer, head) };
  }

  async profiles(layer, head) {
    const name = `profiles/${layer}/${head}`;
    if (!this.pending.has(name)) this.pending.set(name, this.source.floats(name));
    const all = await this.pending.get(name);
    const { queries, keys } = this;
    return { entropy: all.subarray(0, queries), distance: all.subarray(queries, 2 * queries), received: all.subarray(2 * queries, 2 * queries + keys) };
  }

  shown(loaded, window, { aside }) {
    const { pieces, level, loading } = this.tiles.inSight(loaded, window, aside);
    const peak = level.reduce((most, piece) => Math.max(most, (piece.peak ??= peakOf(piece, aside))), 0);
    const [height, width] = this.tiles.cellSizes(window);
    return { pieces, peak, loading, note: describeCells(height, width, loading, aside) };
  }

  // The finest piece that is there of this pair.
  pieceAt(loaded, window, { aside }, { query, key }) {
    const { pieces } = this.tiles.inSight(loaded, window, aside);
    return pieces.findLast((piece) => holds(piece, query, key)) ?? null;
  }

  async keysOfQuery(loaded, query, { aside }) {
    const row = await this.rows.row(loaded, query, aside);
    return { query, row: query, links: strongest(row.weights, (key) => key, row.logits), total: row.weights.length };
  }

  async lesson(layer, head, query) {
    const told = await this.source.json(`lesson/${layer}/${head}/${query}`);
    const numbers = (list) => list && list.map((number) => number ?? NaN);
    return { ...told, scores: numbers(told.scores), bias: numbers(told.bias), norms: numbers(told.norms) };
  }

  async readersOfKey(loaded, key, { aside }) {
    return strongest(await this.rows.column(loaded, key, aside), (query) => query + this.offset);
  }
}

function strongest(weights, tokenOf, logits) {
  const found = [];
  weights.forEach((weight, at) => weight >= 0 && found.push({ token: tokenOf(at), weight, logit: logits?.[at] }));
  return found.sort((a, b) => b.weight - a.weight || a.token - b.token);
}

function cellSize(length) {
  let size = 1;
  while (Math.ceil(length / size) > SMALL) size *= 2;
  return size;
}
