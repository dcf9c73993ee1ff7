// Some rows of the matrix as they are, lanes along the keys: the keys are read once, turned a few at a time, and each
// row that is asked for is multiplied with them.
//
// A product is summed in the order in which the forward pass summed it, that for many rows or that for few, so that a
// weight has the same bits wherever it is asked for.
#pragma once

#include "few.h"
#include "fold_given.h"
#include "forward.h"

namespace {
namespace folding {

constexpr i64 kPanel = kGroup;  // keys that are turned together

/// One of the rows.
struct MatrixRow {
  i64 query;
  Given given;
  i32 *starts, *ends;  // [slots]
};

struct RowsRoom {
  bool few;            // the forward pass was that for few rows
  i64 steps, padded;   // elements of a row as it is multiplied, and padded to vectors
  float* query;        // [rows, a multiple of kRows][padded]: floats, or pairs of bfloat16
  float* lying;        // [kVector][padded, of a float each]: keys that cannot be turned where they lie
  float* panel;        // [padded][kPanel]
  float* scores;       // [kRows][kPanel]
  float* buffer;       // [kPanel]
  MatrixRow* rows;
};

template <class Kind>
inline RowsRoom take_rows_room(const Problem& p, i64 n_rows, Arena& arena) {
  RowsRoom room{};
  room.steps = steps_of<Kind>(p.head_dim);
  room.padded = round_up(room.steps, kVector);
  room.query = arena.take<float>(round_up(n_rows, kRows) * room.padded);
  room.lying = arena.take<float>(kVector * Kind::kDepth * room.padded);
  room.panel = arena.take<float>(room.padded * kPanel);
  room.scores = arena.take<float>(kRows * kPanel);
  room.buffer = arena.take<float>(kPanel);
  room.rows = arena.take<MatrixRow>(n_rows);
  for (i64 r = 0; r < n_rows; r++) {
    i32* const bounds = arena.take<i32>(2 * p.intervals.slots);
    if (arena.base) room.rows[r] = {0, Given(), bounds, bounds + p.intervals.slots};
  }
  return room;
}

/// The query rows as they are multiplied; those that fill up the last kRows hold zeros.
template <class Kind>
inline void load_rows(const Problem& p, i64 item, i64 n_rows, RowsRoom& room) {
  for (i64 r = 0; r < round_up(n_rows, kRows); r++) {
    float* to = room.query + r * room.padded;
    float* row = room.lying;
    const i64 padded = Kind::kDepth * room.padded;
    if (r < n_rows) unpack(row_of(p.query, item, 0, room.rows[r].query), p.head_dim, padded, row);
    for (i64 d = 0; d < padded; d++) row[d] = r < n_rows ? row[d] * query_sign(p) : 0.0f;
    for (i64 t = 0; t < room.padded; t++) {
      if constexpr (Kind::kDepth == 1) to[t] = row[t];
      else to[t] = bits_of<float>((bits_of<u32>(row[2 * t]) >> 16) | (bits_of<u32>(row[2 * t + 1]) & 0xffff0000));
    }
  }
}

/// Brings the keys that come next nearer, a few lines at a time among other work: they are read in an order that no
/// processor foresees, and asked for all at once they would have to be waited for.
struct Ahead {
  const char* row = nullptr;
  i64 rows = 0, stride = 0, bytes = 0, at = 0;

