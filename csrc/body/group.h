// A group: up to kGroup query rows of one key head, one a lane, with the keys that each of them may attend.
#pragma once

#include "math.h"
#include "rows.h"
#include "normalise.h"

namespace {

/// How a range of keys looks to a group.
struct Reach {
  i64 first, last;  // columns that some row may attend lie in [first, last)
  bool cut;         // not every row may attend all of them
  bool empty() const { return last <= first; }
};

/// The bounds of one slot of intervals over the rows of a group.
struct Slot {
  i32 least_start, greatest_start, least_end, greatest_end;
};

struct Group {
  i64 item, key_head, first_row;
  int rows;     // live lanes
  int vectors;  // vectors of lanes: the group is as wide as its rows need
  i64 slots;
  float* query;    // [head_dim][lanes]
  float* output;   // [value_dim, padded][lanes], unnormalised
  float* maximum;  // [kGroup]
  float* sum;      // [kGroup]
  i32 *starts, *ends;  // [slots][kGroup]
  Slot* bounds;        // [slots]

  REGARD_INLINE int lanes() const { return vectors * kVector; }
  REGARD_INLINE i64 head(const Problem& p, int lane) const {
    return key_head * p.group_size() + (first_row + lane) % p.group_size();
  }
  REGARD_INLINE i64 query_row(const Problem& p, int lane) const { return (first_row + lane) / p.group_size(); }
};

inline Group take_group(const Problem& p, i64 value_rows, Arena& arena) {
  Group g{};
  g.slots = p.intervals.slots;
  g.query = arena.take<float>(p.head_dim * kGroup);
  g.output = arena.take<float>(value_rows * kGroup);
  g.maximum = arena.take<float>(kGroup);
  g.sum = arena.take<float>(kGroup);
  g.starts = arena.take<i32>(g.slots * kGroup);
  g.ends = arena.take<i32>(g.slots * kGroup);
  g.bounds = arena.take<Slot>(g.slots);
  return g;
}

/// One row's runs of columns: slot s is [starts[s * step], ends[s * step]).
inline void read_intervals(const Problem& p, i64 item, i64 head, i64 query, i32* starts, i32* ends, i64 step) {
  const auto& in = p.intervals;
  if (!in.starts) {
    const i64 last = p.n_keys;
    starts[0] = (i32)min(max(in.first_start + query * in.start_step, (i64)0), last);
    ends[0] = (i32)min(max(in.first_end + query * in.end_step, (i64)0), last);
    return;
  }
  const i64* from = in.starts + item * in.start_stride[0] + head * in.start_stride[1] + query * in.start_stride[2];
  const i64* to = in.ends + item * in.end_stride[0] + head * in.end_stride[1] + query * in.end_stride[2];
  for (i64 s = 0; s < in.slots; s++) {
    starts[s * step] = (i32)from[s * in.start_stride[3]];
    ends[s * step] = (i32)to[s * in.end_stride[3]];
  }
}

/// The intervals of every lane and their bounds. Lanes past the rows hold nothing.
inline void read_masks(const Problem& p, Group& g) {
  for (i64 s = 0; s < g.slots; s++) g.bounds[s] = {0x7fffffff, 0, 0x7fffffff, 0};
  for (int lane = 0; lane < g.lanes(); lane++) {
    if (lane >= g.rows) {
      for (i64 s = 0; s < g.slots; s++) g.starts[s * kGroup + lane] = g.ends[s * kGroup + lane] = 0;
      continue;
    }
    read_intervals(p, g.item, g.head(p, lane), g.query_row(p, lane), g.starts + lane, g.ends + lane, kGroup);
    for (i64 s = 0; s < g.slots; s++) {
      i32 start = g.starts[s * kGroup + lane], end = g.ends[s * kGroup + lane];
      Slot& b = g.bounds[s];
      if (end <= start) {  // holds nothing: never lets a tile pass for whole, never makes one be reached
        b.greatest_start = 0x7fffffff;
        b.least_end = 0;
        continue;
      }
      b = {min(b.least_start, start), max(b.greatest_start, start), min(b.least_end, end), max(b.greatest_end, end)};
    }
  }
}

/// Which of the columns [first, last) the group reaches, decided by comparing integers.
inline Reach reach(const Group& g, i64 first, i64 last) {
  Reach r{last, first, true};
  for (i64 s = 0; s < g.slots; s++) {
    const Slot& b = g.bounds[s];
    const i64 from = max((i64)b.least_start, first), to = min((i64)b.greatest_end, last);
    if (to <= from) continue;
    r.first = min(r.first, from);
    r.last = max(r.last, to);
  }
  for (i64 s = 0; s < g.slots; s++)
    if (g.bounds[s].greatest_start <= r.first && g.bounds[s].least_end >= r.last) r.cut = false;
  return r;
}

/// Set a group up: its rows, the query with `factor`, lanes across, and nothing seen yet.
/// `scratch` holds kVector rows of head_dim, padded to vectors.
inline void begin(const Problem& p, Group& g, i64 item, i64 key_head, i64 first_row, i64 last_row, float factor,
                  i64 value_rows, float* scratch) {
  g.item = item;
  g.key_head = key_head;
  g.first_row = first_row;
  g.rows = (int)min(last_row - first_row, (i64)kGroup);
  g.vectors = (g.rows + kVector - 1) / kVector;
  read_masks(p, g);
  const i64 padded = round_up(p.head_dim, kVector), lanes = g.lanes();
  for (i64 block = 0; block < g.vectors; block++) {
    for (int j = 0; j < kVector; j++) {
      const int lane = (int)(block * kVector + j);
      float* to = scratch + j * padded;
      if (lane < g.rows)
        unpack(row_of(p.query, item, g.head(p, lane), g.query_row(p, lane)), p.head_dim, padded, to);
      else
        for (i64 i = 0; i < padded; i++) to[i] = 0;
    }
    for (i64 i = 0; i < padded; i += kVector) {
      float turned[kVector * kVector];
      transpose(scratch + i, padded, turned, kVector);
      for (i64 j = i; j < min(i + kVector, p.head_dim); j++)
        store(g.query + j * lanes + block * kVector, load(turned + (j - i) * kVector) * splat(factor));
    }
  }
  for (int w = 0; w < g.vectors; w++) {
    store(g.maximum + w * kVector, splat(-kInfinity));
    store(g.sum + w * kVector, splat(0.0f));
  }
  for (i64 i = 0; i < value_rows * g.vectors; i++) store(g.output + i * kVector, splat(0.0f));
}

}  // namespace
