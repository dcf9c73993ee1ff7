"""Checks of models and of attention: leaks from later inputs, saturated softmax, what the scale is for."""

from regard.checks.leaks import Leak, assert_causal, find_leaks
from regard.checks.saturation import Saturation, saturation
from regard.checks.scaling import ScalingRow, ScalingStudy, scaling_study

__all__ = [
    "Leak",
    "Saturation",
    "ScalingRow",
    "ScalingStudy",
    "assert_causal",
    "find_leaks",
    "saturation",
    "scaling_study",
]
