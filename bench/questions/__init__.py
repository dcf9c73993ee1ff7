"""One file a question, which is its first line; `answer(effort)` yields the rows of the answer."""

# From the plain forward pass to models and machines: the order in which they are asked and shown.
ORDER = (
    "dense",
    "causal",
    "half_precision",
    "window",
    "long_window",
    "boolean_mask",
    "documents",
    "padding",
    "short",
    "decode",
    "value_width",
    "overhead",
    "training",
    "statistics",
    "exact_rows",
    "models",
    "watching",
    "zooming",
    "memory_growth",
    "distributed",
    "sharding_growth",
)
