// The tiles of a live map: which are in sight, which have come, and which are still to be asked for.

import { gridPiece } from "./piece.js";

const MOST_KEPT = 240;
const SETTLING = 40; // milliseconds that a window must stand still before its tiles are asked for

export class Tiles {
  constructor(source, view, arrived) {
    Object.assign(this, { source, view, arrived });
    this.kept = new Map(); // name to piece, the longest unseen first
    this.coming = new Map(); // name to what takes the request back
    this.wanted = new Map(); // map to the names that it wants
  }

  // Queries and keys of a cell: powers of two, so that a cell takes between one and two of the screen's pixels until it is one pair.
  cellSizes(window) {
    return [window.rowHeight, window.columnWidth].map((pixels) => 2 ** Math.max(0, Math.ceil(Math.log2(1 / (pixels * devicePixelRatio)))));
  }

  // Pieces to paint, coarse ones first to stand in for what has not come; and those of the level itself.
  inSight(loaded, window, aside) {
    const [height, width] = this.cellSizes(window);
    const names = this.namesIn(loaded, window, aside, height, width);
    const missing = names.filter(({ name }) => !this.kept.has(name));
    this.want(window, missing);
    const level = [], coarser = [];
    for (const [, piece] of this.kept) {
      if (piece.of !== of(loaded, aside)) continue;
      if (piece.height === height && piece.width === width) level.push(piece);
      else if (missing.length && piece.height >= height && piece.width >= width) coarser.push(piece);
    }
    coarser.sort((a, b) => b.height - a.height);
    for (const { name } of names) this.touch(name);
    return { pieces: [...coarser, ...level], level, loading: missing.length > 0 };
  }

  namesIn(loaded, window, aside, height, width) {
    const { tile } = this.view.header;
    const [firstQuery, lastQuery] = window.queryRange, [firstKey, lastKey] = window.keyRange;
    const found = [];
    for (let row = Math.floor(firstQuery / height / tile); row * height * tile < lastQuery; row++) {
      for (let column = Math.floor(firstKey / width / tile); column * width * tile < lastKey; column++) {
        const path = `tile/${loaded.layer}/${loaded.head}/${height}/${width}/${row}/${column}${aside ? "?aside=1" : ""}`;
        found.push({ name: path, of: of(loaded, aside), height, width, row, column, renormalised: aside });
      }
    }
    return found;
  }

  // What one map wants: asked for when it has settled; what no map wants any more is taken back.
  want(window, missing) {
    this.wanted.set(window, missing);
    const all = new Set([...this.wanted.values()].flat().map(({ name }) => name));
    for (const [name, controller] of this.coming) {
      if (!all.has(name)) controller.abort();
    }
    if (!missing.some(({ name }) => !this.coming.has(name))) return;
    clearTimeout(this.timer);
    this.timer = setTimeout(() => [...this.wanted.values()].flat().forEach((one) => this.fetch(one)), SETTLING);
  }

  // A map that is gone wants nothing.
  leave(window) {
    this.want(window, []);
    this.wanted.delete(window);
  }

  async fetch(one) {
    if (this.coming.has(one.name) || this.kept.has(one.name)) return;
    const controller = new AbortController();
    this.coming.set(one.name, controller);
    try {
      const values = await this.source.floats(one.name, controller.signal);
      this.keep(one, values);
    } catch (error) {
      if (!controller.signal.aborted) throw error;
    } finally {
      this.coming.delete(one.name);
    }
    this.arrived();
  }

  keep({ name, of: whose, height, width, row, column, renormalised }, values) {
    const { tile } = this.view.header, { queries, keys } = this.view;
    const top = row * tile * height, left = column * tile * width;
    const rows = Math.min(tile, Math.ceil((queries - top) / height)), columns = Math.min(tile, Math.ceil((keys - left) / width));
    const piece = gridPiece(this.view, values, { rows, columns, height, width, top, left, renormalised });
    this.kept.set(name, Object.assign(piece, { of: whose, height, width }));
    if (this.kept.size > MOST_KEPT) this.kept.delete(this.kept.keys().next().value);
  }

  touch(name) {
    const piece = this.kept.get(name);
    if (!piece) return;
    this.kept.delete(name);
    this.kept.set(name, piece);
  }
}

function of({ layer, head }, aside) {
  return `${layer}.${head}.${aside}`;
}
