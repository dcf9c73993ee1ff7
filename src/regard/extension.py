"""The compiled core of this installation, if it has one: the one place that knows.

`native` is the module that `_native.pyi` describes; it is None where `MISSING` says why there is none.
"""

from __future__ import annotations

import torch

__all__ = ["MISSING", "native"]

try:
    import regard._native as native
except ModuleNotFoundError:
    native = None  # type: ignore[assignment]  # who uses it asks before
    MISSING: str | None = (
        "this installation has no native core: it is built on Linux, by a C++ compiler, unless "
        "REGARD_NO_NATIVE is set when regard is installed"
    )
except ImportError as error:
    native = None  # type: ignore[assignment]
    MISSING = f"its extension module cannot be loaded ({error})"
else:
    MISSING = None
    native.know_torch(
        torch.Tensor,
        torch.nn.Parameter,
        (torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.bool),
        torch.empty_like,
    )
    native.use_exchange(getattr(torch.Tensor, "__dlpack_c_exchange_api__", None))
