"""Plot the memory of two steps with matplotlib, if it is installed."""

import importlib.util
from collections.abc import Iterator, Sequence
from io import BytesIO
from itertools import groupby

from zlaunch.errors import Unavailable, WrongUsage

GIB = 1 << 30
INCHES = (10.0, 5.0)

Curve = Sequence[tuple[str, int, int]]
"""Phase, GPU bytes in tensors, GPU bytes reserved."""


def refuse_without_matplotlib() -> None:
    """Raise Unavailable if matplotlib is not installed."""
    if importlib.util.find_spec("matplotlib") is None:
        raise Unavailable("`--plot` needs matplotlib, which is not installed", "`pip install matplotlib`")


def draw(curve: Curve, title: str, limit_bytes: int | None) -> bytes:
    """Plot a curve of memory as PNG; the limit is the GPU's memory."""
    if not curve:
        raise WrongUsage("`--plot` needs a rehearsal, but this estimate is a closed form")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    held = max(reserved for *_, reserved in curve)
    figure = Figure(figsize=INCHES, layout="constrained")
    axes = figure.add_subplot()
    axes.stackplot(range(len(curve)), [used / GIB for _, used, _ in curve], alpha=0.4, labels=["in use"])
    axes.step(range(len(curve)), [reserved / GIB for *_, reserved in curve], label="reserved")
    if limit_bytes is not None:
        axes.axhline(limit_bytes / GIB, linestyle="--", color="black", label="GPU memory")
    for name, start in _phases(curve):
        axes.axvline(start, linewidth=0.5, color="grey")
        axes.text(start, 0.98, name, transform=axes.get_xaxis_transform(), va="top", rotation=90)
    axes.set(title=title, ylabel="GPU memory of one rank (GiB)", xlabel="allocations in order")
    axes.set_xlim(0, max(1, len(curve) - 1))
    axes.set_ylim(0, 1.25 * max(held, limit_bytes or 0) / GIB)
    axes.legend(loc="lower right")
    written = BytesIO()
    FigureCanvasAgg(figure).print_png(written)
    return written.getvalue()


def _phases(curve: Curve) -> Iterator[tuple[str, int]]:
    start = 0
    for name, points in groupby(curve, key=lambda point: point[0]):
        yield name, start
        start += len(list(points))
