// Python's entries to the scanning of mask tensors.
#pragma once

#include <nanobind/nanobind.h>

namespace regard {

/// Adds `scan` and `hull` to the module. Documented in _native.pyi.
void bind_scan(nanobind::module_& m);

}  // namespace regard
