"""Format a comparison of losses: a table for a terminal, and a picture."""

from collections.abc import Iterator
from io import BytesIO

from zlaunch import console
from zlaunch.cli.views.tour import head_lines
from zlaunch.launch.parity import ROUNDING, Parity

SMALLEST = 1e-9
"""Lower end of the axis of differences; none is drawn there."""


def parity_lines(parity: Parity) -> Iterator[str]:
    """Write the losses of all jobs, and how far they are from those without ZeRO."""
    yield from head_lines(parity.experiment, parity.accelerator)
    yield ""
    yield "loss of the first and last step, and the largest difference from the baseline"
    first, steps = parity.curves[0], parity.experiment.steps
    rows = [("", "step 1", f"step {steps}", "difference", "at step")]
    for curve in parity.curves:
        off, step = curve.difference(first)
        difference = ("0", "")
        if curve is first:
            difference = ("", "")
        elif off:
            difference = (f"{off:.1e}", str(step))
        rows.append((curve.label, f"{curve.losses[0]:.6f}", f"{curve.losses[-1]:.6f}", *difference))
    yield from console.figures(rows)
    if parity.most == 0:
        text = "the losses are the same in every bit"
    elif parity.agrees:
        text = f"the losses agree: rounding explains relative differences up to {ROUNDING:g}"
    else:
        text = f"the losses do not agree: rounding explains only relative differences up to {ROUNDING:g}"
    yield from console.paragraph(text)


def draw(parity: Parity) -> bytes:
    """Draw the losses, and below them the relative differences, as PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(10.0, 8.0), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    first, steps = parity.curves[0], range(1, parity.experiment.steps + 1)
    for number, curve in enumerate(parity.curves):
        width = 1.5 + 1.6 * (len(parity.curves) - 1 - number)  # all are seen, where they are the same
        above.plot(steps, curve.losses, label=curve.label, linewidth=width, color=f"C{number}")
        pairs = zip(curve.losses, first.losses, strict=True)
        off = [max(SMALLEST, abs(mine - its) / abs(its)) for mine, its in pairs]
        if max(off) > SMALLEST:
            below.plot(steps, off, label=curve.label, color=f"C{number}")
    below.axhline(ROUNDING, color="crimson", linestyle="--", label="explained by rounding")
    if parity.most == 0:
        middle = {"ha": "center", "va": "center", "transform": below.transAxes}
        below.text(0.5, 0.5, "no difference: the losses are the same in every bit", **middle)
    above.set(ylabel="loss", title="the same model and data at every ZeRO stage")
    below.set(ylabel="relative difference from the baseline", xlabel="step", yscale="log")
    below.set_ylim(SMALLEST, 10 * max(ROUNDING, parity.most))
    below.xaxis.set_major_locator(MaxNLocator(integer=True))
    above.legend()
    below.legend(loc="lower right")
    written = BytesIO()
    FigureCanvasAgg(figure).print_png(written)
    return written.getvalue()
