"""What was seen of a model: its attention calls in order, to ask, to join and to save."""

from regard.recording.calls import Call
from regard.recording.recording import Recording

__all__ = ["Call", "Recording"]
