// Which part of the map is in sight, and where it lies on the canvas.

const LEFT = 62, RIGHT = 48, TOP = 46, BOTTOM = 62;
export const STRIP = 26; // pixels of a profile beside the cells

export class MapWindow {
  constructor(view) {
    this.view = view;
    this.reset();
  }

  reset() {
    this.span = 1; // the share of queries and of keys in sight
    this.x = 0;
    this.y = 0;
  }

  get zoomed() {
    return this.span < 1;
  }

  // The square for the cells, within a canvas of this size.
  fit(width, height) {
    this.side = Math.max(40, Math.floor(Math.min(width - LEFT - RIGHT, height - TOP - BOTTOM)));
    this.left = LEFT + Math.floor((width - LEFT - RIGHT - this.side) / 2);
    this.top = TOP;
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
    const least = Math.min(1, 6 / Math.max(this.view.queries, this.view.keys, 1));
    const span = Math.min(1, Math.max(least, this.span / factor));
    const u = (px - this.left) / this.side, v = (py - this.top) / this.side;
    this.x += u * (this.span - span);
    this.y += v * (this.span - span);
    this.span = span;
    this.clamp();
  }

  pan(dx, dy) {
    this.x -= (dx / this.side) * this.span;
    this.y -= (dy / this.side) * this.span;
    this.clamp();
  }

  clamp() {
    this.x = Math.min(1 - this.span, Math.max(0, this.x));
    this.y = Math.min(1 - this.span, Math.max(0, this.y));
  }
}

function range(start, span, length) {
  return [Math.max(0, Math.floor(start * length)), Math.min(length, Math.ceil((start + span) * length))];
}
