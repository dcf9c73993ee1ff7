// Builds elements. Text only ever enters the page through `textContent`, so no token can be markup.

export function element(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

// Stands for a token without text of its own, such as the later bytes of a character.
export const NO_TEXT = "⋯";

// Control characters and spaces as signs a reader can see; what the text says otherwise.
export function visible(token) {
  if (token === "") return NO_TEXT;
  if (token.trim() !== "") return token.replace(/\n/g, "↵").replace(/\t/g, "⇥");
  return token.replace(/\r?\n/g, "↵").replace(/\t/g, "⇥").replace(/\s/g, "␣");
}

// A token among other things: the space that many begin with is a faint dot.
export function tokenElement(token) {
  const shown = visible(token);
  const space = /^ \S/.test(shown);
  return element("span", { class: "token" }, space ? element("i", {}, "·") : null, space ? shown.slice(1) : shown);
}

// Buttons of which exactly one is pressed.
export function segments(label, options, choose) {
  const buttons = options.map(([value, text]) =>
    element("button", { type: "button", "data-value": value, "aria-pressed": "false", onclick: () => choose(value) }, text),
  );
  const node = element("div", { class: "segments", role: "group", "aria-label": label }, buttons);
  const press = (chosen) => {
    for (const button of buttons) button.setAttribute("aria-pressed", String(button.dataset.value === chosen));
  };
  return { node, press };
}

export function fact(name, ...value) {
  return element("div", {}, element("dt", {}, name), element("dd", {}, ...value));
}
