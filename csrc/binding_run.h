// Running a problem on behalf of Python: the GIL released, Ctrl-C answered, errors as Python's.
#pragma once

#include "problem.h"

namespace regard {

/// The kernels that this process uses. Raises EngineError if REGARD_ISA forbids to choose any.
const struct Kernels& kernels_or_raise();

/// Fills `forward`. Raises what a signal handler raised (KeyboardInterrupt, as a rule).
void run(const Problem& problem, const Forward& forward, int threads);

}  // namespace regard
