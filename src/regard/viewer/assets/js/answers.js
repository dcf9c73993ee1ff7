// The answers that were asked for: a heat map of layers by heads, the whole text as a strip, its foremost tokens.

import { cssColour, mapImage, scaleOf } from "./colour.js";
import { element, tokenElement } from "./dom.js";
import { weightText } from "./numbers.js";
import { onTheme } from "./theme.js";

const MOST_TOKENS = 8;
const MOST_BINS = 480;

export function createAnswers(dialog, view, store) {
  const given = view.header.answers ?? [];
  const painters = [];

  // What is chosen here is looked at in the page itself.
  function choose(patch) {
    dialog.close();
    store.update(patch);
  }

  dialog.append(
    element("h2", { id: "answers-title" }, "Answers"),
    ...given.map((answer) => section(view, answer, choose, painters)),
    element("form", { method: "dialog" }, element("button", { autofocus: true }, "Close")),
  );
  const paint = () => painters.forEach((one) => one());
  onTheme(paint);

  function open() {
    if (!given.length) return;
    dialog.showModal();
    dialog.scrollTop = 0;
    paint();
  }
  return { count: given.length, open };
}

function section(view, { name, title, note, heads, tokens }, choose, painters) {
  return element("section", { "data-answer": name },
    element("h3", {}, title),
    element("p", {}, note),
    element("div", { class: "shown" },
      heads ? headMap(heads, choose, painters) : null,
      tokens ? tokenBars(view, tokens, choose, painters) : null));
}

// One button a head, layers downwards, coloured up to the greatest of all.
function headMap(heads, choose, painters) {
  const peak = Math.max(0, ...heads.flat().filter((value) => value !== null));
  const cells = heads.map((row, layer) => row.map((value, head) => {
    const label = `Layer ${layer}, head ${head}: ${valueText(value)}`;
    const cell = element("button", { type: "button", title: label, "aria-label": label, onclick: () => choose({ layer, head }) });
    painters.push(() => (cell.style.background = cssColour(scaleOf("linear", peak)(value ?? 0))));
    return cell;
  }));
  const best = heads.flatMap((row, layer) => row.map((value, head) => [value ?? -1, layer, head])).sort((a, b) => b[0] - a[0])[0];
  return element("figure", {},
    element("div", { class: "cells" }, cells.map((row, layer) =>
      element("div", { class: "row" }, element("span", {}, layer % 5 === 0 ? String(layer) : ""), row))),
    element("figcaption", {}, `layers down, heads across; greatest: ${best[1]} · ${best[2]} with ${valueText(best[0])}`));
}

function tokenBars(view, tokens, choose, painters) {
  const strip = element("canvas", { class: "strip", height: 1, title: "The text from its first token to its last" });
  const bins = Math.min(MOST_BINS, tokens.length);
  const values = new Float32Array(bins);
  tokens.forEach((value, token) => {
    const bin = Math.floor((token * bins) / tokens.length);
    values[bin] = Math.max(values[bin], value ?? 0);
  });
  const peak = Math.max(...values);
  strip.width = bins;
  painters.push(() => strip.getContext("2d").putImageData(mapImage({ values, rows: 1, columns: bins }, scaleOf("log", peak), () => true), 0, 0));
  const order = tokens.map((value, token) => [value ?? 0, token]).sort((a, b) => b[0] - a[0]).slice(0, MOST_TOKENS);
  const rows = order.filter(([value]) => value > 0).map(([value, token]) => {
    const bar = element("i", {});
    bar.style.width = `${(60 * value) / peak}%`;
    return element("tr", { onclick: () => choose({ token }) },
      element("td", { class: "where" }, String(token)),
      element("td", { class: "key" }, tokenElement(view.name(token))),
      element("td", { class: "weight" }, element("div", { class: "meter" }, bar, element("span", {}, valueText(value)))));
  });
  return element("div", { class: "tokens" }, strip, element("table", {}, element("tbody", {}, rows)));
}

function valueText(value) {
  return value === null ? "–" : value >= 10 ? value.toFixed(1) : weightText(value);
}
