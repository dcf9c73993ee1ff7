// Gradients as Python asks for them: the module's functions for the backward pass.
#pragma once

#include <nanobind/nanobind.h>

namespace regard {

void bind_backward(nanobind::module_& module);

}  // namespace regard
