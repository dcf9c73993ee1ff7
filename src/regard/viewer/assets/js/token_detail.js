// The numbers of the chosen token, and the table of its strongest keys or readers.

import { element, fact, tokenElement } from "./dom.js";
import { allowedCount } from "./links.js";
import { numberText, plural, weightText } from "./numbers.js";

const ROWS = 8;

export function createTokenDetail(view, store) {
  const facts = element("dl", { class: "facts" });
  const head = element("thead"), body = element("tbody"), foot = element("tfoot");
  const node = element("div", {}, facts, element("div", { class: "links" }, element("table", {}, head, body, foot)));

  function show({ data, head: which, mask }, links) {
    const { token, direction } = store.get();
    const query = token - view.offset;
    const reads = direction === "reads";
    facts.replaceChildren(...factsOf(view, data, which, token, query));
    head.replaceChildren(element("tr", {}, element("th", { class: "where" }, "#"), element("th", {}, reads ? "It attends to" : "Attended by"), element("th", {}, "Weight, exact")));
    const greatest = links.length ? links[0].weight : 1;
    body.replaceChildren(...links.slice(0, ROWS).map((link) => row(view, store, link, greatest)));
    foot.replaceChildren(element("tr", {}, element("td", { colspan: "3" }, reads ? remainder(view, mask, query, links) : readerCount(view, links))));
  }

  return { node, show };
}

function factsOf(view, data, head, token, query) {
  const about = view.everyQuery ? "" : " ≈"; // a mean over the bin that the token lies in
  const found = [];
  if (query >= 0) {
    const bin = Math.min(view.sampled - 1, Math.floor((query * view.sampled) / view.queries));
    found.push(
      fact(`Entropy${about}`, numberText(data.entropy[head][bin]), element("small", {}, " nats")),
      fact(`Distance${about}`, numberText(data.distance[head][bin], 1), element("small", {}, " tok")),
      fact("Max weight", weightText(data.weights[head][view.sampledRow(query) * data.kept] ?? 0)),
    );
  }
  const received = data.received[head];
  const bin = Math.min(received.length - 1, Math.floor((token * received.length) / view.keys));
  found.push(fact(received.length === view.keys ? "Received" : "Received ≈", numberText(received[bin])));
  return found;
}

function row(view, store, { token, weight }, greatest) {
  const meter = element("i");
  meter.style.width = `${Math.max(1, 62 * (greatest ? weight / greatest : 0))}%`;
  const choose = () => store.update({ token });
  return element("tr", { onclick: choose, tabindex: "0", onkeydown: (event) => event.key === "Enter" && choose() },
    element("td", { class: "where" }, String(token)),
    element("td", { class: "key" }, tokenElement(view.tokens[token])),
    element("td", { class: "weight" }, element("div", { class: "meter" }, meter, element("span", { "data-value": weight }, weightText(weight)))));
}

function remainder(view, mask, query, links) {
  if (query < 0) return "This token is a key alone: it asks nothing here.";
  const allowed = allowedCount(mask, view.sampledQuery(view.sampledRow(query)));
  const others = allowed - links.length;
  if (!links.length) return "It may attend nothing.";
  const nearest = view.sampledQuery(view.sampledRow(query));
  const whose = nearest === query ? "" : ` (keys of query ${nearest + view.offset}, the next one kept)`;
  if (others <= 0) return `These are all the keys it may attend.${whose}`;
  const rest = Math.max(0, 1 - links.reduce((sum, { weight }) => sum + weight, 0));
  return `${weightText(rest)} on ${mask.exact ? "" : "at most "}${plural(others, "other key")}${whose}`;
}

function readerCount(view, links) {
  const queries = view.everyQuery ? view.queries : view.sampled;
  return `${plural(links.length, "token")} of ${queries.toLocaleString("en-US")} have it among their ${view.header.kept_keys} strongest keys`;
}
