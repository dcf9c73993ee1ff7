// Which part of the map is in sight, and where it lies on the canvas.

// Pixels beside the cells: with room for profiles, and where two maps share the width.
const WIDE = { left: 62, right: 48, top: 46, bottom: 62 };
const NARROW = { left: 46, right: 34, top: 46, bottom: 62 };
export const STRIP = 26; // pixels of a profile beside the cells

// The part in sight: the share of queries and of keys, and where it begins. Two maps may share one.
export function wholeMap() {
  return { span: 1, x: 0, y: 0 };
}

export class MapWindow {
  constructor(view, place) {
    this.view = view;
    this.place = place;
    this.narrow = false;
    this.fit(0, 0);
  }

  get span() {
    return this.place.span;
  }

  get x() {
    return this.place.x;
  }

  get y() {
    return this.place.y;
  }

  reset() {
    Object.assign(this.place, wholeMap());
  }

  // The part in sight as an address holds it, and back; the empty text is the whole map.
  get text() {
    return this.span < 1 ? [this.x, this.y, this.span].map((share) => Number(share.toPrecision(7))).join("_") : "";
  }

  set text(text) {
    const [x, y, span] = text.split("_").map(Number);
    this.reset();
    if (!text || ![x, y, span].every(Number.isFinite)) return;
    this.place.span = Math.min(1, Math.max(this.least, span));
    Object.assign(this.place, { x, y });
    this.clamp();
  }

  // The square for the cells, within a canvas of this size.
  fit(width, height) {
    const margin = this.narrow ? NARROW : WIDE;
    this.side = Math.max(40, Math.floor(Math.min(width - margin.left - margin.right, height - margin.top - margin.bottom)));
    this.left = margin.left + Math.max(0, Math.floor((width - margin.left - margin.right - this.side) / 2));
    this.top = margin.top;
    this.edge = this.left - margin.left; // where the labels may begin
  }

  // The smallest share: six tokens.
  get least() {
    return Math.min(1, 6 / Math.max(this.view.queries, this.view.keys, 1));
  }

  // Pixels of one query's row and one key's column.
  get rowHeight() {
    return this.side / (this.span * this.view.queries);
  }

  get columnWidth() {
    return this.side / (this.span * this.view.keys);
  }

  yOf(query) {
    return this.top + (query - this.y * this.view.queries) * this.rowHeight;
  }

  xOf(key) {
    return this.left + (key - this.x * this.view.keys) * this.columnWidth;
  }

  // The pair under a point of the canvas, or null outside the cells.
  pairAt(px, py) {
    const { queries, keys } = this.view;
    if (px < this.left || py < this.top || px >= this.left + this.side || py >= this.top + this.side) return null;
    const query = Math.floor((py - this.top) / this.rowHeight + this.y * queries);
    const key = Math.floor((px - this.left) / this.columnWidth + this.x * keys);
    return { query: Math.min(queries - 1, query), key: Math.min(keys - 1, key) };
  }

  // The key or the query whose profile is under a point beside the cells: received above, entropy to the right.
  profileAt(px, py) {
    const beyond = px - this.left - this.side, above = this.top - py;
    if (above > 0 && above <= STRIP + 5 && px >= this.left && beyond < 0) return { key: this.pairAt(px, this.top).key };
    if (beyond >= 0 && beyond <= STRIP + 5 && above <= 0 && py < this.top + this.side) return { query: this.pairAt(this.left, py).query };
    return null;
  }

  // Queries and keys in sight, as [first, last + 1].
  get queryRange() {
    return range(this.y, this.span, this.view.queries);
  }

  get keyRange() {
    return range(this.x, this.span, this.view.keys);
  }

  zoom(factor, px = this.left + this.side / 2, py = this.top + this.side / 2) {
    const span = Math.min(1, Math.max(this.least, this.span / factor));
    const u = (px - this.left) / this.side, v = (py - this.top) / this.side;
    this.place.x += u * (this.span - span);
    this.place.y += v * (this.span - span);
    this.place.span = span;
    this.clamp();
  }

  pan(dx, dy) {
    this.place.x -= (dx / this.side) * this.span;
    this.place.y -= (dy / this.side) * this.span;
    this.clamp();
  }

  // Moves the part in sight as little as it takes to hold the middle of this row or column, null for neither.
  include(query, key) {
    const within = (start, at, length) => {
      const share = (at + 0.5) / length;
      return share < start || share > start + this.span ? share - this.span / 2 : start;
    };
    if (query !== null) this.place.y = within(this.y, query, this.view.queries);
    if (key !== null) this.place.x = within(this.x, key, this.view.keys);
    this.clamp();
  }

  clamp() {
    this.place.x = Math.min(1 - this.span, Math.max(0, this.x));
    this.place.y = Math.min(1 - this.span, Math.max(0, this.y));
  }
}

function range(start, span, length) {
  return [Math.max(0, Math.floor(start * length)), Math.min(length, Math.ceil((start + span) * length))];
}
