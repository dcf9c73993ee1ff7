// A piece's logits to weights, in place, and what each row gathers on the way: entropy, distance, mass.
#pragma once

#include "fold_group.h"

namespace {
namespace folding {

/// The numbers 0, 1, 2, ... of a vector's lanes.
REGARD_INLINE F lane_numbers() {
  float numbers[kVector];
  for (int i = 0; i < kVector; i++) numbers[i] = (float)i;
  return load(numbers);
}

/// Logits of `keys` columns of one vector of lanes to weights. `away` is key position minus query position of the
/// first. Sums of few are added to the sums of all: errors grow with the length of a sum.
template <bool sums, bool careful>
REGARD_INLINE void weigh_lanes(const FoldGroup& group, i64 lane, i64 keys, F away, float* s) {
  const i64 lanes = group.g.lanes();
  const F shift = load(group.shift + lane), inverse = load(group.inverse + lane);
  const F surprise = load(group.surprise + lane), one = splat(1.0f);
  F entropy = splat(0.0f), distance = splat(0.0f);
  for (i64 k = 0; k < keys; k++) {
    float* at = s + k * lanes + lane;
    const F logit = load(at);
    // Bounded below, because 0 * log 0 is 0; exp_of is 0 there.
    const F exponent = larger(splat(-88.0f), logit - shift);
    F weight = exp_of(exponent) * inverse;
    if (careful) weight = logit == splat(-kInfinity) ? splat(0.0f) : weight;
    if (sums) {
      entropy = fma(weight, surprise - exponent, entropy);
      distance = fma(weight, larger(away, -away), distance);
      away = away + one;
    }
    store(at, weight);
  }
  if (!sums) return;
  store(group.entropy + lane, load(group.entropy + lane) + entropy);
  store(group.distance + lane, load(group.distance + lane) + distance);
}

/// Logits of `keys` columns from `first` on, in place to weights; with the rows' sums if they are asked for.
template <bool sums>
__attribute__((noinline)) void weigh(const Problem& p, const FoldGroup& group, i64 first, i64 keys, float* s) {
  const Group& g = group.g;
  const float nearest = (float)(key_position(p, g.item, first) - query_position(p, g.item, g.first_row));
  for (i64 lane = 0; lane < g.lanes(); lane += kVector) {
    const F away = splat(nearest - (float)lane) - lane_numbers();
    if (group.spoiled) weigh_lanes<sums, true>(group, lane, keys, away, s);
    else weigh_lanes<sums, false>(group, lane, keys, away, s);
  }
}

/// Add the weights of those of n columns from `first` on that are in the set.
inline void add_mass(const Fold& f, const FoldGroup& group, i64 first, i64 n, const float* s) {
  const i64 lanes = group.g.lanes();
  i32 members[kPiece];
  i64 count = 0;
  for (i64 k = 0; k < n; k++) {
    members[count] = (i32)k;
    count += f.mass_keys[first + k] != 0;
  }
  for (i64 lane = 0; lane < lanes && count; lane += kVector) {
    F sum = splat(0.0f);
    for (i64 i = 0; i < count; i++) sum = sum + load(s + members[i] * lanes + lane);
    store(group.mass + lane, load(group.mass + lane) + sum);
  }
}

}  // namespace folding
}  // namespace
