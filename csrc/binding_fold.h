// Python's entries to the questions that are asked of the weights.
#pragma once

#include <nanobind/nanobind.h>

namespace regard {

/// Adds `fold`, `fold_transposed` and `fold_rows` to the module. Documented in _native.pyi.
void bind_fold(nanobind::module_& m);

}  // namespace regard