  Ahead(const Problem& p, i64 item, i64 first, i64 last) {
    if (p.key.stride[3] != 1 || last <= first) return;
    row = (const char*)address(p.key, item, 0, first);
    rows = last - first;
    stride = p.key.stride[2] * size_of(p.key.dtype);
    bytes = p.head_dim * size_of(p.key.dtype);
  }
  REGARD_INLINE void bring(i64 lines) {
    for (; lines > 0 && rows > 0; lines--) {
      __builtin_prefetch(row + at);
      at += 64;
      if (at < bytes) continue;
      at = 0;
      row += stride;
      rows--;
    }
  }
};

/// n columns from `first` on, turned: panel[step][key]. Columns that fill up the panel hold anything finite.
template <class Kind>
inline void load_panel(const Problem& p, i64 item, i64 first, i64 n, i64 lines, Ahead& ahead, RowsRoom& room) {
  for (i64 key = 0; key < kPanel; key += kVector) {
    const i64 there = min((i64)kVector, n - key);
    const float* from = room.lying;
    i64 stride = room.padded;
    if (there <= 0) {
      for (i64 t = 0; t < room.padded; t++) store(room.panel + t * kPanel + key, splat(0.0f));
      continue;
    }
    const bool lies_well = there == kVector && p.key.stride[3] == 1 && p.head_dim % (Kind::kDepth * kVector) == 0;
    if (lies_well && size_of(p.key.dtype) * Kind::kDepth == 4 && p.key.stride[2] % Kind::kDepth == 0) {
      from = (const float*)address(p.key, item, 0, first + key);
      stride = p.key.stride[2] / Kind::kDepth;
    } else {
      for (i64 j = 0; j < kVector; j++) {
        const Row row = row_of(p.key, item, 0, first + key + min(j, there - 1));
        float* to = room.lying + j * room.padded;
        if constexpr (Kind::kDepth == 1) unpack(row, p.head_dim, room.padded, to);
#ifdef REGARD_BF16_PAIRS
        else copy_bf16(row, p.head_dim, 2 * room.padded, (u16*)to);
#endif
      }
    }
    for (i64 t = 0; t < room.padded; t += kVector) {
      transpose(from + t, stride, room.panel + t * kPanel + key, kPanel);
      ahead.bring(lines);
    }
  }
}

/// Add the bias of n columns of a row.
inline void add_row_bias(const Problem& p, i64 item, i64 query, i64 first, i64 n, float* s, float* buffer) {
  const i64 away = key_position(p, item, first) - query_position(p, item, query);
  if (p.bias_kind == BiasKind::dense) {
    const Row row = row_of(p.bias, item, 0, query);
    const char* at = (const char*)row.data + first * row.stride * size_of(row.dtype);
    unpack(Row{at, row.stride, row.dtype}, n, kPanel, buffer);
  } else if (p.bias_kind == BiasKind::alibi) {
    const float slope = -bias_entry(p.bias, 0);
    for (i64 j = 0; j < kPanel; j++) buffer[j] = (float)(away + j < 0 ? -(away + j) : away + j) * slope;
  } else {
    for (i64 j = 0; j < kPanel; j++)
      buffer[j] = bias_entry(p.bias, (min(max(away + j, -p.reach), p.reach) + p.reach) * p.bias.stride[3]);
  }
  for (i64 j = 0; j < kPanel; j += kVector) {
    const F bias = load(buffer + j), score = load(s + j);
    store(s + j, bias == splat(-kInfinity) ? bias : score + bias);
  }
}

/// -inf over the columns of a row that it may not attend.
inline void exclude_from_row(const Problem& p, i64 item, const MatrixRow& row, i64 first, i64 n, float* s) {
  i64 next = 0;
  for (i64 slot = 0; slot < p.intervals.slots && next < n; slot++) {
    const i64 start = max((i64)row.starts[slot] - first, next), end = min((i64)row.ends[slot] - first, n);
    if (end <= start) continue;
    for (; next < start; next++) s[next] = -kInfinity;
    next = end;
  }
  for (; next < n; next++) s[next] = -kInfinity;
  if (!p.dense) return;
  const u8* bits = p.dense + item * p.dense_stride[0] + row.query * p.dense_stride[2] + first * p.dense_stride[3];
  for (i64 j = 0; j < n; j++)
    if (!bits[j * p.dense_stride[3]]) s[j] = -kInfinity;
}

/// Products of one row to what is asked for, n columns from `first` on.
inline void finish_row(const Problem& p, const FoldRows& f, const MatrixRow& row, i64 first, i64 n, float* s,
                       float* buffer, float* to) {
  const F scale = splat(__builtin_fabsf(p.scale));
  for (i64 j = 0; j < kPanel; j += kVector) {
    F score = load(s + j) * scale;
    if (p.softcap != 0) score = softcapped(score, p.softcap) * splat(p.softcap);
    store(s + j, score);
  }
  if (p.bias_kind != BiasKind::none) add_row_bias(p, f.item, row.query, first, n, s, buffer);
  exclude_from_row(p, f.item, row, first, n, s);
  if (f.normalizer.shift)
    for (i64 j = 0; j < kPanel; j += kVector) store(s + j, row.given.weights(load(s + j)));
  i64 j = 0;
  for (; j + kVector <= n; j += kVector) store(to + j, load(s + j));
  for (; j < n; j++) to[j] = s[j];
}

inline bool reaches(const Problem& p, const MatrixRow& row, i64 first, i64 last) {
  for (i64 slot = 0; slot < p.intervals.slots; slot++)
    if (max((i64)row.starts[slot], first) < min((i64)row.ends[slot], last)) return true;
  return false;
}

template <class Kind>
inline void take_panel(const Problem& p, const FoldRows& f, i64 first_row, i64 n_rows, i64 first, i64 n,
                       i64 last, RowsRoom& room) {
  // The next panel's lines, over the turns in which they are asked for.
  Ahead ahead(p, f.item, first + n, min(first + n + kPanel, last));
  const i64 turns = (kColumns + 1) * (room.padded / kVector);
  const i64 lines = (kPanel * ((ahead.bytes + 63) / 64) + turns - 1) / turns;
  bool loaded = false;
  for (i64 base = 0; base < n_rows; base += kRows) {
    const i64 live = min((i64)kRows, n_rows - base);
    bool reached = false;
    for (i64 r = 0; r < live; r++) reached |= reaches(p, room.rows[base + r], first, first + n);
    if (reached && room.few) {
      const Lying keys = lying(p.key, f.item, 0, first, n, p.head_dim, room.padded, room.panel);
      float scores[kChunk];
      for (i64 r = 0; r < live; r++) {
        dots_of<1>(keys, n, room.query + (base + r) * room.padded, room.padded, scores);
        __builtin_memcpy(room.scores + r * kPanel, scores, sizeof(float) * kPanel);
      }
    } else if (reached) {
      if (!loaded) load_panel<Kind>(p, f.item, first, n, lines, ahead, room);
      loaded = true;
      using Element = typename Kind::Element;
      const auto *query = (const Element*)room.query + base * room.padded, *panel = (const Element*)room.panel;
      for (i64 step = 0; step < room.steps; step += kSteps) {
        F sums[kRows][kColumns] = {};
        const i64 last_step = min(step + kSteps, room.steps);
        for (i64 t = step; t < last_step; t += kVector) {
          const i64 n_steps = min((i64)kVector, last_step - t);
          multiply<Kind, kColumns>(query + t, room.padded, 1, panel + t * kPanel, n_steps, sums);
          ahead.bring(lines);
        }
        for (int r = 0; r < kRows; r++)
          for (int w = 0; w < kColumns; w++) {
            float* at = room.scores + r * kPanel + w * kVector;
            store(at, step ? load(at) + sums[r][w] : sums[r][w]);
          }
      }
    }
    for (i64 r = 0; r < live; r++) {
      float* to = f.result + (first_row + base + r) * f.stride + first - f.first;
      if (reached) {
        finish_row(p, f, room.rows[base + r], first, n, room.scores + r * kPanel, room.buffer, to);
        continue;
      }
      for (i64 j = 0; j < n; j++) to[j] = f.normalizer.shift ? 0.0f : -kInfinity;
    }
  }
}

template <class Kind>
inline std::size_t fold_rows_scratch_as(const Problem& whole, i64 n_rows) {
  Arena arena{nullptr};
  take_rows_room<Kind>(one_head(whole, 0), n_rows, arena);
  return arena.used;
}

/// Rows number first_row up to last_row of those asked for, columns first up to last.
template <class Kind>
inline void fold_rows_as(const Problem& whole, const FoldRows& f, i64 first_row, i64 last_row, i64 first, i64 last,
                         void* scratch) {
  const Problem p = one_head(whole, f.head);
  Arena arena{(char*)scratch};
  const i64 n_rows = last_row - first_row;
  RowsRoom room = take_rows_room<Kind>(p, n_rows, arena);
  for (i64 r = 0; r < n_rows; r++) {
    MatrixRow& row = room.rows[r];
    row.query = f.rows[first_row + r];
    const i64 at = (f.item * whole.query_heads + f.head) * p.n_queries + row.query;
    if (f.normalizer.shift) row.given = Given(f.normalizer.shift[at], f.normalizer.denominator[at]);
    read_intervals(p, f.item, 0, row.query, row.starts, row.ends, 1);
  }
  room.few = whole.rows() <= kFewRows;
  load_rows<Kind>(p, f.item, n_rows, room);
  for (i64 column = first; column < last; column += kPanel) {
    if (regard::interrupted()) return;
    take_panel<Kind>(p, f, first_row, n_rows, column, min(kPanel, last - column), last, room);
  }
}

}  // namespace folding
}  // namespace
