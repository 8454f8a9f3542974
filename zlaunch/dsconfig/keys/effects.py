"""Effects of keys on memory and speed.

Sources: measurements of DeepSpeed 0.19 (allocations per stage, on the device and on the host), its source,
and the ZeRO papers. P is the number of parameters, N the number of ranks; 16-bit training with Adam
unless stated otherwise.
"""

from collections.abc import Mapping

from zlaunch.dsconfig.keys.effect import KeyEffect
from zlaunch.dsconfig.keys.effects_training import TRAINING
from zlaunch.dsconfig.keys.effects_zero import OF_ZERO

EFFECTS: Mapping[str, KeyEffect] = {**TRAINING, **OF_ZERO}
"""Dotted key → what it does."""
