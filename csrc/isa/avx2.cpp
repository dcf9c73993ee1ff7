// The kernels compiled for avx2.
#include "vector_avx2.h"

#include "../body/table.h"

REGARD_EXPORT_KERNELS(kAvx2, "avx2");
