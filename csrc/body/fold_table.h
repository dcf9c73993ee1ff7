// What one instruction set offers for questions to the weights, by dtype.
#pragma once

#include "fold.h"
#include "fold_rows.h"
#include "fold_transposed.h"

namespace {
namespace folding {

/// Calls `work` with how the products of queries and keys are formed.
template <class Work>
REGARD_INLINE auto with_kind([[maybe_unused]] const Problem& p, Work work) {
#ifdef REGARD_BF16_PAIRS
  if (p.query.dtype == DType::bf16) return work(Pairs{});
#endif
  return work(Fma{});
}

inline std::size_t scratch(const Problem& p, const Fold& f) {
  return with_kind(p, [&](auto kind) { return fold_scratch_as<decltype(kind)>(p, f); });
}
inline void fold(const Problem& p, const Fold& f, const FoldBlock& block, FoldPart& part, void* scratch) {
  with_kind(p, [&](auto kind) { fold_as<decltype(kind)>(p, f, block, part, scratch); });
}

inline std::size_t transposed_scratch(const Problem& p, const FoldTransposed& t) {
  return with_kind(p, [&](auto kind) { return fold_transposed_scratch_as<decltype(kind)>(p, t); });
}
inline void transposed(const Problem& p, const FoldTransposed& t, const FoldKeys& own, void* scratch) {
  with_kind(p, [&](auto kind) { fold_transposed_as<decltype(kind)>(p, t, own, scratch); });
}

/// Likewise for rows, which few are read as floats.
template <class Work>
REGARD_INLINE auto with_kind_of_rows(const Problem& p, Work work) {
  return p.rows() <= kFewRows ? work(Fma{}) : with_kind(p, work);
}
inline std::size_t rows_scratch(const Problem& p, i64 n_rows) {
  return with_kind_of_rows(p, [&](auto kind) { return fold_rows_scratch_as<decltype(kind)>(p, n_rows); });
}
inline void rows(const Problem& p, const FoldRows& f, i64 first_row, i64 last_row, i64 first, i64 last, void* scratch) {
  with_kind_of_rows(
      p, [&](auto kind) { fold_rows_as<decltype(kind)>(p, f, first_row, last_row, first, last, scratch); });
}

constexpr regard::FoldKernels kFoldKernels = {
    scratch, fold, kOwnedTiles * kTileKeys, transposed_scratch, transposed, rows_scratch, rows};

}  // namespace folding
}  // namespace
