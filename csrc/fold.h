// Questions asked of the weights: what is wanted, where answers go, how a pass is cut into tasks.
//
// One pass forms every tile of the weights that the mask reaches once, from the row's maximum and denominator (Q K^T
// and exp, no V), and answers any set of questions from it. What belongs to a row is its task's alone. What is summed
// over rows is summed over fixed blocks of rows, each into a buffer of its own, and those are added in order.
#pragma once

#include <cstddef>
#include <cstdint>

#include "problem.h"

namespace regard {

struct Kernels;

/// What turns a row's logits into weights, `[batch, query_heads, n_queries]` each, contiguous, in nats:
/// exp(logit - shift) / denominator, and 0 where the denominator is.
struct RowNormalizer {
  const float *shift = nullptr, *denominator = nullptr;
};

/// A side of a map of blocks: `blocks` of them, with edges at floor(b * whole / blocks), over a whole of which the
/// problem's side is the part from element `first` on.
struct PoolSide {
  std::int64_t blocks = 0, first = 0, whole = 0;
  /// The block that holds element i of the problem's side.
  REGARD_INLINE std::int64_t of(std::int64_t i) const { return ((first + i + 1) * blocks - 1) / whole; }
  /// The element of the problem's side, or past it, at which a block ends.
  REGARD_INLINE std::int64_t end(std::int64_t block) const { return (block + 1) * whole / blocks - first; }
};

/// The questions of one pass and where their answers go, contiguous; null where it is not asked.
struct Fold {
  RowNormalizer normalizer;

  // For each query, `[batch, query_heads, n_queries]`.
  float *entropy = nullptr, *distance = nullptr, *mass = nullptr;
  const std::uint8_t* mass_keys = nullptr;  // bool `[n_keys]`: the keys whose weights make up the mass

  // The `top` largest logits of each query, `[batch, query_heads, n_queries, top]`: their weights and columns, and
  // themselves where they are asked for.
  std::int64_t top = 0;
  float* top_weights = nullptr;
  std::int64_t* top_columns = nullptr;
  float* top_logits = nullptr;

  // P x for `x` `[batch, query_heads or key_heads, n_keys, x_dim]`: `[batch, query_heads, n_queries, x_dim]`.
  Tensor x;
  std::int64_t x_dim = 0;
  bool x_of_query_heads = false;
  float* applied = nullptr;

  // Sums over queries. They hold zeros, and are added to.
  float* received = nullptr;               // `[batch, query_heads, n_keys]`
  float* allowed = nullptr;                // as large: how many of the queries may attend each key
  const std::uint8_t* queries = nullptr;   // bool `[n_queries]`: those that `received` and `allowed` count, or all
  float* diagonals = nullptr;              // `[batch, query_heads, n_queries + n_keys - 1]`
  float* pooled = nullptr;                 // `[batch, query_heads, blocks of rows, of columns]`: sums, not means
  PoolSide pool_rows, pool_columns;

  REGARD_INLINE bool by_key() const { return received || allowed || diagonals || pooled; }
  /// Whether some question needs every weight there is.
  REGARD_INLINE bool everything() const { return entropy || distance || top || applied || diagonals || pooled; }
};

/// Some rows of one query head.
struct FoldBlock {
  std::int64_t item, head, first_row, last_row;
};

// Sums over queries have this many elements of room at either end, so that whole vectors may be added at any column.
constexpr std::int64_t kFoldRoom = 64;

/// Where a block leaves its sums over queries, each null where it is not asked. Only what belongs to the columns from
/// `first_key` up to `last_key`, which the block fills in, means anything.
struct FoldPart {
  float *received = nullptr, *allowed = nullptr;  // the element of column 0
  float* diagonals = nullptr;                     // of the block's first row and the last column
  float* pooled = nullptr;                        // [row blocks that the block touches, blocks of columns]
  std::int64_t first_key = 0, last_key = 0;
};

/// Some keys of one query head, for the transposed product.
struct FoldKeys {
  std::int64_t item, head, first_key, last_key;
};

/// Fills `result` `[batch, query_heads, n_keys, x_dim]`, contiguous: the transposed weights times `x`
/// `[batch, query_heads, n_queries, x_dim]`.
struct FoldTransposed {
  RowNormalizer normalizer;
  Tensor x;
  std::int64_t x_dim = 0;
  float* result = nullptr;
};

/// Some rows of one query head as they are: columns `first` up to `last` of each, `stride` elements from row to row.
struct FoldRows {
  RowNormalizer normalizer;  // null: logits are wanted
  std::int64_t item = 0, head = 0;
  const std::int64_t* rows = nullptr;  // [n_rows]
  std::int64_t n_rows = 0, first = 0, last = 0;
  float* result = nullptr;
  std::int64_t stride = 0;
};

/// What each instruction set offers for this. Scratch sizes are in bytes.
struct FoldKernels {
  std::size_t (*scratch)(const Problem&, const Fold&);
  /// Answers by row into the fold, sums over rows into the part, which says where its pointers lead.
  void (*fold)(const Problem&, const Fold&, const FoldBlock&, FoldPart&, void* scratch);

  std::int64_t owned_keys;  // keys of a task of the transposed product
  std::size_t (*transposed_scratch)(const Problem&, const FoldTransposed&);
  void (*transposed)(const Problem&, const FoldTransposed&, const FoldKeys&, void* scratch);

  std::size_t (*rows_scratch)(const Problem&, std::int64_t rows);
  /// Rows number `first_row` up to `last_row` of those asked for, columns `first` up to `last`.
  void (*rows)(const Problem&, const FoldRows&, std::int64_t first_row, std::int64_t last_row, std::int64_t first,
               std::int64_t last, void* scratch);
};

// All return false if interrupted: what was filled is then worth nothing.
bool run_fold(const Kernels&, const Problem&, const Fold&, int threads);
bool run_fold_transposed(const Kernels&, const Problem&, const FoldTransposed&, int threads);
bool run_fold_rows(const Kernels&, const Problem&, const FoldRows&, int threads);

/// For kernels: of n packed (logit, column) pairs, leave the k largest in the first k places, falling if `sort`.
void keep_largest(std::int64_t* packed, std::int64_t n, std::int64_t k, bool sort);

}  // namespace regard
