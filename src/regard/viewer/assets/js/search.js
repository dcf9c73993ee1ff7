// Finds a phrase across tokens, and steps through where it stands.

import { element } from "./dom.js";
import { joined, wanted } from "./joined.js";

export function createSearch(view, store) {
  const input = element("input", { type: "search", placeholder: "Find in the text  /", "aria-label": "Find in the text", spellcheck: "false" });
  const count = element("output", { class: "soft", "aria-live": "polite" });
  const node = element("div", { class: "search", role: "search" }, count, input);
  const { text, owners, pieces } = joined(view.tokens);
  let places = [], at = -1;

  function find() {
    const phrase = wanted(input.value, pieces);
    places = [];
    for (let from = phrase ? text.indexOf(phrase) : -1; from >= 0; from = text.indexOf(phrase, from + 1)) {
      const first = owners[from];
      if (!places.length || places[places.length - 1][0] !== first) places.push([first, withRest(owners[from + phrase.length - 1])]);
    }
    at = -1;
    store.update({ found: places.flatMap(([first, last]) => Array.from({ length: last - first + 1 }, (_, i) => first + i)) });
    if (places.length) step(1);
    else count.textContent = input.value ? "not found" : "";
  }

  // A character's remaining bytes may be tokens without a text of their own: they are part of it.
  function withRest(token) {
    while (view.tokens[token + 1] === "") token++;
    return token;
  }

  function step(by) {
    if (!places.length) return;
    at = (at + by + places.length) % places.length;
    count.textContent = `${at + 1} of ${places.length}`;
    store.update({ token: places[at][1] });
  }

  input.addEventListener("input", find);
  input.addEventListener("keydown", (event) => {
    if (event.key === "Enter") step(event.shiftKey ? -1 : 1);
    if (event.key === "Escape") input.blur();
  });
  return { node, focus: () => input.select() };
}
