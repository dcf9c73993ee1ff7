// Bins over a row of queries or keys: bin b holds the places from floor(b * length / bins) to the next bin's first.

export function binStart(bin, length, bins) {
  return Math.floor((bin * length) / bins);
}

// The bin that holds a place. Not floor(place * bins / length): that is one too low where an edge was rounded down.
export function binOf(place, length, bins) {
  return Math.floor(((place + 1) * bins - 1) / length);
}
