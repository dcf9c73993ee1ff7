// What makes a call plain, and its problem, built without Python's help.
#include "binding_attend.h"

#include <cmath>
#include <cstdint>
#include <memory>

#include "binding_problem.h"
#include "binding_run.h"
#include "binding_tensor.h"

namespace nb = nanobind;

namespace regard {
namespace {

constexpr std::int64_t kFar = std::int64_t{1} << 40;  // beyond every column; sums of a few stay far from overflow

/// An int of moderate size. False for anything else.
bool small_int(nb::handle object, std::int64_t& out) {
  if (!PyLong_CheckExact(object.ptr())) return false;
  int overflow = 0;
  out = PyLong_AsLongLongAndOverflow(object.ptr(), &overflow);
  return overflow == 0 && out <= kFar && out >= -kFar;
}

/// The bounds of every row. False if they are not plain numbers.
bool take_band(Problem& p, nb::handle before, nb::handle after, nb::handle offset) {
  std::int64_t first = p.n_keys - p.n_queries, reach;
  if (!offset.is_none() && !small_int(offset, first)) return false;
  Intervals& bounds = p.intervals;
  bounds.first_end = p.n_keys;
  if (!before.is_none()) {
    if (!small_int(before, reach)) return false;
    bounds.first_start = first - reach;
    bounds.start_step = 1;
  }
  if (!after.is_none()) {
    if (!small_int(after, reach)) return false;
    bounds.first_end = first + reach + 1;
    bounds.end_step = 1;
  }
  return true;
}

/// Whether a tensor means the negatives of the numbers in memory, as the imaginary part of a conjugate does.
bool is_negated(nb::handle tensor) {
  static PyObject* const name = PyUnicode_InternFromString("is_neg");
  PyObject* arguments[] = {nullptr, tensor.ptr()};  // the first is room that the callee may use
  PyObject* const answer =
      PyObject_VectorcallMethod(name, arguments + 1, 1 | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr);
  if (answer == nullptr) throw nb::python_error();
  return nb::steal(answer).is(nb::handle(Py_True));
}

bool is_contiguous(const View& view) {
  std::int64_t stride = 1;
  for (int d = view.ndim - 1; d >= 0; --d) {
    if (view.shape[d] != 1 && view.stride[d] != stride) return false;
    stride *= view.shape[d];
  }
  return true;
}

/// A new, contiguous tensor like the query but for its last dimension.
nb::object new_output(nb::handle query, const View& view, std::int64_t value_dim) {
  PyObject* made;
  PyObject* arguments[] = {nullptr, query.ptr(), nullptr};  // the first is room that the callee may use
  if (value_dim == view.shape[view.ndim - 1] && is_contiguous(view)) {  // the most common case, and the quickest
    made = PyObject_Vectorcall(torch().empty_like, arguments + 1, 1 | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr);
  } else {
    const nb::object sizes = nb::steal(PyTuple_New(view.ndim));
    if (!sizes.is_valid()) throw nb::python_error();
    for (int d = 0; d < view.ndim; ++d) {
      PyObject* const size = PyLong_FromLongLong(d + 1 < view.ndim ? view.shape[d] : value_dim);
      if (size == nullptr) throw nb::python_error();
      PyTuple_SET_ITEM(sizes.ptr(), d, size);
    }
    static PyObject* const name = PyUnicode_InternFromString("new_empty");
    arguments[2] = sizes.ptr();
    made = PyObject_VectorcallMethod(name, arguments + 1, 2 | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr);
  }
  if (made == nullptr) throw nb::python_error();
  return nb::steal(made);
}

}  // namespace

nb::object attend(nb::handle query, nb::handle key, nb::handle value, nb::handle before, nb::handle after,
                  nb::handle offset, nb::handle scale, int threads) {
  if (!is_plain(query.ptr()) || !is_plain(key.ptr()) || !is_plain(value.ptr())) return nb::none();
  View q, k, v;
  if (!read_tensor(query.ptr(), q) || !read_tensor(key.ptr(), k) || !read_tensor(value.ptr(), v)) {
    PyErr_Clear();
    return nb::none();
  }
  Problem p;
  if (q.ndim != k.ndim || q.ndim != v.ndim || take_inputs(p, q, k, &v) != nullptr) return nb::none();
  if (!take_band(p, before, after, offset)) return nb::none();
  if (is_negated(query) || is_negated(key) || is_negated(value)) return nb::none();
  if (scale.is_none()) {
    p.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(p.head_dim)));
  } else if (PyFloat_CheckExact(scale.ptr()) && std::isfinite(PyFloat_AS_DOUBLE(scale.ptr()))) {
    p.scale = static_cast<float>(PyFloat_AS_DOUBLE(scale.ptr()));
  } else {
    return nb::none();
  }
  const std::int64_t start = 0;  // a band is relative: where it all begins makes no difference here
  p.query_start = p.key_start = &start;

  nb::object output = new_output(query, q, p.value_dim);
  View out;
  if (!read_tensor(output.ptr(), out)) throw nb::python_error();
  Forward forward;
  forward.output.data = out.data;
  forward.output.dtype = p.query.dtype;
  const std::int64_t rows = p.n_queries * p.value_dim;
  const std::int64_t strides[4] = {p.query_heads * rows, rows, p.value_dim, 1};
  for (int d = 0; d < 4; ++d) forward.output.stride[d] = strides[d];
  // Nobody asks for the normalizer: its parts overwrite one another in a row's worth of memory that is then dropped.
  const std::int64_t all_rows = p.batch * p.query_heads * p.n_queries;
  float few[256];
  const std::unique_ptr<float[]> many(all_rows > 256 ? new float[static_cast<std::size_t>(all_rows)] : nullptr);
  forward.maximum = forward.shift = forward.denominator = many != nullptr ? many.get() : few;
  run(p, forward, threads);
  return output;
}

}  // namespace regard
