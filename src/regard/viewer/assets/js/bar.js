// The bar at the top: what this is a view of, search, theme and help.

import { element } from "./dom.js";
import { countText, plural } from "./numbers.js";
import { toggleTheme } from "./theme.js";

export function createBar(root, view, search, help, answers, lesson) {
  const { title, model } = view.header;
  const most = Math.max(...view.calls.map((call) => call.heads));
  const { generated } = view.header;
  const written = generated == null ? "" : `, ${countText(view.keys - generated)} of them generated`;
  const size = `${plural(view.keys, "token")}${written} · ${plural(view.calls.length, "layer")} × ${plural(most, "head")}`;
  root.append(
    element("h1", { title, dir: "ltr" }, title),
    element("span", { class: "facts soft" }, model ? `${model} · ${size}` : size),
    ...(answers.count ? [element("button", { type: "button", onclick: answers.open, title: "Answers (A)" }, plural(answers.count, "answer"))] : []),
    element("button", { type: "button", onclick: lesson.open, title: "Step by step (L)" }, "Step by step"),
    search.node,
    element("button", { type: "button", onclick: toggleTheme, "aria-label": "Light or dark", title: "Light or dark (T)" }, "◐"),
    element("button", { type: "button", onclick: help.open, "aria-label": "Help", title: "Help (?)" }, "?"),
  );
}
