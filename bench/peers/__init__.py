"""One small file a contender; each offers the tasks it can do, prepared outside the timing.

A task takes a Workload and returns the function to time, which returns its results by name:
`output` (the attention output), `statistics` (output and what is asked of the weights), `gradients`.
"""
