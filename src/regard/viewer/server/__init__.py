"""The live view of a recording: a local server, and the questions that its page asks."""
