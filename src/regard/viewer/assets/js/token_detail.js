// The numbers of the chosen token, and the table of its strongest keys or readers.

import { element, fact, tokenElement, visible } from "./dom.js";
import { allowedCount } from "./links.js";
import { PRECISION, countText, numberText, plural, weightText } from "./numbers.js";

const ROWS = 8, CONTEXT = 3;

export function createTokenDetail(view, store) {
  const facts = element("dl", { class: "facts" });
  const stand = element("p", { class: "stand-in", dir: "ltr", hidden: true });
  const head = element("thead"), body = element("tbody"), foot = element("tfoot");
  const node = element("div", {}, facts, element("div", { class: "links" }, stand, element("table", {}, head, body, foot)));

  // `shown` is the query whose keys the links are: where those of the chosen token are not kept, another's.
  function show(loaded, links, shown) {
    const { token, direction, aside } = store.get();
    const query = token - view.offset;
    const reads = direction === "reads";
    const other = reads && query >= 0 && shown !== query;
    facts.replaceChildren(...factsOf(view, loaded, token, query, reads && !other ? links : null, aside));
    stand.hidden = !other;
    if (other) stand.replaceChildren("keys not kept; showing query ", ...named(view, shown));
    const whose = direction === "received" ? ["Receives most"] : !reads ? ["Attended by"] : other ? [...named(view, shown), " attends to"] : ["It attends to"];
    const weight = direction === "received" ? "From all queries" : `Weight${view.precision ? `, ${view.precision}` : ""}`;
    const logits = reads && view.live;
    head.replaceChildren(element("tr", {}, element("th", { class: "where" }, "#"), element("th", { class: "key", dir: "ltr" }, ...whose), element("th", {}, weight), logits ? element("th", { class: "logit" }, "Logit") : null));
    const greatest = links.length ? links[0].weight : 1;
    body.replaceChildren(...links.slice(0, ROWS).map((link) => row(view, store, link, greatest)));
    foot.replaceChildren(element("tr", {}, element("td", { colspan: logits ? "4" : "3" }, below(view, loaded, direction, shown, links))));
  }

  return { node, show };
}

function sumOf(links, what) {
  return links.reduce((sum, link) => sum + what(link), 0);
}

function below(view, loaded, direction, shown, links) {
  if (direction === "received") return view.everyKey ? "The sum of what all queries put on a key." : "Means over bins of neighbouring keys.";
  return direction === "reads" ? remainder(view, loaded.mask, shown, links) : readerCount(view, links);
}

function named(view, query) {
  return [`${query + view.offset} `, tokenElement(view.name(query + view.offset))];
}

// `links` are those of the query itself, where they are at hand: its greatest weight is the first of them.
function factsOf(view, { profiles }, token, query, links, aside) {
  const about = view.everyQuery ? "" : " ≈"; // a mean over the bin that the token lies in
  const found = [];
  if (query >= 0) {
    const row = view.sampledRow(query);
    // Where the other keys share what the first one had, the row itself tells.
    const anew = view.live && aside && links;
    const entropy = anew ? sumOf(links, ({ weight }) => (weight > 0 ? -weight * Math.log(weight) : 0)) : profiles.entropy[row];
    const distance = anew ? sumOf(links, (link) => link.weight * Math.abs(link.token - token)) : profiles.distance[row];
    found.push(
      fact(`Entropy${about}`, numberText(entropy), element("small", {}, " nats")),
      fact(`Distance${about}`, numberText(distance, 1), element("small", {}, " tok")),
    );
    if (links) found.push(fact("Max weight", weightText(links[0]?.weight ?? 0)));
  }
  found.push(fact(view.everyKey ? "Received" : "Received ≈", numberText(profiles.received[view.sampledBin(token)])));
  return found;
}

// The words around a token, so that one among many of the same can be told.
function context(view, token) {
  const words = (from, to) => view.tokens.slice(Math.max(0, from), to).map((piece) => visible(piece).replace(/^##/, "")).join("");
  return `${token > CONTEXT ? "…" : ""}${words(token - CONTEXT, token)}${visible(view.name(token))}${words(token + 1, token + 1 + CONTEXT)}…`;
}

function row(view, store, { token, weight, logit }, greatest) {
  const meter = element("i");
  meter.style.width = `${Math.max(1, 62 * (greatest ? weight / greatest : 0))}%`;
  const choose = () => store.update({ token });
  return element("tr", { onclick: choose, tabindex: "0", onkeydown: (event) => event.key === "Enter" && choose() },
    element("td", { class: "where" }, String(token)),
    element("td", { class: "key", dir: "ltr" }, tokenElement(view.name(token)), element("span", { class: "context" }, context(view, token))),
    element("td", { class: "weight" }, element("div", { class: "meter" }, meter, element("span", { "data-value": weight }, weightText(weight)))),
    logit === undefined ? null : element("td", { class: "logit" }, numberText(logit)));
}

function remainder(view, mask, query, links) {
  if (query === null) return "This token is a key alone: it asks nothing here.";
  if (!links.length) return "It may attend nothing.";
  if (view.live) return remainderOfAll(links);
  const others = allowedCount(mask, query) - links.length;
  if (others <= 0) return "These are all the keys it may attend.";
  // What is left is never quite 0, only less than the codes of the weights can tell.
  const rest = Math.max(Number.MIN_VALUE, 1 - links.reduce((sum, { weight }) => sum + weight, 0));
  return `${weightText(rest)} on ${mask.exact ? "" : "at most "}${plural(others, "other key")}`;
}

// Where every key is at hand: what those below the table hold together.
function remainderOfAll(links) {
  if (links.length <= ROWS) return "These are all the keys it may attend.";
  const rest = links.slice(ROWS).reduce((sum, { weight }) => sum + weight, 0);
  return `${weightText(rest)} on ${plural(links.length - ROWS, "other key")}`;
}

function readerCount(view, links) {
  if (view.live) return `${plural(links.length, "token")} may attend it, ${weightText(links.reduce((sum, { weight }) => sum + weight, 0))} in all`;
  const queries = view.everyQuery ? view.queries : view.sampled;
  return `${plural(links.length, "token")} of ${countText(queries)} have it among their ${view.header.kept_keys} strongest keys`;
}
