// What the backward pass knows of each row before it starts: normalizer, delta, and the bounds of its group's keys.
#pragma once

#include "backward_rows.h"

namespace {
namespace gradients {

/// The row's normalizer such that weights are e^(logit - base) * inverse.
inline void weigh(float shift, float denominator, float& base, float& inverse) {
  base = shift;
  inverse = denominator == 0 ? 0.0f : 1.0f / denominator;
}

/// The sum of products of two rows of `n` numbers. `scratch` holds two rows, padded to vectors.
inline float dot(const Row& one, const Row& two, i64 n, float* scratch) {
  const i64 padded = round_up(n, kVector);
  unpack(one, n, padded, scratch);
  unpack(two, n, padded, scratch + padded);
  F total = splat(0.0f);
  for (i64 i = 0; i < padded; i += kVector) total = fma(load(scratch + i), load(scratch + padded + i), total);
  return sum(total);
}

inline std::size_t prepare_backward_scratch(const Problem& p) {
  Arena arena{nullptr};
  Group g;
  take_masks(p, g, arena);
  arena.take<float>(2 * round_up(p.value_dim, kVector));
  return arena.used;
}

/// Groups [first, last) of a key head.
inline void prepare_backward(const Problem& p, const BackwardWork& work, i64 item, i64 key_head, i64 first, i64 last,
                             void* scratch) {
  const Backward& b = *work.backward;
  Arena arena{(char*)scratch};
  Group g;
  take_masks(p, g, arena);
  float* rows = arena.take<float>(2 * round_up(p.value_dim, kVector));
  i64 heads[kGroup], queries[kGroup];
  for (i64 group = first; group < last; group++) {
    place(p, g, item, key_head, group * kGroup, heads, queries);
    read_masks(p, g);
    for (i64 s = 0; s < g.slots; s++) {
      const Slot& slot = g.bounds[s];
      work.bounds[((item * p.key_heads + key_head) * work.plan.groups + group) * g.slots + s] = {
          slot.least_start, slot.greatest_start, slot.least_end, slot.greatest_end};
    }
    for (int lane = 0; lane < g.rows; lane++) {
      const i64 head = heads[lane], query = queries[lane];
      const i64 at = (item * p.query_heads + head) * p.n_queries + query;
      weigh(b.shift[at], b.denominator[at], work.base[at], work.inverse[at]);
      float delta = 0;
      if (p.value_dim)
        delta = dot(row_of(b.grad_output, item, head, query), row_of(b.output, item, head, query), p.value_dim, rows);
      if (b.grad_logsumexp.data) delta -= *(const float*)address(b.grad_logsumexp, item, head, query);
      work.delta[at] = delta;
      if (b.grad_query)
        for (i64 i = 0; i < p.head_dim; i++) b.grad_query[at * p.head_dim + i] = 0;
    }
  }
}

}  // namespace gradients
}  // namespace
