// The units in which a kernel keeps scores, and the way back to natural ones.
//
// Where nothing but the scale happens to a score, s is the raw q . k (the sign of the scale in the query), c is
// |scale| * log2 e, and a weight is 2^(c * s - c * m): scaling costs nothing. With softcap or bias s is the natural logit,
// c is log2 e, and a weight is 2^(c * (s - m)): a bias may be as large as floats go, and c times it would not be one.
#pragma once

#include "base.h"

namespace {

struct Units {
  bool natural;         // s is already a natural logit
  float c;              // to base 2
  float natural_scale;  // s times this is the natural logit
  float query_factor;   // on the query: the sign of the scale, or the scale itself where s is natural

  explicit Units(const Problem& p) {
    // A scale of 0 would turn an excluded -inf into NaN.
    natural = p.softcap != 0 || p.bias_kind != BiasKind::none || p.scale == 0;
    c = natural ? kLog2E : (float)((double)__builtin_fabsf(p.scale) * 1.44269504088896340736);
    natural_scale = natural ? 1.0f : __builtin_fabsf(p.scale);
    query_factor = p.scale < 0 ? -1.0f : 1.0f;
  }
};

/// The exponents of weights from scores: `by` is what `reference_of` made of the rows' reference.
REGARD_INLINE F exponents(const Units& units, F scores, F by) {
  return units.natural ? (scores - by) * splat(units.c) : fma(scores, splat(units.c), by);
}
REGARD_INLINE F reference_of(const Units& units, F reference) {
  return units.natural ? reference : -(reference * splat(units.c));
}

/// What a sum relative to one reference is to be multiplied by to be relative to another: in raw units the very floats that
/// the exponents were taken against, for c * m is rounded, and at large logits that is more than a rounding of the sum.
REGARD_INLINE F decay_exponent(const Units& units, F before, F after) {
  return units.natural ? (before - after) * splat(units.c) : reference_of(units, after) - reference_of(units, before);
}

/// One row's normalizer in natural units, written where it belongs, from its running maximum and sum (in `units`).
/// Returns the factor that turns its unnormalised output into the output.
REGARD_INLINE float normalise(const Problem& p, const Forward& out, const Units& units, i64 item, i64 head, i64 query,
                              float maximum, float sum) {
  const bool nothing = maximum == -kInfinity;
  const float reference = nothing ? 0.0f : maximum;
  float shift = reference * units.natural_scale;
  // The kernels took c * reference, rounded, from the exponents; the caller will take `shift`, rounded, from logits: the
  // difference, which at large logits is more than a rounding, is made up for here. It is taken in the float c, whose
  // error every score carries alike.
  const double base_2 = units.natural ? 0 : (double)(reference * units.c) - (double)units.c * reference;
  const double off = base_2 * kLn2 + ((double)units.natural_scale * reference - (double)shift);
  float factor = (float)(1 + off + off * off / 2);
  float total = sum * factor;
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
  out.maximum[at] = nothing ? (spoiled != 0 ? spoiled : -kInfinity) : maximum * units.natural_scale + spoiled;
  out.shift[at] = shift + spoiled;
  out.denominator[at] = total;
  out.logsumexp[at] = total == 0 ? -kInfinity : shift + __builtin_logf(total);
  return total == 0 ? 0.0f : factor / total;
}

}  // namespace
