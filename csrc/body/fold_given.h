// A row's given normalizer in a kernel's units, and a problem as one of its query heads sees it.
#pragma once

#include "../fold.h"
#include "math.h"
#include "rows.h"
#include "units.h"

namespace {
namespace folding {

using regard::Fold;
using regard::FoldBlock;
using regard::FoldKeys;
using regard::FoldPart;
using regard::FoldRows;
using regard::FoldTransposed;
using regard::kFoldRoom;
using regard::pool_of;

/// A weight is 2^(c * s + minus) * factor, and minus its logarithm in base 2 is surprise - (c * s + minus).
struct Given {
  float minus = 0, factor = 0, surprise = 0;

  Given() = default;
  /// `natural_scale` turns s into a natural logit.
  Given(float c, float natural_scale, float shift, float denominator) {
    // The shift as a score, and what rounding it in base 2 takes away or adds, which the factor gives back.
    const double base = (double)c * ((double)shift / natural_scale);
    const double off = (double)(float)base - base;
    const double divisor = denominator == 0 ? 1.0 : (double)denominator;
    minus = -(float)base;
    factor = (float)(__builtin_exp(off * kLn2) / divisor);
    surprise = (float)(__builtin_log2(divisor) - off);
  }
  /// Whether NaN or infinity has got into the row.
  REGARD_INLINE bool spoiled() const { return !(minus * 0.0f == 0.0f && factor * 0.0f == 0.0f); }
};

/// Weights of natural logits of one row, by the formula itself: the largest is then exactly 1 / denominator where nothing
/// but it makes up the shift. 0 where one is -inf.
struct RowWeights {
  float shift = 0, divisor = 1;

  RowWeights() = default;
  RowWeights(float shift_, float denominator) : shift(shift_), divisor(denominator == 0 ? 1.0f : denominator) {}
  REGARD_INLINE F of(F logits) const {
    const F weights = exp2_of((logits - splat(shift)) * splat(kLog2E)) / splat(divisor);
    return logits == splat(-kInfinity) ? splat(0.0f) : weights;
  }
};

REGARD_INLINE void store_ints(i32* p, I x) { __builtin_memcpy(p, &x, sizeof x); }

REGARD_INLINE void move_to_head(Tensor& t, i64 head) { t.data = (char*)t.data + head * t.stride[1] * size_of(t.dtype); }

/// The problem of one query head alone: as head 0, so that the rows of a group are queries one after the other.
inline Problem one_head(const Problem& p, i64 head) {
  Problem one = p;
  one.query_heads = one.key_heads = 1;
  move_to_head(one.query, head);
  move_to_head(one.key, head / p.group_size());
  if (one.intervals.starts) {
    one.intervals.starts += head * p.intervals.start_stride[1];
    one.intervals.ends += head * p.intervals.end_stride[1];
  }
  if (one.dense) one.dense += head * p.dense_stride[1];
  if (one.bias_kind != BiasKind::none) move_to_head(one.bias, head);
  one.sink_logits = nullptr;  // they are in the denominators
  one.drop_below = 0;         // weights are those before dropout
  one.value_dim = 0;
  one.first_head += head;
  return one;
}

/// That problem with some vectors in the place of values, and no keys, so that a tile of them can be copied.
inline Problem with_vectors(const Problem& one_head, const Tensor& x, i64 head, i64 dim) {
  Problem p = one_head;
  p.head_dim = 0;
  p.value = x;
  p.value_dim = dim;
  move_to_head(p.value, head);
  return p;
}

}  // namespace folding
}  // namespace
