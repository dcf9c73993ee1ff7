"""Attention one step at a time, with real numbers: what becomes of a query's scores, up to its output."""

from regard.steps.one_query import Step, Steps, attention_steps
from regard.steps.rows import RowScores, row_scores

__all__ = ["RowScores", "Step", "Steps", "attention_steps", "row_scores"]
