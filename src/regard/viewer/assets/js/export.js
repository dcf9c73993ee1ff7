// What is seen, as a file: a picture, a drawing with text that can be edited, or a table of its numbers.

import { allowedPairs, shownCells } from "./cells.js";
import { scaleOf, cssColour } from "./colour.js";
import { themeColour } from "./theme.js";

const NUMBER = 12; // significant digits

export async function save(kind, view, map, store) {
  const loaded = map.loaded(), state = store.get();
  if (!loaded) return;
  const parts = { png: savePng, svg: saveSvg, csv: saveCsv };
  const [type, content] = await parts[kind](view, map, loaded, state);
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([content], { type }));
  link.download = `regard-layer${loaded.layer}-head${loaded.head}.${kind}`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

async function savePng(view, map) {
  const copy = new OffscreenCanvas(map.canvas.width, map.canvas.height);
  const context = copy.getContext("2d");
  context.fillStyle = themeColour("--paper");
  context.fillRect(0, 0, copy.width, copy.height);
  context.drawImage(map.canvas, 0, 0);
  return ["image/png", await copy.convertToBlob({ type: "image/png" })];
}

// A rectangle a cell, so that a drawing program can take it apart.
async function saveSvg(view, map, loaded, state) {
  const { window } = map, { left, top, side } = window;
  const { pieces, peak } = map.told();
  const position = scaleOf(state.scale, peak);
  const rectangles = [];
  for (const piece of pieces) {
    if (!piece.values) continue;
    const shown = shownCells(piece, loaded.mask, state.aside);
    for (let cell = 0; cell < piece.values.length; cell++) {
      if (!shown(cell)) continue;
      const row = Math.floor(cell / piece.columns), column = cell % piece.columns;
      const x = clip(window.xOf(piece.columnEdge(column)), left, side), right = clip(window.xOf(piece.columnEdge(column + 1)), left, side);
      const y = clip(window.yOf(piece.rowEdge(row)), top, side), bottom = clip(window.yOf(piece.rowEdge(row + 1)), top, side);
      if (right > x && bottom > y) rectangles.push(`<rect x="${short(x)}" y="${short(y)}" width="${short(right - x)}" height="${short(bottom - y)}" fill="${cssColour(position(piece.values[cell]))}"/>`);
    }
  }
  const [firstQuery, lastQuery] = window.queryRange, [firstKey, lastKey] = window.keyRange;
  const labels = [];
  if (window.rowHeight >= 10) for (let query = firstQuery; query < lastQuery; query++) labels.push(`<text x="${left - 6}" y="${short(window.yOf(query + 0.5) + 3)}" text-anchor="end">${escaped(view.name(query + view.offset))}</text>`);
  if (window.columnWidth >= 10) for (let key = firstKey; key < lastKey; key++) labels.push(`<text transform="translate(${short(window.xOf(key + 0.5) + 3)} ${top + side + 6}) rotate(-90)" text-anchor="end">${escaped(view.name(key))}</text>`);
  const title = `Layer ${loaded.layer}, head ${loaded.head}: queries ${firstQuery + view.offset} to ${lastQuery - 1 + view.offset}, keys ${firstKey} to ${lastKey - 1}`;
  const size = [left + side + 20, top + side + 70].map(Math.round);
  const drawing = `<svg xmlns="http://www.w3.org/2000/svg" width="${size[0]}" height="${size[1]}" viewBox="0 0 ${size[0]} ${size[1]}" font-family="sans-serif" font-size="10">
<title>${escaped(title)}</title>
<rect width="100%" height="100%" fill="${themeColour("--paper")}"/>
<rect x="${left}" y="${top}" width="${side}" height="${side}" fill="${themeColour("--masked")}"/>
<g shape-rendering="crispEdges">
${rectangles.join("\n")}
</g>
<g fill="${themeColour("--ink")}">
<text x="${left}" y="${top - 8}">${escaped(title)}</text>
${labels.join("\n")}
</g>
</svg>
`;
  return ["image/svg+xml", drawing];
}

// A line a cell in sight: which queries and keys it holds, whose tokens they are if it is one pair, and its mean.
async function saveCsv(view, map, loaded, state) {
  const { window } = map;
  const [firstQuery, lastQuery] = window.queryRange, [firstKey, lastKey] = window.keyRange;
  const lines = ["first_query,last_query,first_key,last_key,query_token,key_token,allowed_pairs,mean_weight"];
  const { pieces, loading } = map.told();
  // Coarser pieces stand in only while finer ones are on their way.
  for (const piece of loading ? pieces.slice(-1) : pieces) {
    if (!piece.values) continue;
    const pairs = allowedPairs(piece, loaded.mask);
    for (let row = 0; row < piece.rows; row++) {
      const top = piece.rowEdge(row), bottom = piece.rowEdge(row + 1) - 1;
      if (bottom < firstQuery || top >= lastQuery) continue;
      for (let column = 0; column < piece.columns; column++) {
        const left = piece.columnEdge(column), right = piece.columnEdge(column + 1) - 1;
        if (right < firstKey || left >= lastKey) continue;
        const cell = row * piece.columns + column, value = piece.values[cell];
        if (value < 0 || !pairs[cell]) continue;
        const tokens = piece.single ? [view.name(top + view.offset), view.name(left)] : ["", ""];
        lines.push([top + view.offset, bottom + view.offset, left, right, ...tokens.map(quoted), pairs[cell], Number(value.toPrecision(NUMBER))].join());
      }
    }
  }
  return ["text/csv", `${lines.join("\n")}\n`];
}

// A token as a field: a spreadsheet must not take one for a formula.
function quoted(token) {
  const safe = /^[\s]*[=+\-@]/.test(token) || /^[\t\r]/.test(token) ? `'${token}` : token;
  return `"${safe.replace(/"/g, '""')}"`;
}

function escaped(text) {
  // Control characters and lone halves of characters may not stand in XML at all.
  return text.toWellFormed().replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f\ufffe\uffff]/g, "\ufffd").replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
}

function clip(at, start, side) {
  return Math.min(start + side, Math.max(start, at));
}

function short(number) {
  return Number(number.toFixed(2));
}
