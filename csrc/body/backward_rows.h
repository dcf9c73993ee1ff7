// A group of query rows as the backward pass needs it: query and dO both ways round, the normalizer, and dQ.
#pragma once

#include "../backward.h"
#include "backward_keys.h"
#include "backward_product.h"

namespace {
namespace gradients {

using regard::Backward;
using regard::BackwardTask;
using regard::BackwardWork;

constexpr i64 kPartKeys = 128;  // keys that are worked on at a time: one group's weights stay in the first-level cache

struct RowGroup {
  Group g;               // its query: [dim][lanes], with the sign of the scale
  float* grad_output;    // [value_dim][lanes]
  float* query_rows;     // [lanes][key stride], with zeros in rows that are not finite
  float* grad_rows;      // [lanes][value stride], likewise
  float* grad_query;     // [dim][lanes], without the scale
  float *base, *inverse, *delta;  // [lanes], see BackwardWork
  float* grad_entropy;   // [lanes], if there is one: the gradient of each pair's base - logit, whose rest is in delta
  float* weights;        // [kPartKeys][lanes]: weights after dropout; -0 for a pair that takes no part
  float* slopes;         // [kPartKeys][lanes]: gradients of logits, then of scores; 0 for such a pair
  i64 first, last;       // what the group reaches of the part at work, in multiples of kRows from the chunk's first key
  Live live[kPartKeys / kRows];  // of those keys
  bool has_entropy;      // there is a gradient of the entropy
  bool whole;            // every row may attend all of the chunk
  int special_queries, special_grads;  // how many rows are not finite, and which lanes they are
  u8 special_query[kGroup], special_grad[kGroup];
  i64 heads[kGroup], queries[kGroup];
};

inline void take_masks(const Problem& p, Group& g, Arena& arena) {
  g = Group{};
  g.slots = p.intervals.slots;
  g.starts = arena.take<i32>(g.slots * kGroup);
  g.ends = arena.take<i32>(g.slots * kGroup);
  g.bounds = arena.take<Slot>(g.slots);
}

inline void take_rows(const Problem& p, RowGroup& r, Arena& arena) {
  const i64 key_stride = stride_of(p.head_dim), value_stride = stride_of(p.value_dim);
  take_masks(p, r.g, arena);
  r.g.query = arena.take<float>(key_stride * kGroup);
  r.grad_output = arena.take<float>(value_stride * kGroup);
  r.query_rows = arena.take<float>(kGroup * key_stride);
  r.grad_rows = arena.take<float>(kGroup * value_stride);
  r.grad_query = arena.take<float>(key_stride * kGroup);
  r.base = arena.take<float>(kGroup);
  r.inverse = arena.take<float>(kGroup);
  r.delta = arena.take<float>(kGroup);
  r.grad_entropy = arena.take<float>(kGroup);
  r.weights = arena.take<float>(kPartKeys * kGroup);
  r.slopes = arena.take<float>(kPartKeys * kGroup);
}

/// Which rows the lanes of a group hold.
inline void place(const Problem& p, Group& g, i64 item, i64 key_head, i64 first_row, i64* heads, i64* queries) {
  g.item = item;
  g.key_head = key_head;
  g.first_row = first_row;
  g.rows = (int)min(p.rows() - first_row, (i64)kGroup);
  g.vectors = (g.rows + kVector - 1) / kVector;
  const i64 size = p.group_size();
  i64 query = first_row / size, head = first_row % size;
  for (int lane = 0; lane < g.rows; lane++) {
    heads[lane] = key_head * size + head;
    queries[lane] = query;
    if (++head == size) head = 0, query++;
  }
}

/// Rows of a tensor, one a lane, as they are to [dim][lanes] and, zeros for those that are not finite, to
/// [lanes][stride]. Returns how many are not finite.
inline int load_rows(const RowGroup& r, const Tensor& t, i64 dim, i64 stride, float factor, float* across, float* rows,
                     u8* special) {
  const Group& g = r.g;
  const i64 lanes = g.lanes();
  int specials = 0;
  for (int lane = 0; lane < lanes; lane++) {
    float* row = rows + lane * stride;
    if (lane >= g.rows) {
      for (i64 i = 0; i < stride; i++) row[i] = 0;
    } else if (!unpack(row_of(t, g.item, r.heads[lane], r.queries[lane]), dim, stride, row)) {
      special[specials++] = (u8)lane;
    }
  }
  for (i64 w = 0; w < g.vectors; w++)
    for (i64 i = 0; i < stride; i += kVector)
      transpose(rows + w * kVector * stride + i, stride, across + i * lanes + w * kVector, lanes);
  if (factor != 1)
    for (i64 i = 0; i < stride * g.vectors; i++)
      store(across + i * kVector, load(across + i * kVector) * splat(factor));
  for (int s = 0; s < specials; s++)
    for (i64 i = 0; i < stride; i++) rows[special[s] * stride + i] = 0;
  return specials;
}

/// Load what a placed group brings along, and begin its dQ.
inline void begin_rows(const Problem& p, const BackwardWork& work, RowGroup& r) {
  const Backward& b = *work.backward;
  Group& g = r.g;
  const i64 key_stride = stride_of(p.head_dim), value_stride = stride_of(p.value_dim);
  if (!r.whole) read_masks(p, g);
  r.has_entropy = b.grad_entropy.data != nullptr;
  r.special_queries =
      load_rows(r, p.query, p.head_dim, key_stride, query_sign(p), g.query, r.query_rows, r.special_query);
  r.special_grads = 0;
  if (p.value_dim)
    r.special_grads =
        load_rows(r, b.grad_output, p.value_dim, value_stride, 1, r.grad_output, r.grad_rows, r.special_grad);
  for (int lane = 0; lane < g.lanes(); lane++) {
    if (lane >= g.rows) {  // weighs nothing
      r.base[lane] = r.inverse[lane] = r.delta[lane] = r.grad_entropy[lane] = 0;
      continue;
    }
    const i64 at = (g.item * p.query_heads + r.heads[lane]) * p.n_queries + r.queries[lane];
    r.base[lane] = work.base[at];
    r.inverse[lane] = work.inverse[at];
    r.delta[lane] = work.delta[at];
    if (b.grad_entropy.data) {
      // d(-p log p)/dp = -log p - 1, where -log p is (base - logit) - log(inverse).
      const float gradient = *(const float*)address(b.grad_entropy, g.item, r.heads[lane], r.queries[lane]);
      r.grad_entropy[lane] = gradient;
      r.delta[lane] += gradient * (1 + __builtin_logf(r.inverse[lane]));
    }
  }
  if (b.grad_query)
    for (i64 i = 0; i < key_stride * g.vectors; i++) store(r.grad_query + i * kVector, splat(0.0f));
}

/// Add a group's dQ, times `factor`, to where it belongs. `scratch` holds kVector rows.
inline void end_rows(const Problem& p, const Backward& b, const RowGroup& r, float factor, float* scratch) {
  const Group& g = r.g;
  const i64 lanes = g.lanes(), stride = stride_of(p.head_dim);
  for (int w = 0; w < g.vectors; w++) {
    for (i64 i = 0; i < stride; i += kVector)
      transpose(r.grad_query + i * lanes + w * kVector, lanes, scratch + i, stride);
    for (int j = 0; j < kVector && w * kVector + j < g.rows; j++) {
      const int lane = w * kVector + j;
      const float* from = scratch + j * stride;
      const i64 row = (g.item * p.query_heads + r.heads[lane]) * p.n_queries + r.queries[lane];
      float* to = b.grad_query + row * p.head_dim;
      for (i64 i = 0; i < p.head_dim; i++) to[i] += from[i] * factor;
    }
  }
}

}  // namespace gradients
}  // namespace
