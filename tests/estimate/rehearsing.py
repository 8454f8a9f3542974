"""Rehearse workloads, where each must have a forecast."""

from collections.abc import Sequence

from zlaunch.estimate.forecast import Forecast
from zlaunch.estimate.rehearse import Rehearser
from zlaunch.estimate.workload import Workload


def rehearse(workloads: Sequence[Workload]) -> list[Forecast]:
    """Rehearse workloads; raise the first error."""
    forecasts: list[Forecast] = []
    with Rehearser() as rehearser:
        for found in rehearser(workloads):
            if not isinstance(found, Forecast):
                raise found
            forecasts.append(found)
    return forecasts
