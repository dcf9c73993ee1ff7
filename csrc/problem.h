// One attention problem as it crosses from Python: pointers, strides and numbers, nothing owned, nothing to check.
//
// Everything was validated in Python (problem.py). Strides count elements, not bytes, and are 0 along a dimension that
// only repeats; offsets are 64-bit everywhere. Columns fit in 31 bits (the engine refuses longer keys).
#pragma once

#include <cstdint>

// Functions of shared headers are always inlined: a copy compiled with wide instructions must not serve everyone.
#define REGARD_INLINE inline __attribute__((always_inline))
#define REGARD_NOINLINE __attribute__((noinline))

namespace regard {

enum class DType : std::uint8_t { f32, bf16, f16 };

/// `[batch, heads, length, dim]` (or what the owner says), any strides.
struct Tensor {
  void* data = nullptr;
  std::int64_t stride[4] = {0, 0, 0, 0};
  DType dtype = DType::f32;
};

/// Which keys each row may attend: up to `slots` disjoint, sorted runs `[start, end)` of columns; empty ones come last.
struct Intervals {
  // Either tables `[batch, heads, queries, slots]` ...
  const std::int64_t* starts = nullptr;
  const std::int64_t* ends = nullptr;
  std::int64_t start_stride[4] = {0, 0, 0, 0};
  std::int64_t end_stride[4] = {0, 0, 0, 0};
  std::int64_t slots = 1;
  // ... or, where `starts` is null, one run a row whose bounds move with the row (step 0 or 1), clipped to the keys:
  // row i holds [first_start + i * start_step, first_end + i * end_step).
  std::int64_t first_start = 0, start_step = 0;
  std::int64_t first_end = 0, end_step = 0;
};

enum class BiasKind : std::uint8_t { none, alibi, relative, dense };

struct Problem {
  std::int64_t batch = 0, query_heads = 0, key_heads = 0;  // key_heads divides query_heads
  std::int64_t n_queries = 0, n_keys = 0;
  std::int64_t head_dim = 0, value_dim = 0;  // value_dim 0: only the weights' normalizer is wanted
  Tensor query, key, value;

  Intervals intervals;
  const std::uint8_t* dense = nullptr;  // bool `[batch, heads, queries, keys]`; a pair must be in both
  std::int64_t dense_stride[4] = {0, 0, 0, 0};

  // Positions of the first query and key of each batch item: `query_start[item * query_start_step]`.
  const std::int64_t* query_start = nullptr;
  const std::int64_t* key_start = nullptr;
  std::int64_t query_start_step = 0, key_start_step = 0;

  float scale = 1;
  float softcap = 0;  // 0: none
  BiasKind bias_kind = BiasKind::none;
  Tensor bias;             // alibi: stride[1] walks the slopes; relative: stride[1], stride[3] walk the table; dense: all
  std::int64_t reach = 0;  // D of a relative table `[heads, 2 D + 1]`
  const float* sink_logits = nullptr;  // `[query_heads]`

  // Dropout keeps a pair whose 32-bit hash is at least `drop_below`, and divides it by the share kept.
  std::uint64_t drop_below = 0;  // 0: no dropout; 2^32: everything goes
  float keep_scale = 1;
  std::uint64_t seed = 0;
  std::int64_t first_item = 0, first_head = 0;

  REGARD_INLINE std::int64_t group_size() const { return query_heads / key_heads; }
  /// Rows of one key head: every query of each of its heads. Row r is head `r % group_size`, query `r / group_size`.
  REGARD_INLINE std::int64_t rows() const { return group_size() * n_queries; }
};

/// What the forward pass fills. All but `output` are `[batch, query_heads, n_queries]`, contiguous.
struct Forward {
  Tensor output;                 // `[batch, query_heads, n_queries, value_dim]`, unit last stride
  float* maximum = nullptr;      // largest logit over keys; -inf in an empty row
  float* shift = nullptr;        // what is taken from logits: the maximum, or a larger sink; 0 where there is nothing
  float* denominator = nullptr;  // sum of exp(logit - shift), the sink's included
};

}  // namespace regard
