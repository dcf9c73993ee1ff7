// The help: keys, and how to read the page.

import { element } from "./dom.js";
import { HELP } from "./keyboard.js";

const SIGNS = [
  ["·", "the space that a token begins with"],
  ["↵", "a line break"],
  ["⋯", "a token without text of its own: the rest of a character begun before it"],
  ["≈", "a mean over neighbouring tokens, where a long text is kept more coarsely"],
];

export function createHelp(dialog, view) {
  dialog.append(...[
    element("h2", { id: "help-title" }, "How to read this page"),
    element("p", {}, "Every thumbnail is one attention head: queries down, keys across. Darker in the light theme, brighter in the dark one, means more attention; hatched cells are masked. Each head is coloured up to the greatest value shown of it, so the scale beside the map belongs to that head. In the map of a long text a cell is the mean of a block of pairs, of which masked ones count as 0."),
    element("p", {}, "Choose a head, then a token in the text or a row of the map: lines lead to the keys it attends to most. Far reach orders heads by mean distance × (1 − mass on the first token): the first token is far from everybody, and looking at it is no reach."),
    view.live ? element("p", {}, "Zoom into the map with the wheel: cells become finer until each is one weight, computed when it is looked at. Where a model wrote part of the text, dashed lines mark where its part begins, and its tokens are underlined.") : null,
    element("p", {}, "Induction is, over tokens that stand in the text before, the mass on what followed them there; heads that copy do that. Of a long text, 256 such tokens are asked."),
    meanings("signs", SIGNS),
    meanings("keys", HELP),
    element("form", { method: "dialog" }, element("button", { autofocus: true }, "Close")),
  ].filter(Boolean));
  return {
    open() {
      dialog.showModal();
      dialog.scrollTop = 0; // not where the button with the focus is
    },
  };
}

function meanings(name, pairs) {
  return element("dl", { class: name }, pairs.flatMap(([signs, what]) => [
    element("dt", {}, signs.split(" ").flatMap((sign) => [element("kbd", {}, sign), " "])), element("dd", {}, what)]));
}
