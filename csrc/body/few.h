// The forward pass of a few rows (decoding): lanes run along head_dim, keys and values are read once, as they lie.
//
// With less than a vector of rows there is no matrix product to speak of, only memory to be read: no packing, and every
// row of a group shares each read. Columns are taken in chunks; a chunk's values are summed from zero, so that one whose
// sum is not finite can be done again with the care that isolation asks for.
#pragma once

#include "dropout.h"
#include "group.h"
#include "logits.h"

namespace {

constexpr i64 kFewRows = regard::kFewRows;
constexpr i64 kChunk = 128;    // columns
constexpr i64 kAhead = 16384;  // bytes of rows to ask memory for before they are read: the hardware stops at pages

struct Few {
  i64 item, key_head, first_row;
  int rows;
  i64 dim, value_dim;        // padded to vectors
  float* query;              // [kFewRows][dim]
  float* scores;             // [kFewRows][kChunk]
  float* output;             // [kFewRows][value_dim]
  float* added;              // [kFewRows][value_dim]: a chunk's share
  float* packed;             // [kChunk][dim or value_dim]: rows that cannot be read as they lie
  u8* allowed;               // [kFewRows][kChunk]
  i32 *starts, *ends;        // [kFewRows][slots]
  float maximum[kFewRows], sum[kFewRows];

  REGARD_INLINE i64 head(const Problem& p, int r) const {
    return key_head * p.group_size() + (first_row + r) % p.group_size();
  }
  REGARD_INLINE i64 query_row(const Problem& p, int r) const { return (first_row + r) / p.group_size(); }
};

inline Few take_few(const Problem& p, Arena& arena) {
  Few f{};
  f.dim = round_up(p.head_dim, kVector);
  f.value_dim = round_up(p.value_dim, kVector);
  f.query = arena.take<float>(kFewRows * f.dim);
  f.scores = arena.take<float>(kFewRows * kChunk);
  f.output = arena.take<float>(kFewRows * f.value_dim);
  f.added = arena.take<float>(kFewRows * f.value_dim);
  f.packed = arena.take<float>(kChunk * max(f.dim, f.value_dim));
  f.allowed = arena.take<u8>(kFewRows * kChunk);
  f.starts = arena.take<i32>(kFewRows * p.intervals.slots);
  f.ends = arena.take<i32>(kFewRows * p.intervals.slots);
  return f;
}

/// Some rows of keys or values: where they lie, or a packed copy where whole vectors cannot be read there.
struct Lying {
  const char* data;
  i64 stride;  // bytes from row to row
  DType dtype;
};
inline Lying lying(const Tensor& t, i64 item, i64 head, i64 first, i64 n, i64 dim, i64 padded, float* packed) {
  if (t.stride[3] == 1 && dim == padded)
    return {(const char*)address(t, item, head, first), t.stride[2] * size_of(t.dtype), t.dtype};
  for (i64 j = 0; j < n; j++) unpack(row_of(t, item, head, first + j), dim, padded, packed + j * padded);
  return {(const char*)packed, padded * 4, DType::f32};
}

template <DType dtype>
REGARD_INLINE i64 bytes_ahead(const Lying& rows, i64 dim) {
  return max(kAhead / (dim * size_of(dtype)), (i64)1) * rows.stride;
}
REGARD_INLINE void fetch(const char* p, i64 ahead) {
  __builtin_prefetch((const void*)((std::uintptr_t)p + (std::uintptr_t)ahead), 0, 2);
}

/// Dot products of R rows with n keys: scores[r * kChunk + j]. What it writes past n is for nobody.
///
/// As many sums at a time as a vector has lanes, so that adding across lanes is a transposition's work for all of them.
template <DType dtype, int R>
inline void dots(const Lying& keys, i64 n, const float* query, i64 dim, float* scores) {
  if constexpr (R > kVector) {
    for (int r = 0; r < R; r += kVector) dots<dtype, kVector>(keys, n, query + r * dim, dim, scores + r * kChunk);
  } else {
    constexpr int kKeys = kVector / R;
    const i64 ahead = bytes_ahead<dtype>(keys, dim);
    for (i64 j = 0; j < n; j += kKeys) {
      F sums[kVector] = {};
      const char* at[kKeys];
#pragma GCC unroll 16
      for (int k = 0; k < kKeys; k++) at[k] = keys.data + min(j + k, n - 1) * keys.stride;
      for (i64 d = 0; d < dim; d += kVector) {
        F q[R];
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) q[r] = load(query + r * dim + d);
#pragma GCC unroll 16
        for (int k = 0; k < kKeys; k++) {
          const F key = load_vector<dtype>(at[k], d);
          fetch(at[k] + d * size_of(dtype), ahead);
#pragma GCC unroll 8
          for (int r = 0; r < R; r++) sums[r * kKeys + k] = fma(q[r], key, sums[r * kKeys + k]);
        }
      }
      float totals[kVector];
      store(totals, sums_across(sums));
#pragma GCC unroll 8
      for (int r = 0; r < R; r++) __builtin_memcpy(scores + r * kChunk + j, totals + r * kKeys, sizeof(float) * kKeys);
    }
  }
}

