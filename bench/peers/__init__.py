"""One small file a contender; each offers the tasks it can do, prepared outside the timing.

A task takes a Workload and returns the function to time, which returns its results by name:
`output` (the attention output), `statistics` (output and what is asked of the weights), `gradients`.
Where it cannot do the workload, or is not installed, it raises Unfit with the reason, which is shown.
"""

from __future__ import annotations


class Unfit(Exception):  # noqa: N818
    """A contender does not take part in a case, and why."""
