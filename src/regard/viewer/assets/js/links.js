// Who attends whom, among the strongest keys that the view keeps.

// What the chosen token attends to, who attends to it, or what every token receives: strongest first. `query` is
// the query whose keys the links are; a token that is a key alone has none.
export async function linksOf(view, loaded, { token, direction, aside }) {
  const query = token - view.offset;
  if (direction === "received") return { links: receivedByAll(view, loaded), query: null };
  if (direction === "readers") return { links: await view.readersOfKey(loaded, token, { aside }), query: null };
  return query < 0 ? { links: [], query: null } : view.keysOfQuery(loaded, query, { aside });
}

function receivedByAll(view, { profiles }) {
  const links = view.tokens.map((_, token) => ({ token, weight: profiles.received[view.sampledBin(token)] }));
  return links.sort((a, b) => b.weight - a.weight || a.token - b.token);
}

// The kept keys of this query, or of the one kept for its bin, strongest first; and which query that is.
export function keysOfQuery(view, data, head, query) {
  const row = view.sampledRow(query);
  const found = [];
  for (let rank = 0; rank < data.kept; rank++) {
    const key = data.indices[head][row * data.kept + rank];
    if (key === data.none) break;
    found.push({ token: key, weight: data.weights[head][row * data.kept + rank] });
  }
  return { query: view.sampledQuery(row), row, links: found };
}

// The queries that keep this key, strongest first.
export function readersOfKey(view, data, head, key) {
  const indices = data.indices[head];
  const found = [];
  for (let at = 0; at < indices.length; at++) {
    if (indices[at] !== key) continue;
    const query = view.sampledQuery(Math.floor(at / data.kept));
    found.push({ token: query + view.offset, weight: data.weights[head][at] });
  }
  return found.sort((a, b) => b.weight - a.weight || a.token - b.token);
}

// The weight of one pair if it is kept, else null.
export function keptWeight(view, data, head, query, key) {
  const row = view.sampledRow(query);
  if (view.sampledQuery(row) !== query) return null;
  for (let at = row * data.kept; at < (row + 1) * data.kept; at++) {
    if (data.indices[head][at] === key) return data.weights[head][at];
  }
  return null;
}

export function isAllowed(mask, query, key) {
  for (let at = query * mask.intervals; at < (query + 1) * mask.intervals; at++) {
    if (key >= mask.starts[at] && key < mask.ends[at]) return true;
  }
  return false;
}

export function allowedCount(mask, query) {
  let count = 0;
  for (let at = query * mask.intervals; at < (query + 1) * mask.intervals; at++) count += mask.ends[at] - mask.starts[at];
  return count;
}
