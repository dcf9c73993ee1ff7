// Joining what several splits of the keys gave for the same rows: in the order of the keys, so always to the same bits.
#pragma once

#include "math.h"
#include "rows.h"
#include "normalise.h"

namespace {

/// `partials[s]` holds the rows of the block over split s.
inline void merge(const Problem& p, const Forward& out, const Block& block, const Partial* partials, i64 splits,
                  void* scratch) {
  float* row = (float*)scratch;
  for (i64 r = block.first_row; r < block.last_row; r++) {
    const i64 at = r - block.first_row;
    float maximum = -kInfinity, sum = 0;
    for (i64 s = 0; s < splits; s++) {
      const float m = partials[s].maximum[at];
      maximum = m != m || maximum != maximum ? m + maximum : max(maximum, m);
    }
    const float reference = maximum == -kInfinity ? 0.0f : maximum;
    for (i64 e = 0; e < p.value_dim; e++) row[e] = 0;
    for (i64 s = 0; s < splits; s++) {
      const float l = partials[s].denominator[at];
      if (l == 0) continue;  // nothing there, and -inf - 0 would be harmless but for what its output may hold
      float weights[kVector];
      store(weights, exp_of(splat(partials[s].maximum[at] - reference)));
      const float weight = weights[0];
      sum += weight * l;
      const float* from = partials[s].output + at * p.value_dim;
      for (i64 e = 0; e < p.value_dim; e++) row[e] += weight * from[e];
    }
    const i64 head = block.key_head * p.group_size() + r % p.group_size(), query = r / p.group_size();
    const float factor = normalise(p, out, block.item, head, query, maximum, sum);
    if (p.value_dim)
      pack(row, factor, p.value_dim, (void*)address(out.output, block.item, head, query), out.output.dtype);
  }
}

}  // namespace
