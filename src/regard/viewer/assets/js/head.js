// The chosen head: its name, its numbers, and what the map beneath holds.

import { element, fact, tokenElement } from "./dom.js";
import { callName } from "./grid.js";
import { numberText, shareText, weightText } from "./numbers.js";

export function createHead(root, view) {
  const title = element("h2", { "aria-live": "polite" });
  const module = element("span", { class: "soft" });
  const facts = element("dl", { class: "facts" });
  root.append(element("div", { class: "name" }, title, module), facts);

  return {
    show({ layer, head, summary }) {
      title.textContent = `Layer ${layer}, head ${head}`;
      module.textContent = callName(view.calls[layer]);
      module.title = module.textContent;
      const { query, key, weight } = summary.link;
      const link = query < 0 ? ["–"] : [tokenElement(view.tokens[query]), " → ", tokenElement(view.tokens[key]), " ", element("small", {}, weightText(weight))];
      facts.replaceChildren(
        fact("Mean entropy", numberText(summary.entropy), element("small", {}, " nats")),
        fact("On first token", shareText(summary.first)),
        fact("On previous token", shareText(summary.previous)),
        fact("Mean distance", numberText(summary.distance, 1), element("small", {}, " tokens")),
        fact("Sharpest link", ...link),
      );
    },
  };
}
