// One task of the backward pass: a chunk of keys against the rows that reach it, a few groups of rows at a time.
#pragma once

#include "backward_bias.h"
#include "backward_prepare.h"
#include "backward_product.h"
#include "backward_weights.h"

namespace {
namespace gradients {

constexpr int kTogether = 2;  // groups whose products for dV and dK are one: the sums are loaded and stored once

struct BackwardRooms {
  Chunk chunk;
  RowGroup rows[kTogether];
  PartRooms part;
  Table table;
  float* row;  // [kVector][the larger of the strides]
};

inline void take_backward(const Problem& p, const BackwardWork& work, BackwardRooms& rooms, Arena& arena) {
  rooms.chunk = take_chunk(p, work.plan.chunk_keys, arena);
  for (RowGroup& r : rooms.rows) take_rows(p, r, arena);
  rooms.part.buffer = arena.take<float>(kPartKeys * kGroup);
  rooms.part.bent = arena.take<float>(p.softcap != 0 ? kPartKeys * kGroup : 0);
  rooms.table = take_table(p, work, arena);
  rooms.row = arena.take<float>(kVector * stride_of(max(p.head_dim, p.value_dim)));
}

inline std::size_t backward_scratch(const Problem& p, const BackwardWork& work) {
  Arena arena{nullptr};
  BackwardRooms rooms;
  take_backward(p, work, rooms, arena);
  return arena.used;
}

REGARD_INLINE i64* turn_of(const Problem& p, const BackwardWork& work, const Group& g) {
  return work.query_turn + (g.item * p.key_heads + g.key_head) * work.plan.groups + g.first_row / kGroup;
}

/// Wait until every chunk before this one that the group reaches has added to its dQ. False: interrupted.
inline bool await_rows(const BackwardWork& work, const Group& g, i64 first_column, const i64* turn) {
  i64 least = 0;
  for (i64 s = 0; s < g.slots; s++) {
    const Slot& b = g.bounds[s];
    const i64 end = min((i64)b.greatest_end, first_column);
    if (b.least_start < end) least = max(least, (end - 1) / work.plan.chunk_keys + 1);
  }
  return least == 0 || regard::await_turn(turn, least);
}

/// What a part of the chunk gives to one group and its bias, and what the group brings to the part.
template <int W>
inline void part_of_group(const Problem& p, const BackwardWork& work, RowGroup& r, bool cut,
                          BackwardRooms& rooms) {
  const Backward& b = *work.backward;
  differentiate<W>(p, rooms.chunk, r, cut, b.of_logits(), rooms.part);
  if (!b.of_logits()) return;
  const i64 first = rooms.chunk.first + r.first;
  if (b.grad_bias)
    add_bias_gradient<W>(p, b, r, first, min(r.last - r.first, rooms.chunk.last - first), rooms.table);
  if (p.softcap != 0) unbend<W>(r, rooms.part);
  if (b.grad_query) add_to_query<W>(p, rooms.chunk, r);
}

/// Rows that are not finite were left out of products over rows: they reach the keys that they may attend, no other.
inline void add_special_rows(const Problem& p, const BackwardWork& work, const RowGroup& r, BackwardRooms& rooms) {
  const Chunk& c = rooms.chunk;
  const i64 lanes = r.g.lanes();
  const auto add = [&](const Tensor& t, int lane, i64 dim, const float* factors, u32 none, i64 stride, float* to) {
    unpack(row_of(t, r.g.item, r.heads[lane], r.queries[lane]), dim, dim, rooms.row);
    for (i64 key = r.first; key < r.last; key++) {
      const float factor = factors[(key - r.first) * lanes + lane];
      if (bits_of<u32>(factor) == none) continue;
      for (i64 i = 0; i < dim; i++) to[key * stride + i] += factor * rooms.row[i];
    }
  };
  if (work.backward->grad_value)
    for (int s = 0; s < r.special_grads; s++)
      add(work.backward->grad_output, r.special_grad[s], p.value_dim, r.weights, kTakesNone, c.value_stride,
          c.grad_value);
  if (work.backward->grad_key)
    for (int s = 0; s < r.special_queries; s++)
      add(p.query, r.special_query[s], p.head_dim, r.slopes, 0, c.key_stride, c.grad_key);
}

/// A part of the chunk, from its key `first` to `last`, against `n` groups.
inline void part_of_chunk(const Problem& p, const BackwardWork& work, i64 first, i64 last, int n,
                          BackwardRooms& rooms) {
  Chunk& c = rooms.chunk;
  Part values[kTogether], keys[kTogether];
  i64 from = last, to = first;
  for (int i = 0; i < n; i++) {
    RowGroup& r = rooms.rows[i];
    const Reach reached = reach(r.g, c.first + first, c.first + last);
    r.first = r.last = first;
    if (!reached.empty()) {
      r.first = round_down(reached.first - c.first, kRows);
      r.last = round_up(reached.last - c.first, kRows);
      const i64 end = min(c.first + r.last, c.last);
      const bool cut = reached.cut || c.first + r.first != reached.first || end != reached.last;
      if (r.g.vectors == 1) part_of_group<1>(p, work, r, cut, rooms);
      else if (r.g.vectors == 2) part_of_group<2>(p, work, r, cut, rooms);
      else part_of_group<kColumns>(p, work, r, cut, rooms);
      from = min(from, r.first);
      to = max(to, r.last);
    }
    values[i] = {r.weights, r.live, r.g.lanes(), r.first, r.last, r.grad_rows, c.value_stride, r.g.rows};
    keys[i] = {r.slopes, r.live, r.g.lanes(), r.first, r.last, r.query_rows, c.key_stride, r.g.rows};
  }
  if (work.backward->grad_value) add_transposed(values, n, from, to, c.grad_value, c.value_stride);
  if (work.backward->grad_key) add_transposed(keys, n, from, to, c.grad_key, c.key_stride);
  for (int i = 0; i < n; i++) add_special_rows(p, work, rooms.rows[i], rooms);
}

/// The next groups below `group`, down to `least`, that reach the chunk: the last ones first, for under a causal mask
/// every chunk is reached by them, and chunks that are worked on at once follow one another group by group.
/// Returns how many were found; -1: interrupted.
inline int gather(const Problem& p, const BackwardWork& work, const BackwardTask& task, i64& group, i64 least,
                  BackwardRooms& rooms) {
  const i64 head_index = task.item * p.key_heads + task.key_head;
  int n = 0;
  while (group > least && n < kTogether) {
    group--;
    RowGroup& r = rooms.rows[n];
    for (i64 s = 0; s < r.g.slots; s++) {
      const regard::Bounds& b = work.bounds[(head_index * work.plan.groups + group) * r.g.slots + s];
      r.g.bounds[s] = {b.least_start, b.greatest_start, b.least_end, b.greatest_end};
    }
    const Reach reached = reach(r.g, rooms.chunk.first, rooms.chunk.last);
    if (reached.empty()) continue;
    place(p, r.g, task.item, task.key_head, group * kGroup, r.heads, r.queries);
    r.whole = !reached.cut && reached.first == rooms.chunk.first && reached.last == rooms.chunk.last;
    if (!p.dense || occupied(p, r.g, reached.first, reached.last)) {
      n++;
    } else if (work.backward->grad_query) {  // adds nothing, but those that come after count on its turn
      i64* turn = turn_of(p, work, r.g);
      if (!await_rows(work, r.g, rooms.chunk.first, turn)) return -1;
      regard::pass_turn(turn, task.chunk + 1);
    }
  }
  return n;
}

/// All the rows of the task. False: interrupted.
inline bool all_rows(const Problem& p, const BackwardWork& work, const BackwardTask& task, i64 first_group,
                     i64 last_group, BackwardRooms& rooms) {
  const Chunk& c = rooms.chunk;
  for (i64 group = last_group; group > first_group;) {
    if (regard::interrupted()) return false;
    const int n = gather(p, work, task, group, first_group, rooms);
    if (n < 0) return false;
    for (int i = 0; i < n; i++) begin_rows(p, work, rooms.rows[i]);
    for (i64 first = 0; first < c.last - c.first && n; first += kPartKeys)
      part_of_chunk(p, work, first, min(first + kPartKeys, c.last - c.first), n, rooms);
    if (!work.backward->grad_query) continue;
    for (int i = 0; i < n; i++) {
      const RowGroup& r = rooms.rows[i];
      i64* turn = turn_of(p, work, r.g);
      if (!await_rows(work, r.g, c.first, turn)) return false;
      end_rows(p, *work.backward, r, p.scale, rooms.row);
      regard::pass_turn(turn, task.chunk + 1);
    }
  }
  return true;
}

inline void backward(const Problem& p, const BackwardWork& work, const BackwardTask& task, void* scratch) {
  const Backward& b = *work.backward;
  const auto& plan = work.plan;
  const i64 head_index = task.item * p.key_heads + task.key_head, chunk_index = head_index * plan.chunks + task.chunk;
  const i64 first = task.chunk * plan.chunk_keys, last = min(first + plan.chunk_keys, p.n_keys);
  const i64 first_group = max(task.split * plan.split_groups, work.reached_by[chunk_index].first);
  const i64 last_group = min((task.split + 1) * plan.split_groups, work.reached_by[chunk_index].last);
  Arena arena{(char*)scratch};
  BackwardRooms rooms;
  take_backward(p, work, rooms, arena);
  begin_chunk(p, rooms.chunk, task.item, task.key_head, first, last);
  if (has_table(p, b))
    begin_table(p, work, rooms.table, task.item, first_group * kGroup, min(last_group * kGroup, p.rows()), first, last);
  if (!all_rows(p, work, task, first_group, last_group, rooms)) return;
  const i64 at = head_index * p.n_keys + first;
  i64* key_turn = work.key_turn + chunk_index;
  if (task.split > 0 && !regard::await_turn(key_turn, task.split)) return;
  if (b.grad_key)
    end_chunk(rooms.chunk.grad_key, rooms.chunk.key_stride, last - first, p.head_dim, p.scale, task.split > 0,
              b.grad_key + at * p.head_dim);
  if (b.grad_value)
    end_chunk(rooms.chunk.grad_value, rooms.chunk.value_stride, last - first, p.value_dim, 1, task.split > 0,
              b.grad_value + at * p.value_dim);
  regard::pass_turn(key_turn, task.split + 1);
  if (has_table(p, b)) {
    i64* turn = work.table_turn + (b.bias_of_heads ? task.key_head : 0);
    if (!regard::await_turn(turn, task.table_rank)) return;
    end_table(work, rooms.table, task.key_head * p.group_size());
    regard::pass_turn(turn, task.table_rank + 1);
  }
}

}  // namespace gradients
}  // namespace
