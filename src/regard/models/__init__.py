"""Looking into models: one file for each way in which a model computes its attention."""

from regard.models.watching import watch

__all__ = ["watch"]
