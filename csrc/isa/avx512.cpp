// The kernels compiled for avx512.
#include "vector_avx512.h"

#include "../body/table.h"

REGARD_EXPORT_KERNELS(kAvx512, "avx512");
