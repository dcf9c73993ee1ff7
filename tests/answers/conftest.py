"""The real models, as the tests of models have them."""

from models.conftest import _without_gradients, minilm, smollm2

__all__ = ["_without_gradients", "minilm", "smollm2"]
