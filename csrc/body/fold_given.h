// A row's given normalizer, and a problem as one of its query heads sees it.
#pragma once

#include "../fold.h"
#include "math.h"
#include "rows.h"

namespace {
namespace folding {

using regard::Fold;
using regard::FoldBlock;
using regard::FoldKeys;
using regard::FoldPart;
using regard::FoldRows;
using regard::FoldTransposed;
using regard::kFoldRoom;

/// One row's normalizer: a weight is e^(logit - shift) * inverse, so that the largest, where nothing but it makes up
/// the shift, is exactly 1 / denominator.
struct Given {
  float shift = 0, inverse = 0;
  float surprise = 0;  // minus the logarithm of a weight is surprise - (logit - shift)

  Given() = default;
  Given(float shift_, float denominator) : shift(shift_) {
    const float divisor = denominator == 0 ? 1.0f : denominator;
    inverse = 1 / divisor;
    surprise = __builtin_logf(divisor);
  }
  /// Whether NaN or infinity has got into the row.
  REGARD_INLINE bool spoiled() const { return !(shift * 0.0f == 0.0f && inverse * 0.0f == 0.0f); }
  /// Weights of logits of this row, 0 where one is -inf.
  REGARD_INLINE F weights(F logits) const {
    const F weights = exp_of(logits - splat(shift)) * splat(inverse);
    return logits == splat(-kInfinity) ? splat(0.0f) : weights;
  }
};

/// Whether the forward pass was the one for few rows, whose products are summed in another order.
REGARD_INLINE bool few_rows(const Problem& whole) { return whole.rows() <= regard::kFewRows; }

/// The sign of the scale goes into the query, its size into the scores.
REGARD_INLINE float query_sign(const Problem& p) { return p.scale < 0 ? -1.0f : 1.0f; }

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
