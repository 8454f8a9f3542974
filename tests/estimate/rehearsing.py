"""Rehearse workloads, where each must have a forecast."""

import atexit
from collections.abc import Sequence

from zlaunch.estimate.forecast import Forecast
from zlaunch.estimate.rehearse import Rehearser
from zlaunch.estimate.workload import Workload

_SHARED = Rehearser()
"""All tests of a worker ask one program, with the environment of the first test that asks it: importing the packages
takes longer than most rehearsals.
"""
atexit.register(_SHARED.close)


def rehearse(workloads: Sequence[Workload], rehearser: Rehearser = _SHARED) -> list[Forecast]:
    """Rehearse workloads; raise the first error."""
    forecasts: list[Forecast] = []
    for found in rehearser(workloads):
        if not isinstance(found, Forecast):
            raise found
        forecasts.append(found)
    return forecasts


def rehearse_apart(workloads: Sequence[Workload]) -> list[Forecast]:
    """Rehearse workloads in a program of their own, which gets the environment of this moment."""
    with Rehearser() as rehearser:
        return rehearse(workloads, rehearser)
