// Curved links over the text, from the chosen token to the others: the wider, the greater the weight.

export function drawArcs(svg, frame, from, links) {
  const origin = { x: frame.offsetLeft, y: frame.offsetTop };
  svg.setAttribute("height", String(origin.y + frame.offsetHeight));
  svg.replaceChildren();
  const start = middle(from);
  // The weakest first, so that the strongest lie on top.
  for (const [to, weight] of [...links].reverse()) {
    if (to === from || weight <= 0) continue;
    const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
    path.setAttribute("d", curve(start, middle(to)));
    path.setAttribute("stroke-width", (0.8 + 4.2 * Math.sqrt(weight)).toFixed(2));
    path.setAttribute("stroke-opacity", (0.2 + 0.6 * Math.sqrt(weight)).toFixed(2));
    svg.append(path);
  }
}

function middle(span) {
  const box = span.getClientRects()[0] ?? span.getBoundingClientRect();
  const frame = span.closest(".reading");
  const outer = frame.getBoundingClientRect();
  return { x: box.left + box.width / 2 - outer.left, y: box.top - outer.top + frame.scrollTop + 3, height: box.height };
}

// On one line the arc rises over it; between lines it swings out to the side.
function curve(a, b) {
  const rise = 10 + Math.min(46, Math.abs(a.x - b.x) / 5 + Math.abs(a.y - b.y) / 10);
  return `M ${a.x} ${a.y} C ${a.x} ${a.y - rise}, ${b.x} ${b.y - rise}, ${b.x} ${b.y}`;
}