/// to[r] = the sum of n values, weighted, for R rows; from zero.
template <DType dtype, int R, int wide>
REGARD_INLINE void weigh_columns(const Lying& values, i64 n, const float* weights, i64 dim, i64 e, float* to) {
  const i64 ahead = bytes_ahead<dtype>(values, dim);
  F sums[R][wide] = {};
  for (i64 j = 0; j < n; j++) {
    F value[wide];
#pragma GCC unroll 8
    for (int k = 0; k < wide; k++) fetch(values.data + j * values.stride + (e + k * kVector) * size_of(dtype), ahead);
#pragma GCC unroll 8
    for (int k = 0; k < wide; k++) value[k] = load_vector<dtype>(values.data + j * values.stride, e + k * kVector);
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
      const F weight = splat(weights[r * kChunk + j]);
#pragma GCC unroll 8
      for (int k = 0; k < wide; k++) sums[r][k] = fma(weight, value[k], sums[r][k]);
    }
  }
  for (int r = 0; r < R; r++)
    for (int k = 0; k < wide; k++) store(to + r * dim + e + k * kVector, sums[r][k]);
}
template <DType dtype, int R>
inline void weigh(const Lying& values, i64 n, const float* weights, i64 dim, float* to) {
  constexpr int kSums = kVector == 16 ? 16 : 8, kWide = R >= kSums ? 1 : min(kSums / R, 8);
  i64 e = 0;
  for (; e + kWide * kVector <= dim; e += kWide * kVector) weigh_columns<dtype, R, kWide>(values, n, weights, dim, e, to);
  for (; e < dim; e += kVector) weigh_columns<dtype, R, 1>(values, n, weights, dim, e, to);
}

template <int R>
inline void dots_of(const Lying& keys, i64 n, const float* query, i64 dim, float* scores) {
  with_dtype(keys.dtype, [&](auto type) { dots<decltype(type)::value, R>(keys, n, query, dim, scores); });
}
template <int R>
inline void weigh_of(const Lying& values, i64 n, const float* weights, i64 dim, float* to) {
  with_dtype(values.dtype, [&](auto type) { weigh<decltype(type)::value, R>(values, n, weights, dim, to); });
}

/// Which of n columns from `first` row r may attend. Returns whether it is all of them.
inline bool mark_allowed(const Problem& p, const Few& f, int r, i64 first, i64 n, u8* allowed) {
  const i64 slots = p.intervals.slots;
  const i32 *starts = f.starts + r * slots, *ends = f.ends + r * slots;
  for (i64 s = 0; s < slots; s++)
    if (starts[s] <= first && ends[s] >= first + n && !p.dense) {
      __builtin_memset(allowed, 1, (std::size_t)n);
      return true;
    }
  __builtin_memset(allowed, 0, (std::size_t)n);
  for (i64 s = 0; s < slots; s++) {
    const i64 from = max((i64)starts[s], first), to = min((i64)ends[s], first + n);
    if (from < to) __builtin_memset(allowed + (from - first), 1, (std::size_t)(to - from));
  }
  if (!p.dense) return false;
  const u8* row = p.dense + f.item * p.dense_stride[0] + f.head(p, r) * p.dense_stride[1] +
                  f.query_row(p, r) * p.dense_stride[2];
  for (i64 j = 0; j < n; j++) allowed[j] &= row[(first + j) * p.dense_stride[3]];
  return false;
}

