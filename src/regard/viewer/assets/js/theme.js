// Light or dark: the system's choice until somebody makes another.

const listeners = [];

export function onTheme(listener) {
  listeners.push(listener);
}

export function startTheme() {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  apply(dark.matches ? "dark" : "light");
  dark.addEventListener("change", () => apply(dark.matches ? "dark" : "light"));
}

export function toggleTheme() {
  apply(document.documentElement.dataset.theme === "dark" ? "light" : "dark");
}

export function themeColour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function apply(theme) {
  document.documentElement.dataset.theme = theme;
  for (const listener of listeners) listener(theme);
}
