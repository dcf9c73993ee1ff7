// Two ways to read a tensor: torch's DLPack table, in tens of nanoseconds, or the attributes that every torch has.
#include "binding_tensor.h"

#include <cstring>

#include "dlpack.h"

namespace regard {
namespace {

Kind kind_of(const dlpack::DataType& type) {
  if (type.lanes != 1) return Kind::other;
  switch (type.code) {
    case dlpack::kFloat: return type.bits == 32 ? Kind::f32 : type.bits == 16 ? Kind::f16 : Kind::other;
    case dlpack::kBfloat: return type.bits == 16 ? Kind::bf16 : Kind::other;
    case dlpack::kInt: return type.bits == 64 ? Kind::i64 : Kind::other;
    case dlpack::kBool: return type.bits == 8 ? Kind::boolean : Kind::other;
    default: return Kind::other;
  }
}

bool too_many_dims(long long ndim) {
  PyErr_Format(PyExc_ValueError, "a tensor of %lld dimensions came, and at most %d are read", ndim, kMostDims);
  return false;
}

bool read_by_table(PyObject* object, View& view) {
  dlpack::Tensor tensor;
  if (torch().read(object, &tensor) != 0) return false;
  if (tensor.ndim > kMostDims) return too_many_dims(tensor.ndim);
  view.data = static_cast<char*>(tensor.data) + tensor.byte_offset;
  view.ndim = tensor.ndim;
  for (int d = 0; d < tensor.ndim; ++d) {
    view.shape[d] = tensor.shape[d];
    view.stride[d] = tensor.strides[d];
  }
  view.kind = kind_of(tensor.dtype);
  view.on_cpu = tensor.device.type == dlpack::kCpu;
  return true;
}

/// Owns one reference, which may be null where an exception is set.
class Reference {
 public:
  explicit Reference(PyObject* object) : object_(object) {}
  ~Reference() { Py_XDECREF(object_); }
  Reference(const Reference&) = delete;
  Reference& operator=(const Reference&) = delete;
  PyObject* get() const { return object_; }
  explicit operator bool() const { return object_ != nullptr; }

 private:
  PyObject* object_;
};

/// The ints of a sequence (torch.Size, or the tuple of strides); -1 with an exception set.
int read_ints(PyObject* sequence, std::int64_t* out) {
  const Py_ssize_t count = PySequence_Size(sequence);
  if (count < 0) return -1;
  if (count > kMostDims) return too_many_dims(count), -1;
  for (Py_ssize_t d = 0; d < count; ++d) {
    const Reference item(PySequence_GetItem(sequence, d));
    if (!item) return -1;
    out[d] = PyLong_AsLongLong(item.get());
    if (out[d] == -1 && PyErr_Occurred()) return -1;
  }
  return static_cast<int>(count);
}

bool read_by_attributes(PyObject* object, View& view) {
  const Reference dtype(PyObject_GetAttrString(object, "dtype"));
  const Reference device(PyObject_GetAttrString(object, "device"));
  const Reference shape(PyObject_GetAttrString(object, "shape"));
  const Reference stride(PyObject_CallMethod(object, "stride", nullptr));
  const Reference pointer(PyObject_CallMethod(object, "data_ptr", nullptr));
  if (!dtype || !device || !shape || !stride || !pointer) return false;
  const Reference type(PyObject_GetAttrString(device.get(), "type"));
  if (!type) return false;
  view.on_cpu = PyUnicode_Check(type.get()) && PyUnicode_CompareWithASCIIString(type.get(), "cpu") == 0;
  view.data = PyLong_AsVoidPtr(pointer.get());
  if (view.data == nullptr && PyErr_Occurred()) return false;
  view.ndim = read_ints(shape.get(), view.shape);
  if (view.ndim < 0 || read_ints(stride.get(), view.stride) != view.ndim) return false;
  view.kind = Kind::other;
  for (int kind = 0; kind < 5; ++kind) {
    if (dtype.get() == torch().dtypes[kind]) view.kind = static_cast<Kind>(kind);
  }
  return true;
}

}  // namespace

Torch& torch() {
  static Torch known;
  return known;
}

bool use_exchange(PyObject* capsule) {
  torch().read = nullptr;
  if (capsule == Py_None || !PyCapsule_IsValid(capsule, dlpack::kCapsuleName)) return false;
  auto* api = static_cast<dlpack::ExchangeApi*>(PyCapsule_GetPointer(capsule, dlpack::kCapsuleName));
  while (api != nullptr && api->major != dlpack::kMajor) api = api->previous;
  if (api == nullptr || api->tensor_from_py_object == nullptr) return false;
  torch().read = api->tensor_from_py_object;
  return true;
}

bool read_tensor(PyObject* object, View& view) {
  if (!PyObject_TypeCheck(object, reinterpret_cast<PyTypeObject*>(torch().tensor))) {
    PyErr_Format(PyExc_TypeError, "a torch.Tensor was expected, got a %s", Py_TYPE(object)->tp_name);
    return false;
  }
  return torch().read != nullptr ? read_by_table(object, view) : read_by_attributes(object, view);
}

}  // namespace regard
