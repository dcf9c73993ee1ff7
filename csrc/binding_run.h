// Running a problem on behalf of Python: the GIL released, Ctrl-C answered, errors as Python's.
#pragma once

#include <functional>

#include "problem.h"

namespace regard {

struct Kernels;

/// The kernels that this process uses. Raises EngineError if REGARD_ISA forbids to choose any.
const Kernels& kernels_or_raise();

/// Fills `forward`. Raises what a signal handler raised (KeyboardInterrupt, as a rule).
void run(const Problem& problem, const Forward& forward, int threads);

/// The same for anything else: `call` gets the kernels and how many of the threads are of use to `work` multiply-adds,
/// and returns false if it was interrupted.
void run_released(double work, int threads, const std::function<bool(const Kernels&, int)>& call);

/// The same for what needs no kernels, and so runs whatever REGARD_ISA says.
void run_released(double work, int threads, const std::function<bool(int)>& call);

}  // namespace regard