/// Raw products to logits for one row, -inf where excluded; `allowed` keeps which pairs take part.
inline void row_logits(const Problem& p, const Few& f, int r, i64 first, i64 n, bool all, float* s,
                       u8* allowed) {
  const F scale = splat(__builtin_fabsf(p.scale));
  for (i64 j = 0; j < kChunk; j += kVector) store(s + j, load(s + j) * scale);
  if (p.softcap != 0)
    for (i64 j = 0; j < kChunk; j += kVector) store(s + j, softcapped(load(s + j), p.softcap) * splat(p.softcap));
  if (p.bias_kind != BiasKind::none) {
    const i64 head = f.head(p, r), query = f.query_row(p, r);
    const i64 away = key_position(p, f.item, first) - query_position(p, f.item, query);
    for (i64 j = 0; j < n; j++) {
      float bias;
      if (p.bias_kind == BiasKind::alibi) {
        const float distance = (float)(away + j < 0 ? -(away + j) : away + j);
        bias = distance * -bias_entry(p.bias, head * p.bias.stride[1]);
      } else if (p.bias_kind == BiasKind::relative) {
        const i64 entry = min(max(away + j, -p.reach), p.reach) + p.reach;
        bias = bias_entry(p.bias, head * p.bias.stride[1] + entry * p.bias.stride[3]);
      } else {
        const i64 row = f.item * p.bias.stride[0] + head * p.bias.stride[1] + query * p.bias.stride[2];
        bias = bias_entry(p.bias, row + (first + j) * p.bias.stride[3]);
      }
      s[j] = bias == -kInfinity ? bias : s[j] + bias;
    }
  }
  if (!all)
    for (i64 j = 0; j < n; j++) s[j] = allowed[j] ? s[j] : -kInfinity;
  for (i64 j = 0; j < n; j++) allowed[j] = s[j] != -kInfinity;
  for (i64 j = n; j < kChunk; j++) s[j] = -kInfinity;
}

/// Logits of a row to weights relative to its new maximum; returns what earlier output is to be multiplied by.
inline float row_absorb(float* s, float& maximum, float& sum_so_far) {
  F most = splat(-kInfinity), spoiled = splat(0.0f);
  for (i64 j = 0; j < kChunk; j += kVector) {
    const F x = load(s + j);
    most = larger(most, x);
    spoiled = x != x ? x : spoiled;
  }
  const float found = any(spoiled != splat(0.0f)) ? __builtin_nanf("") : largest(most);
  const float before = maximum;
  maximum = found != found ? found : (found > before ? found : before);
  const float reference = maximum == -kInfinity ? 0.0f : maximum;
  F added = splat(0.0f);
  for (i64 j = 0; j < kChunk; j += kVector) {
    const F weight = exp_of(load(s + j) - splat(reference));
    added = added + weight;
    store(s + j, weight);
  }
  float decays[kVector];
  store(decays, exp_of(splat(before - reference)));
  sum_so_far = sum_so_far * decays[0] + sum(added);
  return decays[0];
}

/// A row's share of a chunk when some value in it is not finite: only what the row may attend.
inline void weigh_with_care(const Problem& p, const Few& f, i64 first, i64 n, const float* weights,
                            const u8* allowed, float* row, float* to) {
  for (i64 e = 0; e < f.value_dim; e++) to[e] = 0;
  for (i64 j = 0; j < n; j++) {
    if (!allowed[j]) continue;
    unpack(row_of(p.value, f.item, f.key_head, first + j), p.value_dim, f.value_dim, row);
    for (i64 e = 0; e < f.value_dim; e += kVector)
      store(to + e, fma(splat(weights[j]), load(row + e), load(to + e)));
  }
}

/// n columns from `first` on; R is at least the number of rows.
template <int R>
inline void chunk(const Problem& p, Few& f, i64 first, i64 n) {
  dots_of<R>(lying(p.key, f.item, f.key_head, first, n, p.head_dim, f.dim, f.packed), n, f.query, f.dim, f.scores);
  float decay[kFewRows];
  for (int r = 0; r < f.rows; r++) {
    float* s = f.scores + r * kChunk;
    u8* allowed = f.allowed + r * kChunk;
    const bool all = mark_allowed(p, f, r, first, n, allowed);
    row_logits(p, f, r, first, n, all, s, allowed);
    decay[r] = row_absorb(s, f.maximum[r], f.sum[r]);
    if (!p.drop_below) continue;
    const RowKeys keys = row_keys(p, f.item, f.head(p, r), query_position(p, f.item, f.query_row(p, r)));
    for (i64 j = 0; j < kChunk; j += kVector) {
      U position;
      for (int k = 0; k < kVector; k++) position[k] = (u32)key_position(p, f.item, first + j + k);
      store(s + j, dropped(p, load(s + j), (U)splat((i32)keys.first), (U)splat((i32)keys.second), position));
    }
  }
  if (p.value_dim == 0) return;
  const Lying values = lying(p.value, f.item, f.key_head, first, n, p.value_dim, f.value_dim, f.packed);
  weigh_of<R>(values, n, f.scores, f.value_dim, f.added);
  for (int r = 0; r < f.rows; r++) {
    float *added = f.added + r * f.value_dim, *output = f.output + r * f.value_dim;
    F check = splat(0.0f);
    for (i64 e = 0; e < f.value_dim; e += kVector) check = fma(load(added + e), splat(0.0f), check);
    if (any(check != check))
      weigh_with_care(p, f, first, n, f.scores + r * kChunk, f.allowed + r * kChunk, f.packed, added);
    for (i64 e = 0; e < f.value_dim; e += kVector)
      store(output + e, fma(load(output + e), splat(decay[r]), load(added + e)));
  }
}

