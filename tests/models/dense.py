"""Dense masks from plain predicates: written without any of what they test."""

import torch


def predicate_mask(predicate, batch, heads, n_queries, n_keys):
    """Bool `[batch, heads, n_queries, n_keys]`, true where `predicate(item, row, column)` is."""
    return torch.tensor(
        [
            [
                [[bool(predicate(b, i, j)) for j in range(n_keys)] for i in range(n_queries)]
                for _ in range(heads)
            ]
            for b in range(batch)
        ]
    )
