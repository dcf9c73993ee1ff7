// What happens to a group's scores before softmax: scale, softcap, bias and mask, lanes across.
//
// Scores are [key][lanes], counted from `first`. Masks and biases of -inf select -inf over the score, never add it.
#pragma once

#include "dropout.h"
#include "group.h"

namespace {

/// Rows of some tensor, one for each lane, turned so that lanes lie side by side: to[key][lanes].
/// `turn` reads kVector elements of a lane's row at a column into floats; `live` says which lanes have one.
template <class Read>
inline void turn_rows(const Group& g, i64 first, i64 last, float* to, Read read) {
  const i64 lanes = g.lanes();
  float rows[kVector * kVector], turned[kVector * kVector];
  for (int w = 0; w < g.vectors; w++)
    for (i64 column = first; column < last; column += kVector) {
      const i64 width = min((i64)kVector, last - column);
      for (int j = 0; j < kVector; j++) {
        const int lane = w * kVector + j;
        if (lane < g.rows) read(lane, column, width, rows + j * kVector);
        else store(rows + j * kVector, splat(0.0f));
      }
      transpose(rows, kVector, turned, kVector);
      for (i64 j = 0; j < width; j++)
        store(to + (column - first + j) * lanes + w * kVector, load(turned + j * kVector));
    }
}

REGARD_INLINE const u8* dense_row(const Problem& p, const Group& g, int lane) {
  return p.dense + g.item * p.dense_stride[0] + g.head(p, lane) * p.dense_stride[1] +
         g.query_row(p, lane) * p.dense_stride[2];
}

/// Whether a dense mask lets any of the group's rows attend any of the columns [first, last).
inline bool occupied(const Problem& p, const Group& g, i64 first, i64 last) {
  const i64 step = p.dense_stride[3];
  for (int lane = 0; lane < g.rows; lane++) {
    const u8* row = dense_row(p, g, lane);
    u8 found = 0;
    if (step == 1)
      for (i64 column = first; column < last; column++) found |= row[column];
    else
      for (i64 column = first; column < last; column++) found |= row[column * step];
    if (found) return true;
  }
  return false;
}

/// -inf over the scores of pairs that the intervals exclude.
template <int W>
inline void exclude_outside(const Group& g, i64 first, i64 last, float* s) {
  for (i64 column = first; column < last; column++) {
    const I at = splat((i32)column);
    float* row = s + (column - first) * W * kVector;
    for (int w = 0; w < W; w++) {
      I inside = splat(0);
      for (i64 slot = 0; slot < g.slots; slot++) {
        const Slot& b = g.bounds[slot];
        if (b.greatest_end <= column || b.least_start > column) continue;
        const i64 lane = slot * kGroup + w * kVector;
        inside |= (I)(at >= load(g.starts + lane)) & (I)(at < load(g.ends + lane));
      }
      store(row + w * kVector, inside ? load(row + w * kVector) : splat(-kInfinity));
    }
  }
}

/// -inf over the scores of pairs that a dense mask excludes. `buffer` is as large as the scores.
template <int W>
inline void exclude_dense(const Problem& p, const Group& g, i64 first, i64 last, float* s, float* buffer) {
  const i64 step = p.dense_stride[3];
  turn_rows(g, first, last, buffer, [&](int lane, i64 column, i64 width, float* to) {
    const u8* row = dense_row(p, g, lane);
    if (step == 1 && width == kVector) {
      store(to, as_float(load_bytes(row + column)));
      return;
    }
    store(to, splat(0.0f));
    for (i64 j = 0; j < width; j++) to[j] = row[(column + j) * step];
  });
  for (i64 i = 0; i < (last - first) * W; i++) {
    const F score = load(s + i * kVector);
    store(s + i * kVector, load(buffer + i * kVector) != splat(0.0f) ? score : splat(-kInfinity));
  }
}

REGARD_INLINE F softcapped(F score, float cap) { return tanh_of(score * splat(1 / cap)); }

/// Key position minus query position of the first column and each lane, as floats and as integers (clamped to 31 bits).
inline void offsets(const Problem& p, const Group& g, i64 first, i32* to) {
  for (int lane = 0; lane < g.lanes(); lane++) {
    const i64 away = key_position(p, g.item, first) - query_position(p, g.item, g.query_row(p, lane));
    to[lane] = (i32)min(max(away, (i64)-0x3fffffff), (i64)0x3fffffff);
  }
}

REGARD_INLINE float bias_entry(const Tensor& t, i64 offset) {
  if (t.dtype == DType::f32) return ((const float*)t.data)[offset];
  const u16 x = ((const u16*)t.data)[offset];
  return t.dtype == DType::bf16 ? float_of_bf16(x) : float_of_f16(x);
}

/// Add the bias of the columns [first, last). `buffer` is as large as the scores.
template <int W>
inline void add_bias(const Problem& p, const Group& g, i64 first, i64 last, float* s, float* buffer) {
  const i64 n = last - first;
  if (p.bias_kind == BiasKind::dense) {
    turn_rows(g, first, last, buffer, [&](int lane, i64 column, i64 width, float* to) {
      const Row row = row_of(p.bias, g.item, g.head(p, lane), g.query_row(p, lane));
      const char* at = (const char*)row.data + column * row.stride * size_of(row.dtype);
      unpack(Row{at, row.stride, row.dtype}, width, kVector, to);
    });
  } else {
    i32 away[kGroup];
    offsets(p, g, first, away);
    if (p.bias_kind == BiasKind::alibi) {
      float slopes[kGroup];
      for (int lane = 0; lane < g.lanes(); lane++)
        slopes[lane] = lane < g.rows ? -bias_entry(p.bias, g.head(p, lane) * p.bias.stride[1]) : 0.0f;
      for (i64 j = 0; j < n; j++)
        for (int w = 0; w < W; w++) {
          const F distance = as_float(load(away + w * kVector) + splat((i32)j));
          const F bias = larger(distance, -distance) * load(slopes + w * kVector);
          store(buffer + (j * W + w) * kVector, bias);
        }
    } else {
      const i32 reach = (i32)min(p.reach, (i64)0x3fffffff);
      for (i64 j = 0; j < n; j++)
        for (int lane = 0; lane < W * kVector; lane++) {
          const i32 entry = min(max(away[lane] + (i32)j, -reach), reach) + reach;
          const i64 head = lane < g.rows ? g.head(p, lane) : g.head(p, 0);
          buffer[j * W * kVector + lane] = bias_entry(p.bias, head * p.bias.stride[1] + entry * p.bias.stride[3]);
        }
    }
  }
  for (i64 i = 0; i < n * W; i++) {
    const F bias = load(buffer + i * kVector), score = load(s + i * kVector);
    // NaN - inf is NaN: a bias of -inf too excludes by selecting.
    store(s + i * kVector, bias == splat(-kInfinity) ? bias : score + bias);
  }
}

/// Scaled products to logits in place; excluded pairs hold -inf. `buffer` is used where there is a bias or a dense mask.
template <int W>
inline void scaled_to_logits(const Problem& p, const Group& g, i64 first, i64 last, bool cut, float* s, float* buffer) {
  if (p.softcap != 0)
    for (i64 i = 0; i < (last - first) * W; i++)
      store(s + i * kVector, softcapped(load(s + i * kVector), p.softcap) * splat(p.softcap));
  if (p.bias_kind != BiasKind::none) add_bias<W>(p, g, first, last, s, buffer);
  if (p.dense) exclude_dense<W>(p, g, first, last, s, buffer);
  if (cut) exclude_outside<W>(g, first, last, s);
}

/// Raw products to logits in place, likewise.
template <int W>
inline void to_logits(const Problem& p, const Group& g, i64 first, i64 last, bool cut, float* s,
                      float* buffer) {
  const F scale = splat(__builtin_fabsf(p.scale));
  for (i64 i = 0; i < (last - first) * W; i++) store(s + i * kVector, load(s + i * kVector) * scale);
  scaled_to_logits<W>(p, g, first, last, cut, s, buffer);
}

}  // namespace
