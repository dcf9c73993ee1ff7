// From a weight to a colour: a scale that one great weight cannot swamp, and a ramp of steady lightness.

import { onTheme, themeColour } from "./theme.js";

const STEPS = 256;
const DECADES = 3;
let ramp = null;
onTheme(() => (ramp = null));

// Position of a value in 0..1, given the greatest value that is shown.
export function scaleOf(name, peak) {
  if (!(peak > 0)) return () => 0;
  if (name === "linear") return (value) => Math.min(1, value / peak);
  if (name === "root") return (value) => Math.min(1, Math.sqrt(value / peak));
  return (value) => (value <= 0 ? 0 : Math.max(0, Math.min(1, 1 + Math.log10(value / peak) / DECADES)));
}

// The value at a position of the scale: its inverse, for the legend.
export function valueAt(name, peak, position) {
  if (name === "linear") return peak * position;
  if (name === "root") return peak * position * position;
  return peak * 10 ** (DECADES * (position - 1));
}

// 256 colours as [r, g, b] triples, of the current theme.
export function colours() {
  if (ramp === null) ramp = interpolate(themeColour("--ramp").split(",").map((stop) => parse(stop.trim())));
  return ramp;
}

export function cssColour(position) {
  const at = Math.round(position * (STEPS - 1)) * 3;
  const table = colours();
  return `rgb(${table[at]} ${table[at + 1]} ${table[at + 2]})`;
}

// Dark ink or light paper, whichever reads better on the colour at this position.
export function readableOn(position) {
  const at = Math.round(position * (STEPS - 1)) * 3;
  const table = colours();
  const luminance = (0.299 * table[at] + 0.587 * table[at + 1] + 0.114 * table[at + 2]) / 255;
  return luminance > 0.55 ? "#14181f" : "#ffffff";
}

// A piece of a map as an image: one pixel a cell, transparent where nothing may attend.
export function mapImage(piece, scale, shown) {
  const image = new ImageData(piece.columns, piece.rows);
  const table = colours();
  for (let i = 0; i < piece.rows * piece.columns; i++) {
    if (!shown(i)) continue;
    const at = Math.round(scale(piece.values[i]) * (STEPS - 1)) * 3;
    image.data.set([table[at], table[at + 1], table[at + 2], 255], 4 * i);
  }
  return image;
}

function parse(hex) {
  return [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
}

function interpolate(stops) {
  const table = new Uint8ClampedArray(3 * STEPS);
  for (let i = 0; i < STEPS; i++) {
    const place = (i / (STEPS - 1)) * (stops.length - 1);
    const left = Math.min(stops.length - 2, Math.floor(place));
    for (let c = 0; c < 3; c++) table[3 * i + c] = stops[left][c] + (place - left) * (stops[left + 1][c] - stops[left][c]);
  }
  return table;
}
