"""Checks of models and of attention: leaks, saturated softmax, what the scale is for, training monitored."""

from regard.checks.leaks import Leak, assert_causal, find_leaks
from regard.checks.monitor import HeadState, Monitor, monitor
from regard.checks.saturation import Saturation, saturation
from regard.checks.scaling import ScalingRow, ScalingStudy, scaling_study

__all__ = [
    "HeadState",
    "Leak",
    "Monitor",
    "Saturation",
    "ScalingRow",
    "ScalingStudy",
    "assert_causal",
    "find_leaks",
    "monitor",
    "saturation",
    "scaling_study",
]
