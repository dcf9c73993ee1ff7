// Rows of queries, keys, values and outputs between their own dtype and strides and packed float32.
#pragma once

#include "base.h"

namespace {

constexpr int kGroup = kColumns * kVector;  // query rows that are worked on together, one a lane

/// Where one row begins, how its elements follow, and what they are.
struct Row {
  const void* data;
  i64 stride;
  DType dtype;
};

REGARD_INLINE const void* address(const Tensor& t, i64 item, i64 head, i64 row) {
  const i64 offset = item * t.stride[0] + head * t.stride[1] + row * t.stride[2];
  return (const char*)t.data + offset * size_of(t.dtype);
}
REGARD_INLINE Row row_of(const Tensor& t, i64 item, i64 head, i64 row) {
  return {address(t, item, head, row), t.stride[3], t.dtype};
}

template <DType dtype>
REGARD_INLINE F load_vector(const void* row, i64 at) {
  if constexpr (dtype == DType::f32) return load((const float*)row + at);
  if constexpr (dtype == DType::bf16) return load_bf16((const u16*)row + at);
  return load_f16((const u16*)row + at);
}
template <DType dtype>
REGARD_INLINE float load_one(const void* row, i64 at) {
  if constexpr (dtype == DType::f32) return ((const float*)row)[at];
  if constexpr (dtype == DType::bf16) return float_of_bf16(((const u16*)row)[at]);
  return float_of_f16(((const u16*)row)[at]);
}

template <DType dtype>
struct Type {
  static constexpr DType value = dtype;
};
/// Calls `work` with the dtype as a compile-time constant.
template <class Work>
REGARD_INLINE void with_dtype(DType dtype, Work work) {
  if (dtype == DType::f32) work(Type<DType::f32>{});
  else if (dtype == DType::bf16) work(Type<DType::bf16>{});
  else work(Type<DType::f16>{});
}

/// `n` elements as float32, then zeros up to `padded`. Returns whether all of them are finite.
template <DType dtype>
REGARD_INLINE bool unpack(const void* row, i64 stride, i64 n, i64 padded, float* to) {
  F zeros = splat(0.0f);  // x * 0 is NaN for what is not finite
  float tail = 0;
  i64 i = 0;
  if (stride == 1)
    for (; i + kVector <= n; i += kVector) {
      const F x = load_vector<dtype>(row, i);
      zeros = fma(x, splat(0.0f), zeros);
      store(to + i, x);
    }
  for (; i < n; i++) {
    to[i] = load_one<dtype>(row, i * stride);
    tail += to[i] * 0.0f;
  }
  for (; i < padded; i++) to[i] = 0;
  return !any(zeros != zeros) && tail == 0;
}
REGARD_INLINE bool unpack(const Row& row, i64 n, i64 padded, float* to) {
  bool finite = true;
  with_dtype(row.dtype, [&](auto type) {
    finite = unpack<decltype(type)::value>(row.data, row.stride, n, padded, to);
  });
  return finite;
}

/// `n` floats times `factor`, rounded to the dtype of a row whose elements lie side by side.
REGARD_INLINE void pack(const float* from, float factor, i64 n, void* row, DType dtype) {
  i64 i = 0;
  const F f = splat(factor);
  if (dtype == DType::f32) {
    float* to = (float*)row;
    for (; i + kVector <= n; i += kVector) store(to + i, load(from + i) * f);
    for (; i < n; i++) to[i] = from[i] * factor;
  } else if (dtype == DType::bf16) {
    u16* to = (u16*)row;
    for (; i + kVector <= n; i += kVector) store_bf16(to + i, load(from + i) * f);
    for (; i < n; i++) to[i] = bf16_of_float(from[i] * factor);
  } else {
    u16* to = (u16*)row;
    for (; i + kVector <= n; i += kVector) store_f16(to + i, load(from + i) * f);
    if (i < n) {
      float rest[kVector] = {};
      u16 halves[kVector];
      for (i64 j = i; j < n; j++) rest[j - i] = from[j] * factor;
      store_f16(halves, load(rest));
      for (i64 j = i; j < n; j++) to[j] = halves[j - i];
    }
  }
}

}  // namespace
