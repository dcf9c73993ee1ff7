// Which keys each row of a mask tensor allows: as a few runs of neighbours, or from the first to the last.
#pragma once

#include <cstdint>

namespace regard {

/// What an entry of a mask is: a byte (0 excludes), or a number to be added to a score. Of numbers, -inf excludes, and
/// so does the lowest one of the format in a row that holds anything above it.
enum class Entry { boolean, f32, bf16, f16 };

/// A mask `[items, heads, queries, keys]`. Strides count entries.
struct MaskTensor {
  const void* data = nullptr;
  Entry entry = Entry::boolean;
  std::int64_t shape[4];
  std::int64_t stride[4];

  std::int64_t rows() const { return shape[0] * shape[1] * shape[2]; }
  std::int64_t keys() const { return shape[3]; }
};

/// Half-open runs of allowed keys, ascending, of every row in order: contiguous `[rows, slots]`. Slots that a row does not
/// need hold `[keys, keys)`.
struct Runs {
  std::int64_t* starts = nullptr;
  std::int64_t* ends = nullptr;
  std::int64_t slots = 0;
  /// The most runs of any row. Above `slots`, the scan ended there, and the tables are unfinished.
  std::int64_t most = 0;
  /// Whether any entry that does not exclude is a number other than 0.
  bool adds = false;
};

/// Reads each row once. Returns false if interrupted.
bool find_runs(const MaskTensor& mask, Runs& runs, int threads);

/// One run a row, from the first key that a boolean mask allows to the last, into the one slot of each row. Reads a row
/// from both ends, up to these. Returns false if interrupted.
bool find_hulls(const MaskTensor& mask, const Runs& runs, int threads);

}  // namespace regard
