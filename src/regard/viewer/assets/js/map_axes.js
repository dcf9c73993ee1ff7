// What stands around the cells: token labels, and the profiles of entropy (right) and received mass (top).

import { binOf, binStart } from "./bins.js";
import { visible } from "./dom.js";
import { STRIP } from "./map_window.js";
import { numberText } from "./numbers.js";
import { themeColour } from "./theme.js";

const LABEL = 12; // pixels a label needs across

export function paintAxes(context, view, loaded, window, state, hover) {
  const ink = themeColour("--ink"), soft = themeColour("--soft"), accent = themeColour("--accent");
  const family = getComputedStyle(document.body).fontFamily;
  const { left, top, side } = window;
  const chosenQuery = state.token - view.offset;
  const marks = {
    row: [[chosenQuery, state.direction === "reads" ? accent : soft], ...(hover ? [[hover.query, ink]] : [])],
    column: [[state.token, state.direction === "readers" ? accent : soft], ...(hover ? [[hover.key, ink]] : [])],
  };
  context.font = `11px ${family}`;
  context.textBaseline = "middle";
  labels(window.queryRange, window.rowHeight, (query) => view.name(query + view.offset), (query) => query + view.offset, marks.row, soft,
    (text, query) => {
      const y = window.yOf(query + 0.5);
      if (y < top || y > top + side) return; // of a cell that is in sight by less than half
      context.textAlign = "right";
      context.fillText(text, left - 8, y, left - window.edge - 10);
    }, context);
  labels(window.keyRange, window.columnWidth, (key) => view.name(key), (key) => key, marks.column, soft,
    (text, key) => {
      const x = window.xOf(key + 0.5);
      if (x < left || x > left + side) return;
      context.save();
      context.translate(x, top + side + 8);
      context.rotate(-Math.PI / 2);
      context.textAlign = "right";
      context.fillText(text, 0, 0, 54);
      context.restore();
    }, context);
  paintProfiles(context, view, loaded, window, soft, family);
}

// A label for every token where there is room, else positions at round distances; the marked ones always.
function labels([first, last], size, tokenAt, positionAt, marks, soft, write, context) {
  const marked = marks.filter(([at]) => at >= first && at < last);
  const step = size >= LABEL ? 1 : roundStep(((size >= 1 ? 40 : 56) / size));
  context.fillStyle = soft;
  for (let at = first; at < last; at++) {
    if (positionAt(at) % step !== 0 || marked.some(([other]) => Math.abs(other - at) * size < LABEL)) continue;
    write(step === 1 ? short(tokenAt(at)) : String(positionAt(at)), at);
  }
  for (const [index, [at, colour]] of marked.entries()) {
    if (marked.slice(index + 1).some(([other]) => Math.abs(other - at) * size < LABEL)) continue;
    context.fillStyle = colour;
    write(short(tokenAt(at)), at);
  }
}

function paintProfiles(context, view, { profiles }, window, soft, family) {
  const { left, top, side } = window;
  const { received, entropy } = profiles;
  context.save();
  context.fillStyle = soft;
  context.font = `10px ${family}`;
  context.textAlign = "left";
  context.fillText("received, square-root scale", left, top - STRIP - 12, side);
  context.save();
  context.translate(left + side + STRIP + 14, top);
  context.rotate(Math.PI / 2);
  if (!window.narrow) context.fillText(entropyCaption(view.keys), 0, 0, side);
  context.restore();
  context.globalAlpha = 0.75;
  const bins = binsIn(window.keyRange, view.keys, received.length);
  // What the first token receives would flatten the rest: it is cut off at the top.
  const greatest = bins.reduce((most, { bin }) => (bin > 0 ? Math.max(most, received[bin]) : most), 0) || 1;
  within(context, [left, top - STRIP - 5, side, STRIP + 5], () => {
    for (const { bin, start, end } of bins) {
      const height = STRIP * Math.min(1, Math.sqrt(received[bin] / greatest));
      bar(context, window.xOf(start), top - 4 - height, (end - start) * window.columnWidth, height, "x");
    }
  });
  const most = Math.log(Math.max(2, view.keys));
  within(context, [left + side, top, STRIP + 6, side], () => {
    for (const { bin, start, end } of binsIn(window.queryRange, view.queries, entropy.length)) {
      bar(context, left + side + 4, window.yOf(start), (STRIP * entropy[bin]) / most, (end - start) * window.rowHeight, "y");
    }
  });
  context.restore();
}

function within(context, rectangle, paint) {
  context.save();
  context.beginPath();
  context.rect(...rectangle);
  context.clip();
  paint();
  context.restore();
}

function entropyCaption(keys) {
  return keys > 1 ? `entropy, full bar = ln ${keys} = ${numberText(Math.log(keys), 1)} nats` : "entropy";
}

// The bins of a profile that are in sight, each with the places it covers.
function binsIn([first, last], length, bins) {
  const found = [];
  for (let bin = binOf(first, length, bins); bin < bins && binStart(bin, length, bins) < last; bin++) {
    found.push({ bin, start: binStart(bin, length, bins), end: binStart(bin + 1, length, bins) });
  }
  return found;
}

// A bar with a hair's gap to its neighbour where there is room for one.
function bar(context, x, y, width, height, along) {
  const gap = (along === "x" ? width : height) > 4 ? 1 : 0;
  context.fillRect(x, y, along === "x" ? Math.max(0.6, width - gap) : width, along === "y" ? Math.max(0.6, height - gap) : height);
}

function short(token) {
  const text = visible(token).trim() || visible(token);
  return text.length > 12 ? `${text.slice(0, 11)}…` : text;
}

function roundStep(least) {
  const power = 10 ** Math.floor(Math.log10(least));
  return [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= least) ?? 10 * power;
}
