"""Looking into models, and computing in them: one file for each way in which a model has its attention."""

from regard.models.registering import register
from regard.models.using import use
from regard.models.watching import watch

__all__ = ["register", "use", "watch"]
