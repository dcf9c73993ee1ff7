// The kernels compiled for neon.
#include "vector_neon.h"

#include "../body/table.h"

REGARD_EXPORT_KERNELS(kNeon, "neon");
