// The part of DLPack 1.x that is read here: one tensor's description, and the table through which a framework gives it.
//
// Laid out as in dlpack.h of https://github.com/dmlc/dlpack (Apache License 2.0), whose ABI is fixed within a major
// version.
#pragma once

#include <cstdint>

namespace regard::dlpack {

constexpr std::uint32_t kMajor = 1;
constexpr const char* kCapsuleName = "dlpack_exchange_api";

enum DeviceType : std::int32_t { kCpu = 1 };
enum TypeCode : std::uint8_t { kInt = 0, kUInt = 1, kFloat = 2, kBfloat = 4, kComplex = 5, kBool = 6 };

struct Device {
  std::int32_t type;
  std::int32_t id;
};

struct DataType {
  std::uint8_t code;
  std::uint8_t bits;
  std::uint16_t lanes;
};

struct Tensor {
  void* data;
  Device device;
  std::int32_t ndim;
  DataType dtype;
  std::int64_t* shape;
  std::int64_t* strides;  // in elements
  std::uint64_t byte_offset;
};

/// What a Python type offers as `__dlpack_c_exchange_api__`. Functions that are not called here are untyped.
struct ExchangeApi {
  std::uint32_t major, minor;
  ExchangeApi* previous;  // the table of an earlier major version, or null
  void* managed_tensor_allocator;
  void* managed_tensor_from_py_object;
  void* managed_tensor_to_py_object;
  /// Fills `out` with pointers into the object, valid while it lives; may be null. Returns -1 with an exception set.
  int (*tensor_from_py_object)(void* py_object, Tensor* out);
  void* current_work_stream;
};

}  // namespace regard::dlpack
