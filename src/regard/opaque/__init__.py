"""Attention as one operator of torch's, for whatever looks at a call from outside.

That is torch.compile and torch.export, transforms of torch.func, fake tensors, modes and tensor subclasses. A
mask is decided by looking at values, which none of them can follow: the operator looks inside.
"""

from regard.opaque import rules  # noqa: F401 (derivatives and vmap of the operator)
from regard.opaque.calling import attend

__all__ = ["attend"]
