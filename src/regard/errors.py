"""The errors that regard raises: one family, each a single sentence that names the cause."""

from __future__ import annotations


class RegardError(Exception):
    """Base of every error that regard raises on purpose."""


class ArgumentError(RegardError, ValueError):
    """An argument has the right type and a value, shape or combination that cannot be served."""


class ArgumentTypeError(RegardError, TypeError):
    """An argument is of a type or dtype that cannot be served."""


class TooLargeError(RegardError, ValueError):
    """An answer would take more memory than the caller allowed; the sentence names its size."""


class StaleWeightsError(RegardError, RuntimeError):
    """Kept weights were asked a question after a tensor they are computed from changed in place."""


class EngineError(RegardError, RuntimeError):
    """The engine that was asked for by name cannot serve this problem."""


class MissingExtraError(RegardError, ImportError):
    """An optional package is not installed; the sentence gives the command that installs it."""


class NothingSeenError(RegardError, RuntimeError):
    """A watch ended without having seen a single attention call."""


class RecordingError(RegardError, ValueError):
    """A recording's file is damaged, or is not a recording."""


class GroupError(RegardError, RuntimeError):
    """A rank died, did not answer in the group's timeout, or does something else than the others."""


class ModelError(RegardError, ValueError):
    """A model cannot be loaded, or its attention cannot be represented exactly."""
