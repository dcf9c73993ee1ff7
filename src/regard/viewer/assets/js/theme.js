// Light or dark: the system's choice until somebody makes another, which is remembered where the browser allows.

const NAME = "regard-theme";
const listeners = [];
let chosen = null;

export function onTheme(listener) {
  listeners.push(listener);
}

export function startTheme() {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  chosen = remembered();
  const follow = () => apply(chosen ?? (dark.matches ? "dark" : "light"));
  follow();
  dark.addEventListener("change", follow);
}

export function toggleTheme() {
  chosen = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  try {
    localStorage.setItem(NAME, chosen);
  } catch {
    // A page from disk may be refused its storage: then the choice lasts as long as the page.
  }
  apply(chosen);
}

export function themeColour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function remembered() {
  try {
    const theme = localStorage.getItem(NAME);
    return theme === "light" || theme === "dark" ? theme : null;
  } catch {
    return null;
  }
}

function apply(theme) {
  document.documentElement.dataset.theme = theme;
  for (const listener of listeners) listener(theme);
}
