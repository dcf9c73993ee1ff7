// The arithmetic of the lesson: one query's scores through scale, mask and softmax, and what is left of a gradient.

export const AS_IT_IS = { scale: true, mask: true, temperature: 1 };

// `data` is what `lesson` takes; the result has an array over keys for each step, and three numbers about the weights.
export function stepsOf(data, { scale, mask, temperature }) {
  const { scores, allowed, bias, softcap } = data;
  const factor = scale ? data.scale : 1;
  const logits = Float64Array.from(scores, (score, key) => {
    const scaled = score * factor;
    const capped = softcap ? softcap * Math.tanh(scaled / softcap) : scaled;
    return (capped + (bias ? bias[key] : 0)) / temperature;
  });
  const masked = logits.map((logit, key) => (mask && !allowed[key] ? -Infinity : logit));
  const weights = softmax(masked, Number.isFinite(data.sink) ? data.sink / temperature : -Infinity);
  const weighted = data.norms ? weights.map((weight, key) => weight * data.norms[key]) : null;
  return { scores, logits, masked, weights, weighted, entropy: entropyOf(weights), gradient: jacobianNorm(weights), ...largest(weights) };
}

// A sink takes its share of the weight; a row with nothing to attend to gets none.
function softmax(logits, sink) {
  let top = sink;
  for (const logit of logits) if (logit > top || Number.isNaN(logit)) top = logit;
  if (top === -Infinity) return new Float64Array(logits.length);
  const raised = logits.map((logit) => Math.exp(logit - top));
  const total = raised.reduce((sum, one) => sum + one, Math.exp(sink - top));
  return raised.map((one) => one / total);
}

function entropyOf(weights) {
  return weights.reduce((sum, p) => (p > 0 ? sum - p * Math.log(p) : sum + p), 0);
}

// ‖diag(p) − p pᵀ‖, summed as `regard.checks` sums it: a weight beyond 1/2 has its pairs apart, lest they round away.
function jacobianNorm(weights) {
  let diagonal = 0, top = 0, second = 0, fourth = 0;
  for (const p of weights) {
    const square = p * p;
    diagonal += square * (1 - p) * (1 - p);
    if (p > 0.5) top = p;
    else [second, fourth] = [second + square, fourth + square * square];
  }
  return Math.sqrt(diagonal + 2 * top * top * second + Math.max(0, second * second - fourth));
}

function largest(weights) {
  let key = -1, weight = 0;
  weights.forEach((p, at) => p > weight && ([key, weight] = [at, p]));
  return { largest: weight, largestKey: key };
}
