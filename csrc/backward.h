// The backward pass of a whole problem: what it reads and fills, how it is cut, and how tasks take turns.
//
// A task owns a chunk of the keys of one key head, and a share of its rows. It forms the chunk's weights again, keeps
// dK and dV of the chunk to itself until it is done, and adds the chunk's part of dQ to each row. What several tasks
// add to is added to in their order, each waiting for its turn: sums have the same bits on any number of threads.
#pragma once

#include <cstdint>

#include "problem.h"

namespace regard {

struct Kernels;

/// What the backward pass is given, and what it fills. A null pointer among the gradients: not wanted.
/// Rows are `[batch, query_heads, n_queries]`; what has no strides is contiguous.
struct Backward {
  Tensor grad_output;     // `[batch, query_heads, n_queries, value_dim]`, any strides
  Tensor output;          // what forward gave, likewise
  Tensor grad_logsumexp;  // rows, float32, any strides; null data: it has no gradient
  Tensor grad_entropy;    // likewise: of -log p_j, weighed by p_j. Not with dropout: it is of the weights before that
  const float *shift = nullptr, *denominator = nullptr;  // rows, as forward gave them
  float* grad_query = nullptr;                           // shaped like query, key and value
  float* grad_key = nullptr;
  float* grad_value = nullptr;
  float* grad_bias = nullptr;   // like the bias's parameter: `[heads]`, `[heads or 1, 2 reach + 1]` or
                                // `[batch or 1, heads or 1, queries, keys]`, holding zeros
  bool bias_of_items = false;   // the parameter is made for each item, and not for all of them
  bool bias_of_heads = false;   // likewise for each head
  float* grad_sinks = nullptr;  // `[query_heads]`

  /// Whether anything needs the gradients of logits.
  REGARD_INLINE bool of_logits() const { return grad_query || grad_key || grad_bias; }
};

/// The bounds over some rows of one slot of intervals.
struct Bounds {
  std::int32_t least_start, greatest_start, least_end, greatest_end;
};

/// Groups of rows from `first` up to `last`.
struct GroupRange {
  std::int64_t first, last;
};

/// How a problem is cut. All by its shape, for sums depend on it.
struct BackwardPlan {
  std::int64_t groups, chunk_keys, chunks;  // of one key head
  std::int64_t splits, split_groups;        // shares of its rows
};

/// What the tasks of a backward pass have in common. Tables of a key head are found at `head_index`.
struct BackwardWork {
  const Backward* backward;
  BackwardPlan plan;
  float *base, *inverse, *delta;  // rows: a weight is 2^(c * score - base) * inverse; delta is taken from its gradient
  Bounds* bounds;                 // [key heads, groups, slots]
  GroupRange* reached_by;         // [key heads, chunks]: no other groups reach the chunk
  std::int64_t* query_turn;       // [key heads, groups]: chunks that have added to dQ, up to and including the last
  std::int64_t* key_turn;         // [key heads, chunks]: shares of the rows that have added to dK and dV
  double* table;                  // gradients of slopes or of a relative table, `[heads or 1, table_width]`
  std::int64_t table_width;
  std::int64_t* table_turn;       // [key heads of the problem, or 1]: tasks that have added to the table
};

/// One task: some rows of a key head against a chunk of its keys.
struct BackwardTask {
  std::int64_t item, key_head, chunk, split;
  std::int64_t table_rank;  // how many tasks add to the same rows of the table before this one
};

/// Wait until a turn has come. False: the call is interrupted, and it never will.
bool await_turn(const std::int64_t* turn, std::int64_t least);
/// Whoever waits for this turn, and sees it, sees all that was written before.
REGARD_INLINE void pass_turn(std::int64_t* turn, std::int64_t next) { __atomic_store_n(turn, next, __ATOMIC_RELEASE); }

/// Fills the gradients. Returns false if interrupted (what was filled is then worth nothing).
bool run_backward(const Kernels&, const Problem&, const Backward&, int threads);

}  // namespace regard
