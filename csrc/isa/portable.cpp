// The kernels compiled for portable.
#include "vector_portable.h"

#include "../body/table.h"

REGARD_EXPORT_KERNELS(kPortable, "portable");
