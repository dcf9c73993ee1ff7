// A chunk of keys and values, copied once for all the rows of a task, and the gradients that they gather.
#pragma once

#include "group.h"

namespace {
namespace gradients {

struct Chunk {
  i64 first, last;  // columns
  i64 key_stride, value_stride;
  float *key, *value;           // [chunk keys][stride], as they are: a score that is not finite stays with its pair
  float* finite_key;            // `key`, or a copy in which keys that are not finite hold zeros
  float* copy;                  // room for that
  float *grad_key, *grad_value;
  i64 specials;                 // how many keys are not finite, and which columns they are
  i32* special;
};

REGARD_INLINE i64 stride_of(i64 dim) { return round_up(dim, kVector > kRows ? kVector : kRows); }

inline Chunk take_chunk(const Problem& p, i64 keys, Arena& arena) {
  Chunk c{};
  c.key_stride = stride_of(p.head_dim);
  c.value_stride = stride_of(p.value_dim);
  c.key = arena.take<float>(keys * c.key_stride);
  c.copy = arena.take<float>(keys * c.key_stride);
  c.grad_key = arena.take<float>(keys * c.key_stride);
  c.value = arena.take<float>(keys * c.value_stride);
  c.grad_value = arena.take<float>(keys * c.value_stride);
  c.special = arena.take<i32>(keys);
  return c;
}

/// Copy the columns [first, last) of a key head, up to a multiple of kRows with zeros, and begin their gradients.
inline void begin_chunk(const Problem& p, Chunk& c, i64 item, i64 key_head, i64 first, i64 last) {
  c.first = first;
  c.last = last;
  c.specials = 0;
  const i64 rows = round_up(last - first, kRows);
  for (i64 at = 0; at < rows; at++) {
    float *key = c.key + at * c.key_stride, *value = c.value + at * c.value_stride;
    if (first + at >= last) {
      for (i64 i = 0; i < c.key_stride; i++) key[i] = 0;
      for (i64 i = 0; i < c.value_stride; i++) value[i] = 0;
      continue;
    }
    if (!unpack(row_of(p.key, item, key_head, first + at), p.head_dim, c.key_stride, key))
      c.special[c.specials++] = (i32)(first + at);
    if (p.value_dim) unpack(row_of(p.value, item, key_head, first + at), p.value_dim, c.value_stride, value);
  }
  c.finite_key = c.key;
  if (c.specials) {
    c.finite_key = c.copy;
    for (i64 i = 0; i < rows * c.key_stride; i++) c.copy[i] = c.key[i];
    for (i64 s = 0; s < c.specials; s++)
      for (i64 i = 0; i < c.key_stride; i++) c.copy[(c.special[s] - first) * c.key_stride + i] = 0;
  }
  for (i64 i = 0; i < rows * c.key_stride; i++) c.grad_key[i] = 0;
  for (i64 i = 0; i < rows * c.value_stride; i++) c.grad_value[i] = 0;
}

/// A chunk's gradient to where it belongs: stored by the first share of the rows, added by the others.
inline void end_chunk(const float* from, i64 stride, i64 keys, i64 dim, float factor, bool add, float* to) {
  for (i64 k = 0; k < keys; k++)
    for (i64 i = 0; i < dim; i++) {
      const float x = from[k * stride + i] * factor;
      to[k * dim + i] = add ? to[k * dim + i] + x : x;
    }
}

}  // namespace gradients
}  // namespace
