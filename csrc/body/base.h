// What every kernel body starts from: integers, small helpers, and conversions that need no vector instruction.
//
// The bodies are compiled once per instruction set. Everything is in an anonymous namespace, and nothing of the
// standard library with inline functions is included: the linker must never keep one set's copy for all.
#pragma once

#include <cstddef>
#include <cstdint>

#include "../kernels.h"
#include "../tasks.h"

namespace {

using i32 = std::int32_t;
using i64 = std::int64_t;
using u8 = std::uint8_t;
using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;

using regard::BiasKind;
using regard::Block;
using regard::DType;
using regard::Forward;
using regard::Partial;
using regard::Problem;
using regard::Tensor;

constexpr float kInfinity = __builtin_inff();
constexpr float kLog2E = 1.44269504088896340736f;
constexpr double kLn2 = 0.693147180559945309417;

template <class T>
constexpr REGARD_INLINE T min(T a, T b) {
  return b < a ? b : a;
}
template <class T>
constexpr REGARD_INLINE T max(T a, T b) {
  return a < b ? b : a;
}
REGARD_INLINE i64 round_up(i64 n, i64 multiple) { return (n + multiple - 1) / multiple * multiple; }
REGARD_INLINE i64 round_down(i64 n, i64 multiple) { return n / multiple * multiple; }

template <class To, class From>
REGARD_INLINE To load_as(const From* p) {
  To value;
  __builtin_memcpy(&value, p, sizeof value);
  return value;
}
template <class To, class From>
REGARD_INLINE To bits_of(From value) {
  static_assert(sizeof(To) == sizeof(From), "same size");
  return load_as<To>(&value);
}

/// The upper 16 bits of each float, rounded to nearest even, as integers; NaN stays NaN.
template <class F, class I>
REGARD_INLINE I round_to_bf16(F x) {
  typedef u32 U __attribute__((vector_size(sizeof(I))));
  const U bits = (U)x;
  const U rounded = bits + 0x7fff + ((bits >> 16) & 1);
  const U quiet = bits | 0x400000;
  return (I)(((x != x) ? quiet : rounded) >> 16);
}

template <class F, int lanes>
REGARD_INLINE float sum_of(F x) {
  float parts[lanes];
  __builtin_memcpy(parts, &x, sizeof x);
  for (int width = lanes / 2; width > 0; width /= 2)
    for (int i = 0; i < width; i++) parts[i] += parts[i + width];
  return parts[0];
}
template <class F, int lanes>
REGARD_INLINE float largest_of(F x) {
  float parts[lanes];
  __builtin_memcpy(parts, &x, sizeof x);
  for (int i = 1; i < lanes; i++) parts[0] = parts[0] > parts[i] ? parts[0] : parts[i];
  return parts[0];
}

REGARD_INLINE float float_of_bf16(u16 x) { return bits_of<float>((u32)x << 16); }
REGARD_INLINE u16 bf16_of_float(float x) {
  const u32 bits = bits_of<u32>(x);
  return (u16)((x != x ? bits | 0x400000 : bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}
/// Half precision by arithmetic on bits: exponents are moved by a product with a power of two, which is exact.
REGARD_INLINE float float_of_f16(u16 x) {
  const u32 sign = (u32)(x & 0x8000) << 16, magnitude = (u32)(x & 0x7fff) << 13;
  if (magnitude >= 0x0f800000) return bits_of<float>(sign | 0x7f800000 | (magnitude & 0x7fffff));
  return bits_of<float>(sign | bits_of<u32>(bits_of<float>(magnitude) * 0x1p112f));
}
REGARD_INLINE u16 f16_of_float(float x) {
  const u32 bits = bits_of<u32>(x), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return (u16)(sign | 0x7e00);
  if (magnitude >= 0x477ff000) return (u16)(sign | 0x7c00);  // 65520 and above round to infinity
  if (magnitude < 0x38800000)  // below the smallest normal: the sum's rounding is that of the last place kept
    return (u16)(sign | (bits_of<u32>(bits_of<float>(magnitude) + 0.5f) - 0x3f000000));
  return (u16)(sign | ((magnitude - 0x38000000 + 0xfff + (magnitude >> 13 & 1)) >> 13));
}

REGARD_INLINE i64 size_of(DType dtype) { return dtype == DType::f32 ? 4 : 2; }

/// Hands out aligned pieces of a task's scratch; with a null base it only counts.
struct Arena {
  char* base;
  std::size_t used = 0;
  template <class T>
  T* take(i64 count) {
    T* piece = base ? reinterpret_cast<T*>(base + used) : nullptr;
    used += (std::size_t)round_up(count * (i64)sizeof(T), 64);
    return piece;
  }
};

}  // namespace
