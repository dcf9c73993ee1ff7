// The end of a row: from its running maximum and sum to its normalizer.
//
// Scores are natural logits, and a weight is e^(logit - reference): exactly 1 at the largest, whatever the instruction set
// rounds where, and with room for a bias as large as floats go. The scale's size is taken after the product, its sign before.
#pragma once

#include "base.h"

namespace {

REGARD_INLINE float query_sign(const Problem& p) { return p.scale < 0 ? -1.0f : 1.0f; }

/// One row's normalizer, written where it belongs, from its running maximum and sum.
/// Returns the factor that turns its unnormalised output into the output.
REGARD_INLINE float normalise(const Problem& p, const Forward& out, i64 item, i64 head, i64 query,
                              float maximum, float sum) {
  const bool nothing = maximum == -kInfinity;
  const float reference = nothing ? 0.0f : maximum;
  float shift = reference;
  float factor = 1, total = sum;
  if (p.sink_logits) {
    const float sink = p.sink_logits[head];
    const float above = nothing ? sink : (sink > shift || sink != sink ? sink : shift);
    const float reach = above == -kInfinity ? 0.0f : above;
    const float decay = nothing ? 0.0f : __builtin_expf(shift - reach);
    total = total * decay + __builtin_expf(sink - reach);
    factor *= decay;
    shift = reach;
  }
  const i64 at = (item * p.query_heads + head) * p.n_queries + query;
  // A row that is spoiled says so in every number; +inf as its largest logit is the one that is still true.
  const float spoiled = sum != sum && maximum != kInfinity ? sum : 0.0f;
  out.maximum[at] = nothing ? (spoiled != 0 ? spoiled : -kInfinity) : maximum + spoiled;
  out.shift[at] = shift + spoiled;
  out.denominator[at] = total;
  return total == 0 ? 0.0f : factor / total;
}

}  // namespace
