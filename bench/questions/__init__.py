"""One file a question, which is its first line; `answer(effort)` yields the rows of the answer."""
