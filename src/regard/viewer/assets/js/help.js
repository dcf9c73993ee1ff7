// The help: keys, and how to read the page.

import { element } from "./dom.js";
import { HELP } from "./keyboard.js";

export function createHelp(dialog) {
  dialog.append(
    element("h2", { id: "help-title" }, "How to read this page"),
    element("p", {}, "Every thumbnail is one attention head: queries down, keys across. Darker in the light theme, brighter in the dark one, means more attention; hatched cells are masked. Each head is coloured up to its own greatest weight, so the scale beside the map belongs to that head."),
    element("p", {}, "Choose a head, then a token in the text or a row of the map: lines lead to the keys it attends to most."),
    element("dl", {}, HELP.flatMap(([keys, what]) => [element("dt", {}, keys.split(" ").flatMap((key) => [element("kbd", {}, key), " "])), element("dd", {}, what)])),
    element("form", { method: "dialog" }, element("button", { autofocus: true }, "Close")),
  );
  return { open: () => dialog.showModal() };
}
