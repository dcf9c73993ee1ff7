// Finding the OpenMP runtime that torch uses among the libraries of this process.
#include "openmp.h"

#include <dlfcn.h>
#if defined(__linux__)
#include <link.h>
#endif

#include <cstring>
#include <vector>

namespace regard {
namespace {

// LLVM's and Intel's runtimes export libgomp's entry points too.
constexpr const char* kParallel = "GOMP_parallel";

#if defined(__linux__)
std::vector<std::string> loaded_libraries() {
  std::vector<std::string> names;
  const auto add = [](dl_phdr_info* info, std::size_t, void* list) {
    if (info->dlpi_name != nullptr && *info->dlpi_name != '\0') {
      static_cast<std::vector<std::string>*>(list)->emplace_back(info->dlpi_name);
    }
    return 0;
  };
  dl_iterate_phdr(add, &names);
  return names;
}

bool is_called(const std::string& path, const char* name) {
  const std::size_t slash = path.rfind('/');
  return std::strncmp(path.c_str() + (slash == std::string::npos ? 0 : slash + 1), name, std::strlen(name)) == 0;
}
#endif

/// From the library, or one that it depends on.
OpenMP of(void* library) {
  OpenMP found;
  void* parallel = dlsym(library, kParallel);
  if (parallel == nullptr) return found;
  Dl_info where;
  if (dladdr(parallel, &where) == 0 || where.dli_fname == nullptr) return found;
  std::memcpy(&found.parallel, &parallel, sizeof parallel);
  if (void* in_parallel = dlsym(library, "omp_in_parallel")) {
    std::memcpy(&found.in_parallel, &in_parallel, sizeof in_parallel);
  }
  found.path = where.dli_fname;
  return found;
}

OpenMP find() {
#if defined(__linux__)
  // The order is that in which torch's own calls were resolved: what is visible to all (a preloaded runtime too), then
  // what torch depends on. A process may hold several runtimes, other packages' among them; those come last.
  OpenMP found = of(RTLD_DEFAULT);
  if (found.parallel != nullptr) return found;
  const std::vector<std::string> libraries = loaded_libraries();
  for (const char* name : {"libtorch_cpu", "libgomp", "libiomp5", "libomp"}) {
    for (const std::string& path : libraries) {
      if (!is_called(path, name)) continue;
      void* library = dlopen(path.c_str(), RTLD_NOLOAD | RTLD_NOW);
      if (library == nullptr) continue;
      found = of(library);  // the reference taken by dlopen is kept: what was found must stay
      if (found.parallel != nullptr) return found;
      dlclose(library);
    }
  }
#endif
  return {};
}

}  // namespace

const OpenMP& borrowed_openmp() {
  static const OpenMP found = find();
  return found;
}

}  // namespace regard
