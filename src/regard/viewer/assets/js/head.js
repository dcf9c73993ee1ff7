// The chosen head: its name, its numbers, and what the map beneath holds.

import { element, fact, tokenElement } from "./dom.js";
import { callName } from "./grid.js";
import { pin } from "./maps.js";
import { numberText, shareText, weightText } from "./numbers.js";

export function createHead(root, view, store) {
  const title = element("h2", { "aria-live": "polite" });
  const module = element("span", { class: "soft" });
  const facts = element("dl", { class: "facts" });
  const compare = element("button", { type: "button", class: "compare", title: "Keep this head beside the next ones (B)", onclick: () => pin(store) }, "Compare");
  root.append(element("div", { class: "name" }, title, module, compare), facts);
  const press = () => compare.setAttribute("aria-pressed", String(store.get().beside !== ""));
  store.listen(press);
  press();

  // The greatest link, which chooses its query when it is clicked.
  function sharpest({ query, key, weight }) {
    if (query < 0) return fact("Sharpest link", "–");
    const link = element("button", { type: "button", class: "link", dir: "ltr", title: "Choose this query", onclick: () => store.update({ token: query, direction: "reads" }) },
      tokenElement(view.name(query)), element("span", {}, "→"), tokenElement(view.name(key)), element("small", {}, `${query} → ${key}`));
    return fact(`Sharpest link, ${weightText(weight)}`, link);
  }

  return {
    show({ layer, head, summary }) {
      title.textContent = `Layer ${layer}, head ${head}`;
      module.textContent = callName(view.calls[layer]);
      module.title = module.textContent;
      facts.replaceChildren(...[
        fact("Entropy", numberText(summary.entropy), element("small", {}, " nats")),
        // Both are means over the queries after the first: of one token there are none.
        fact("On first", shareText(view.keys > 1 ? summary.first : null)),
        fact("On previous", shareText(view.keys > 1 ? summary.previous : null)),
        view.repeats && summary.induction !== null ? fact("Induction", shareText(summary.induction)) : null,
        fact("Distance", numberText(summary.distance, 1), element("small", {}, " tokens")),
        sharpest(summary.link),
      ].filter(Boolean));
    },
  };
}
