// The text, shaded by what the chosen token attends to, or by who attends to it, with the links drawn over it.

import { drawArcs } from "./arcs.js";
import { cssColour, readableOn, scaleOf } from "./colour.js";
import { NO_TEXT, element, segments, tokenElement } from "./dom.js";
import { arePieces } from "./joined.js";
import { linksOf } from "./links.js";
import { createTokenDetail } from "./token_detail.js";
import { onTheme } from "./theme.js";

const MOST_ARCS = 40, MOST_SHADED = 4000;

export function createText(root, view, store) {
  const chosen = element("h2", { "aria-live": "polite", dir: "ltr" });
  const direction = segments("Direction", [["reads", "Reads"], ["readers", "Read by"], ["received", "Received"]], (value) => store.update({ direction: value }));
  const spans = view.tokens.map((token, at) => tokenSpan(token, at, view.tokens[at + 1] ?? "", store, view.header.generated ?? Infinity));
  const words = element("div", { class: setting(view.tokens), role: "listbox", tabindex: "0", "aria-label": "Tokens" },
    spans.flatMap((span, at) => startsWord(view.tokens[at]) ? [" ", span] : span));
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("aria-hidden", "true");
  const reading = element("div", { class: "reading" }, words, svg);
  const detail = createTokenDetail(view, store);
  root.append(element("div", { class: "tools" }, chosen, direction.node), reading, detail.node);
  let loaded = null, latest = null, shaded = [], selected = null, standIn = null;

  async function refresh(scroll) {
    const state = store.get();
    direction.press(state.direction);
    chosen.replaceChildren(tokenElement(view.name(state.token)), element("span", { class: "soft" }, String(state.token)));
    if (!loaded) return;
    const asked = { loaded, state };
    latest = asked;
    select(spans[state.token], scroll);
    const found = await linksOf(view, loaded, state);
    if (latest !== asked) return; // somebody has chosen something else in the meantime
    paint(found, state);
  }

  function paint({ links, query }, state) {
    detail.show(loaded, links, query);
    const reads = state.direction === "reads", received = state.direction === "received";
    const from = reads && query !== null ? spans[query + view.offset] : selected;
    markStandIn(from === selected || received ? null : from);
    const visible = links.filter(({ token }) => !(state.aside && state.direction !== "readers" && token === 0));
    // What the first token receives would flatten the rest.
    const greatest = received ? visible.find(({ token }) => token > 0) : visible[0];
    const position = scaleOf(state.scale, greatest?.weight ?? 0);
    for (const span of shaded) span.removeAttribute("style");
    shaded = visible.slice(0, MOST_SHADED).filter(({ weight }) => position(weight) > 0).map(({ token, weight }) => {
      const at = position(weight);
      spans[token].style.backgroundColor = cssColour(at);
      spans[token].style.color = readableOn(at);
      return spans[token];
    });
    drawArcs(svg, words, from, received ? [] : visible.slice(0, MOST_ARCS).map(({ token, weight }) => [spans[token], weight]));
    root.dataset.links = `${loaded.layer}.${loaded.head} ${state.token} ${state.direction}`;
  }

  function select(span, scroll) {
    if (selected) selected.setAttribute("aria-selected", "false");
    selected = span;
    span.setAttribute("aria-selected", "true");
    words.setAttribute("aria-activedescendant", span.id);
    const top = words.offsetTop + span.offsetTop;
    if (scroll && (top < reading.scrollTop || top + span.offsetHeight > reading.scrollTop + reading.clientHeight)) {
      reading.scrollTop = top - 0.6 * reading.clientHeight;
    }
  }

  function markStandIn(span) {
    if (standIn) standIn.classList.remove("stand-in");
    standIn = span;
    if (standIn) standIn.classList.add("stand-in");
  }

  let found = new Set();
  function markFound(next) {
    for (const at of found) spans[at].classList.remove("found");
    found = new Set(next);
    for (const at of found) spans[at].classList.add("found");
  }

  new ResizeObserver(() => refresh(false)).observe(words);
  onTheme(() => refresh(false));
  store.listen((state, changed) => {
    if (changed.has("found")) markFound(state.found);
    if (["token", "direction", "scale", "aside"].some((name) => changed.has(name))) refresh(changed.has("token"));
  });
  return {
    show(next) {
      const first = !loaded;
      loaded = next;
      refresh(first);
    },
  };
}

function tokenSpan(token, at, next, store, generated) {
  const classes = [token.startsWith("##") ? "continued" : "", at >= generated ? "generated" : ""].join(" ").trim();
  const span = element("span", { id: `token-${at}`, class: classes || null, role: "option", "aria-selected": "false", title: String(at), onclick: () => store.update({ token: at }) });
  // A line break keeps its effect, and leaves a sign that can be clicked; a blank token too.
  // Of several breaks in a row only the last opens a line: blank lines would push the text out of sight.
  const pieces = (startsWord(token) ? token.slice(1) : token).split(/(\n)/).filter(Boolean);
  pieces.forEach((piece, i) => {
    if (piece !== "\n") span.append(...withBytes(piece));
    else span.append(element("i", { class: "sign" }, "↵"), (pieces[i + 1] ?? next).startsWith("\n") ? "" : "\n");
  });
  if (token === "") span.append(element("i", { class: "sign rest" }, NO_TEXT));
  return span;
}

// Bytes that are no character stand as `\xf0\x9f`, which no line may tear apart.
function withBytes(text) {
  return text.split(/((?:\\x[0-9a-f]{2})+)/).filter(Boolean).map((part) => part.startsWith("\\x") ? element("i", { class: "bytes" }, part) : part);
}

// The space before a word stays outside its element, where a line can break without tearing a mark in two.
function startsWord(token) {
  return /^ \S/.test(token);
}

// Tokens that carry their own spaces are set as they are, word pieces with a gap between words; a short text larger.
function setting(tokens) {
  return `tokens${arePieces(tokens) ? " pieces" : ""}${tokens.length < 60 ? " short" : ""}`;
}
