// Gradients of the biases: what the slopes of a part's logits add to a table, or to the entries of a dense bias.
#pragma once

#include "backward_rows.h"
#include "logits.h"

namespace {
namespace gradients {

/// A task's part of the gradients of a table: one row for each head that it works on, the entries [first, last).
struct Table {
  i64 first, last, heads;
  double* sums;      // [heads][last - first]
  float* diagonals;  // of a relative table: room for the diagonals of a part

  REGARD_INLINE double& at(i64 head, i64 entry) {
    return sums[(heads == 1 ? 0 : head) * (last - first) + entry - first];
  }
};

REGARD_INLINE bool has_table(const Problem& p, const Backward& b) {
  return b.grad_bias && (p.bias_kind == BiasKind::alibi || p.bias_kind == BiasKind::relative);
}

inline Table take_table(const Problem& p, const BackwardWork& work, Arena& arena) {
  Table t{};
  if (!has_table(p, *work.backward)) return t;
  t.heads = work.backward->bias_of_heads ? p.group_size() : 1;
  t.sums = arena.take<double>(t.heads * work.table_width);
  if (p.bias_kind == BiasKind::relative) t.diagonals = arena.take<float>((kPartKeys - 1) * p.group_size() + kGroup);
  return t;
}

REGARD_INLINE i64 relative_entry(const Problem& p, i64 offset) { return min(max(offset, -p.reach), p.reach) + p.reach; }

/// Zeros in all the entries that rows [first_row, last_row) of the item and the columns [first, last) can meet.
inline void begin_table(const Problem& p, const BackwardWork& work, Table& t, i64 item, i64 first_row, i64 last_row,
                        i64 first, i64 last) {
  t.first = 0;
  t.last = last_row > first_row ? work.table_width : 0;
  if (p.bias_kind == BiasKind::relative && last_row > first_row) {
    const i64 nearest = query_position(p, item, first_row / p.group_size());
    const i64 farthest = query_position(p, item, (last_row - 1) / p.group_size());
    t.first = relative_entry(p, key_position(p, item, first) - farthest);
    t.last = relative_entry(p, key_position(p, item, last - 1) - nearest) + 1;
  }
  for (i64 i = 0; i < t.heads * (t.last - t.first); i++) t.sums[i] = 0;
}

/// Add a task's part to the gradients of all.
inline void end_table(const BackwardWork& work, const Table& t, i64 first_head) {
  const i64 n = t.last - t.first;
  for (i64 head = 0; head < t.heads; head++) {
    double* to = work.table + (work.backward->bias_of_heads ? first_head + head : 0) * work.table_width;
    for (i64 i = 0; i < n; i++) to[t.first + i] += t.sums[head * n + i];
  }
}

template <int W>
inline void add_slopes_gradient(const Problem& p, const RowGroup& r, i64 first, i64 keys, Table& t) {
  i32 away[kGroup];
  float total[kGroup];
  offsets(p, r.g, first, away);
  F sums[W] = {};
  for (i64 k = 0; k < keys; k++)
    for (int w = 0; w < W; w++) {
      const F distance = as_float(load(away + w * kVector) + splat((i32)k));
      sums[w] = fma(load(r.slopes + (k * W + w) * kVector), larger(distance, -distance), sums[w]);
    }
  for (int w = 0; w < W; w++) store(total + w * kVector, sums[w]);
  const i64 first_head = r.g.key_head * p.group_size();
  for (int lane = 0; lane < r.g.rows; lane++) t.at(r.heads[lane] - first_head, 0) -= (double)total[lane];
}

/// All pairs of a head on one diagonal share an entry. With rows r = query * group_size + head, those pairs have one
/// r - key * group_size: a key's slopes are added to sums that lie side by side as its lanes do.
template <int W>
inline void add_relative_gradient(const Problem& p, const RowGroup& r, i64 first, i64 keys, Table& t) {
  const i64 size = p.group_size(), n = (keys - 1) * size + W * kVector;
  for (i64 i = 0; i < n; i++) t.diagonals[i] = 0;
  for (i64 k = 0; k < keys; k++) {
    float* to = t.diagonals + (keys - 1 - k) * size;
    for (int w = 0; w < W; w++)
      store(to + w * kVector, load(to + w * kVector) + load(r.slopes + (k * W + w) * kVector));
  }
  // The sum at i is that of the last key's pair with row first_row + i.
  i64 query = r.g.first_row / size, head = r.g.first_row % size;
  const i64 key = key_position(p, r.g.item, first + keys - 1);
  for (i64 i = 0; i < n; i++) {
    const i64 entry = relative_entry(p, key - query_position(p, r.g.item, query));
    // Pairs of padding may lie farther out than any other; they add 0.
    t.at(head, min(max(entry, t.first), t.last - 1)) += (double)t.diagonals[i];
    if (++head == size) head = 0, query++;
  }
}

inline void add_dense_gradient(const Problem& p, const Backward& b, const RowGroup& r, i64 first, i64 keys) {
  const i64 lanes = r.g.lanes();
  float turned[kVector * kVector];
  for (i64 k = 0; k < keys; k += kVector)
    for (i64 w = 0; w < r.g.vectors; w++) {
      // Past the last key stands what an earlier part left: it is turned, and not looked at.
      transpose(r.slopes + k * lanes + w * kVector, lanes, turned, kVector);
      for (i64 j = 0; j < kVector && w * kVector + j < r.g.rows; j++) {
        const i64 lane = w * kVector + j, item = b.bias_of_items ? r.g.item : 0;
        const i64 row = (item * (b.bias_of_heads ? p.query_heads : 1) + (b.bias_of_heads ? r.heads[lane] : 0)) *
                            p.n_queries + r.queries[lane];
        float* to = b.grad_bias + row * p.n_keys + first + k;
        for (i64 i = 0; i < min(keys - k, (i64)kVector); i++) to[i] += turned[j * kVector + i];
      }
    }
}

/// What the slopes of the logits of columns [first, first + keys) give to the bias.
template <int W>
inline void add_bias_gradient(const Problem& p, const Backward& b, const RowGroup& r, i64 first, i64 keys, Table& t) {
  if (p.bias_kind == BiasKind::alibi) add_slopes_gradient<W>(p, r, first, keys, t);
  else if (p.bias_kind == BiasKind::relative) add_relative_gradient<W>(p, r, first, keys, t);
  else add_dense_gradient(p, b, r, first, keys);
}

}  // namespace gradients
}  // namespace
