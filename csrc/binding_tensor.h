// Reading a torch tensor: where its numbers lie, how, and of which kind, without linking against torch.
#pragma once

#include <Python.h>

#include <cstdint>

#include "problem.h"

namespace regard {

namespace dlpack {
struct Tensor;
}

enum class Kind : std::uint8_t { f32, bf16, f16, i64, boolean, other };

constexpr int kMostDims = 8;

/// A tensor as it lies in memory. `shape` and `stride` (in elements) hold `ndim` numbers.
struct View {
  void* data = nullptr;
  int ndim = 0;
  std::int64_t shape[kMostDims];
  std::int64_t stride[kMostDims];
  Kind kind = Kind::other;
  bool on_cpu = false;
};

/// What is known of torch: types, dtypes, a function, and its DLPack table if it offers one. Set once, from Python.
struct Torch {
  PyObject* tensor = nullptr;     // torch.Tensor
  PyObject* parameter = nullptr;  // torch.nn.Parameter
  PyObject* dtypes[5] = {};       // in the order of Kind
  PyObject* empty_like = nullptr;
  int (*read)(void* py_object, dlpack::Tensor* out) = nullptr;
};

Torch& torch();

/// Takes the table out of a capsule. Returns false, and forgets what was there, for None or one that cannot be used.
bool use_exchange(PyObject* capsule);

/// Fills `view`. Returns false with a Python exception set if `object` is no tensor that lies in memory.
bool read_tensor(PyObject* object, View& view);

/// Whether the object is exactly a torch.Tensor or a Parameter: no subclass, whose operations may mean anything.
inline bool is_plain(PyObject* object) {
  PyObject* const type = reinterpret_cast<PyObject*>(Py_TYPE(object));
  return type == torch().tensor || type == torch().parameter;
}

}  // namespace regard
