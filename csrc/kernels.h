// The table of functions that each instruction set fills: the only symbol that its object file exports.
//
// Files under isa/ and body/ are compiled with wide instructions, so nothing in them may end up shared with the rest:
// everything there is in an anonymous namespace, and no header of the standard library with inline functions is used.
#pragma once

#include <cstddef>
#include <cstdint>

#include "fold.h"
#include "problem.h"

namespace regard {

/// Some rows of one key head against some of its keys.
struct Block {
  std::int64_t item, key_head;
  std::int64_t first_row, last_row;  // rows of the key head, see Problem::rows
  std::int64_t first_key, last_key;  // columns
};

/// Where a block that sees only part of the keys leaves its results, to be merged: `rows` of each.
struct Partial {
  float* maximum;      // [rows]
  float* denominator;  // [rows]
  float* output;       // [rows, value_dim]
};

struct BackwardTask;
struct BackwardWork;

struct Kernels {
  const char* name;
  std::int64_t group_rows;  // rows that are worked on together: blocks begin at multiples of it
  std::int64_t tile_keys;   // keys of a tile: splits begin at multiples of it

  std::size_t (*forward_scratch)(const Problem&, std::int64_t rows);
  /// Rows of many: tiles of rows by tiles of keys.
  void (*forward)(const Problem&, const Forward&, const Block&, const Partial*, void* scratch);
  /// Few rows (decoding): every key row is read once, straight from where it lies.
  void (*forward_few)(const Problem&, const Forward&, const Block&, const Partial*, void* scratch);
  std::size_t (*few_scratch)(const Problem&, std::int64_t rows);
  /// Join the partial results of all the splits of some rows, in order: `splits` partials of `rows` rows each.
  void (*merge)(const Problem&, const Forward&, const Block&, const Partial* partials, std::int64_t splits,
                void* scratch);  // scratch: value_dim floats

  /// What the backward pass knows of some groups of rows of a key head before it starts.
  void (*prepare_backward)(const Problem&, const BackwardWork&, std::int64_t item, std::int64_t key_head,
                           std::int64_t first_group, std::int64_t last_group, void* scratch);
  std::size_t (*prepare_backward_scratch)(const Problem&);
  void (*backward)(const Problem&, const BackwardWork&, const BackwardTask&, void* scratch);
  std::size_t (*backward_scratch)(const Problem&, const BackwardWork&);

  FoldKernels fold;  // questions to the weights
};

/// The most rows that `forward_few` takes.
constexpr std::int64_t kFewRows = 8;

extern const Kernels kPortable;
#if defined(__x86_64__)
extern const Kernels kAvx2, kAvx512, kAvx512Bf16;
#elif defined(__aarch64__)
extern const Kernels kNeon;
#endif

}  // namespace regard
