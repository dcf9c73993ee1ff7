// The functions of one instruction set, under the one name that its object file exports.
#pragma once

#include "backward.h"
#include "few.h"
#include "fold_table.h"
#include "forward.h"
#include "merge.h"

namespace {

inline std::size_t forward_scratch(const Problem& p, i64 rows) {
#ifdef REGARD_BF16_PAIRS
  if (p.query.dtype == DType::bf16) return forward_scratch_as<Pairs>(p, rows);
#endif
  return forward_scratch_as<Fma>(p, rows);
}

inline void forward(const Problem& p, const Forward& out, const Block& block, const Partial* partial, void* scratch) {
#ifdef REGARD_BF16_PAIRS
  if (p.query.dtype == DType::bf16) return forward_as<Pairs>(p, out, block, partial, scratch);
#endif
  forward_as<Fma>(p, out, block, partial, scratch);
}

}  // namespace

#define REGARD_EXPORT_KERNELS(symbol, name) \
  const regard::Kernels regard::symbol = {  \
      name, kGroup, kTileKeys, forward_scratch, forward, forward_few, few_scratch, merge,            \
      gradients::prepare_backward, gradients::prepare_backward_scratch, gradients::backward,     \
      gradients::backward_scratch, folding::kFoldKernels}