inline std::size_t few_scratch(const Problem& p, i64) {
  Arena arena{nullptr};
  take_few(p, arena);
  return arena.used;
}

inline void forward_few(const Problem& p, const Forward& out, const Block& block, const Partial* partial,
                        void* scratch) {
  Arena arena{(char*)scratch};
  Few f = take_few(p, arena);
  f.item = block.item;
  f.key_head = block.key_head;
  f.first_row = block.first_row;
  f.rows = (int)(block.last_row - block.first_row);
  const i64 slots = p.intervals.slots;
  i64 from = block.last_key, to = block.first_key;
  for (int r = 0; r < kFewRows; r++) {
    float *query = f.query + r * f.dim, *output = f.output + r * f.value_dim;
    for (i64 e = 0; e < f.value_dim; e++) output[e] = 0;
    if (r >= f.rows) {  // rows that make up a full set of sums hold zeros, and nobody looks at theirs
      for (i64 d = 0; d < f.dim; d++) query[d] = 0;
      for (i64 j = 0; j < kChunk; j++) f.scores[r * kChunk + j] = 0;
      continue;
    }
    unpack(row_of(p.query, f.item, f.head(p, r), f.query_row(p, r)), p.head_dim, f.dim, query);
    for (i64 d = 0; d < f.dim; d++) query[d] *= query_sign(p);
    f.maximum[r] = -kInfinity;
    f.sum[r] = 0;
    i32 *starts = f.starts + r * slots, *ends = f.ends + r * slots;
    read_intervals(p, f.item, f.head(p, r), f.query_row(p, r), starts, ends, 1);
    for (i64 s = 0; s < slots; s++)
      if (starts[s] < ends[s]) {
        from = min(from, max((i64)starts[s], block.first_key));
        to = max(to, min((i64)ends[s], block.last_key));
      }
  }
  for (i64 first = round_down(from, kChunk); first < to; first += kChunk) {
    if (regard::interrupted()) return;
    bool reached = false;
    for (i64 i = 0; i < f.rows * slots && !reached; i++)
      reached = f.starts[i] < min(f.ends[i], (i32)min(first + kChunk, to)) && f.ends[i] > first;
    const i64 n = min(kChunk, block.last_key - first);
    if (reached && p.dense) {
      reached = false;
      for (int r = 0; r < f.rows && !reached; r++) {
        mark_allowed(p, f, r, first, n, f.allowed);
        for (i64 j = 0; j < n; j++) reached |= f.allowed[j] != 0;
      }
    }
    if (!reached) continue;
    if (f.rows == 1) chunk<1>(p, f, first, n);
    else if (f.rows == 2) chunk<2>(p, f, first, n);
    else if (f.rows <= 4) chunk<4>(p, f, first, n);
    else chunk<kFewRows>(p, f, first, n);
  }
  for (int r = 0; r < f.rows; r++) {
    const float* row = f.output + r * f.value_dim;
    if (partial) {
      partial->maximum[r] = f.maximum[r];
      partial->denominator[r] = f.sum[r];
      for (i64 e = 0; e < p.value_dim; e++) partial->output[r * p.value_dim + e] = row[e];
      continue;
    }
    const i64 head = f.head(p, r), query = f.query_row(p, r);
    const float factor = normalise(p, out, f.item, head, query, f.maximum[r], f.sum[r]);
    if (p.value_dim)
      pack(row, factor, p.value_dim, (void*)address(out.output, f.item, head, query), out.output.dtype);
  }
}

}  // namespace
