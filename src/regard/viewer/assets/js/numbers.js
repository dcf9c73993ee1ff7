// Numbers in words short enough for a tooltip.

// A weight is stored as a 16-bit code, which is within 1.6e-5 of it.
export const PRECISION = "± 0.00002";

export function weightText(value) {
  if (value === 0) return "0";
  if (value < 0.00005) return "< 0.0001";
  return value < 0.01 ? value.toFixed(4) : value.toFixed(3);
}

// A weight of which every digit is known.
export function exactText(value) {
  return value === 0 || value >= 0.001 ? value.toPrecision(4) : value.toExponential(2);
}

export function shareText(value) {
  return value === null ? "–" : `${(100 * value).toFixed(value < 0.0995 ? 1 : 0)} %`;
}

export function numberText(value, digits = 2) {
  return value === null ? "–" : value === -Infinity ? "−∞" : value.toFixed(digits).replace("-", "−");
}

export function countText(value) {
  return value.toLocaleString("en-US");
}

export function plural(count, word) {
  return `${countText(count)} ${count === 1 ? word : `${word}s`.replace(/([^aeiou])ys$/, "$1ies")}`;
}
