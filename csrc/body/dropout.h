// Dropout by counting: which pairs are kept is a hash of (seed, item, head, query position, key position).
//
// The same as regard/dropout.py, bit for bit: "lowbias32" (C. Wellons 2018) under two keys that a row derives.
#pragma once

#include "base.h"

namespace {

typedef u32 U __attribute__((vector_size(sizeof(F))));

template <class T>
REGARD_INLINE T mixed(T x) {
  x ^= x >> 16;
  x *= 0x7feb352du;
  x ^= x >> 15;
  x *= 0x846ca68bu;
  return x ^ (x >> 16);
}

struct RowKeys {
  u32 first, second;
};

inline RowKeys row_keys(const Problem& p, i64 item, i64 head, i64 query_position) {
  const u32 words[5] = {(u32)p.seed, (u32)(p.seed >> 32), (u32)(item + p.first_item), (u32)(head + p.first_head),
                        (u32)query_position};
  RowKeys keys{0x243f6a88u, 0x85a308d3u};
  for (u32 word : words) keys = {mixed(keys.first ^ word), mixed(keys.second ^ word)};
  return keys;
}

/// `weights` of pairs with these keys and positions: 0 where dropped, scaled by `keep_scale` where kept.
REGARD_INLINE F dropped(const Problem& p, F weights, U first, U second, U key_positions) {
  if (p.drop_below > 0xffffffffu) return splat(0.0f);
  const U hash = mixed(mixed(key_positions ^ first) + second);
  return hash >= (u32)p.drop_below ? weights * splat(p.keep_scale) : splat(0.0f);
}

REGARD_INLINE i64 query_position(const Problem& p, i64 item, i64 query) {
  return p.query_start[item * p.query_start_step] + query;
}
REGARD_INLINE i64 key_position(const Problem& p, i64 item, i64 column) {
  return p.key_start[item * p.key_start_step] + column;
}

}  // namespace
