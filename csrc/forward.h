// The forward pass of a whole problem: cut into tasks, run on threads, splits merged.
#pragma once

#include "kernels.h"

namespace regard {

/// Fills `forward`. Returns false if interrupted (what was filled is then worth nothing).
bool run_forward(const Kernels&, const Problem&, const Forward&, int threads);

}  // namespace regard
