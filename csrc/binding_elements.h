// Tensors that Python preallocated, read as plain pointers: whether they are what the core is about to read or fill.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <initializer_list>
#include <string>

#include "binding_tensor.h"

namespace regard {

using Shape = std::initializer_list<std::int64_t>;

[[noreturn]] inline void refuse_tensor(const char* name, const char* what) {
  throw nanobind::value_error((std::string("`") + name + "` " + what).c_str());
}

inline View view_of(nanobind::handle object) {
  View view;
  if (!read_tensor(object.ptr(), view)) throw nanobind::python_error();
  return view;
}

inline bool has_shape(const View& view, Shape shape) {
  if (view.ndim != static_cast<int>(shape.size()) || !view.on_cpu) return false;
  int d = 0;
  for (const std::int64_t size : shape) {
    if (view.shape[d++] != size) return false;
  }
  return true;
}

/// The elements of a contiguous float32 tensor; null for None.
inline float* floats_of(nanobind::handle object, Shape shape, const char* name) {
  if (object.is_none()) return nullptr;
  const View view = view_of(object);
  bool fits = view.kind == Kind::f32 && has_shape(view, shape);
  std::int64_t step = 1;
  for (int d = view.ndim - 1; fits && d >= 0; --d) {
    fits = view.shape[d] <= 1 || view.stride[d] == step || step == 0;
    step *= view.shape[d];
  }
  if (!fits) refuse_tensor(name, "must be contiguous float32 of the shape that belongs to the problem");
  return static_cast<float*>(view.data);
}

}  // namespace regard
