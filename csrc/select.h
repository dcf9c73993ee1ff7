// Which instruction set's kernels run, chosen once, and why.
#pragma once

#include <string>
#include <vector>

#include "kernels.h"

namespace regard {

struct Selection {
  const Kernels* kernels = nullptr;  // null: `reason` says in a sentence what is wrong with REGARD_ISA
  std::string reason;
};

/// The choice of this process: REGARD_ISA if it is set, else by a fixed rule; never by a timing.
const Selection& selection();

/// The choice under a value of REGARD_ISA (null or empty: by the rule).
Selection select(const char* forced);

/// The names that this machine can run, widest first.
std::vector<std::string> runnable_isas();

}  // namespace regard
