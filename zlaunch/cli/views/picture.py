"""Draw stacked bars of memory with matplotlib, as PNG or SVG; readable without colour."""

import importlib.util
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from itertools import chain, groupby
from pathlib import Path
from typing import Any, Final

from zlaunch.errors import Unavailable, WrongUsage
from zlaunch.files import check_new

MIB: Final = 1 << 20
GIB: Final = 1 << 30
SUFFIXES: Final = ("png", "svg")
NEAR: Final = 2.5
"""A limit is drawn if it is less than so many times the longest bar."""
CUT: Final = 5
"""A bar is cut where it is so many times the limit."""
CHARACTER_INCHES: Final = 0.066
"""Width of a letter beside a bar, at most on average."""
LEAST: Final = 0.004
"""Parts below this share of the longest bar in all bars are drawn together."""
CHARACTERS_PER_INCH: Final = 11
PANEL_INCHES: Final = {1: 6.0, 2: 4.4, 3: 3.8}
"""Number of panels → width of each."""

CACHE: Final = "cache"
CONTEXT: Final = "context"
OTHER: Final = "other"

STYLES: Final[Mapping[str, tuple[str, str, str]]] = {
    "tensors": ("tensors", "#4c78a8", ""),
    "parameters": ("parameters", "#12305c", ""),
    "master weights": ("fp32 copy of the parameters", "#3a6fb0", ""),
    "optimizer states": ("optimizer states", "#86b4e0", ""),
    "gradients": ("gradients", "#d3e4f5", ""),
    "gathered parameters": ("parameters gathered from other ranks", "#1f5f3a", "//"),
    "buckets": ("communication buffers", "#7fbf7b", ".."),
    "swap buffers": ("swap buffers", "#c7e9c0", "oo"),
    "activations": ("activations", "#c65f00", "--"),
    "logits": ("logits", "#f7a65a", "\\\\"),
    "optimizer step": ("temporary in the optimizer step", "#fde3c8", "xx"),
    "workspace": ("workspace", "#eeeeee", "++"),
    "pageable": ("pageable memory", "#5b5b5b", ""),
    "pinned": ("page-locked memory", "#b0b0b0", "//"),
    "shm": ("shared memory", "#e0e0e0", ".."),
    "all-reduce": ("all-reduce", "#2171b5", "||"),
    "reduce-scatter": ("reduce-scatter", "#74c476", "--"),
    "all-gather": ("all-gather", "#fd8d3c", "xx"),
    OTHER: ("other", "#999999", ""),
    CACHE: ("free, in the cache of torch's allocator", "#ffffff", ".."),
    CONTEXT: ("CUDA and NCCL, at most", "#ffffff", "//"),
}
"""Part → label, colour and hatching, in the order in which parts are stacked. They also differ in grey."""

_STYLE: Final[Mapping[str, Any]] = {
    "font.family": ["DejaVu Sans"],
    "font.size": 9,
    "text.parse_math": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "zlaunch",
    "hatch.linewidth": 0.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
}

Curve = Sequence[tuple[str, int, int]]
"""Phase, GPU bytes in tensors, GPU bytes reserved."""


@dataclass(frozen=True)
class Bar:
    """One bar: what it consists of, in bytes, and the text beside it."""

    parts: Mapping[str, int]
    note: str = ""

    @property
    def total(self) -> int:
        """The length of the bar."""
        return sum(self.parts.values())


@dataclass(frozen=True)
class Panel:
    """Bars below each other, on one axis."""

    title: str
    bars: Sequence[Bar]
    limit: int | None = None
    """Memory of the GPU, drawn as a line if it is near."""
    limit_name: str = ""

    @property
    def longest(self) -> int:
        """The longest bar."""
        return max((bar.total for bar in self.bars), default=0)

    @property
    def is_limit_near(self) -> bool:
        """Whether the limit is drawn."""
        return self.limit is not None and self.limit < NEAR * self.longest

    @property
    def shown(self) -> int:
        """Bytes up to which bars are drawn: the longest bar and the limit, if that is near."""
        if self.limit is None or not self.is_limit_near:
            return max(1, self.longest)
        return int(max(self.limit, min(self.longest, CUT * self.limit)))

    def axis(self, inches: float) -> float:
        """Return the bytes at which an axis of this width ends: the text beside each bar is inside."""
        ends = [1.02 * self.shown]
        for bar in self.bars:
            text = CHARACTER_INCHES * (len(bar.note) + 2)
            ends.append(min(bar.total, self.shown) / max(0.1, 1 - text / inches))
        return max(ends)

    def merged(self) -> "Panel":
        """Put parts together that are too small to be seen in any bar."""
        seen: set[str] = set()
        for bar in self.bars:
            seen.update(part for part, size in bar.parts.items() if size >= LEAST * self.shown)
        bars = [Bar(_merged(bar, seen), bar.note) for bar in self.bars]
        return Panel(self.title, bars, self.limit, self.limit_name)


@dataclass(frozen=True)
class Picture:
    """Panels beside each other whose bars have the same names, and a curve below them if there is one."""

    title: str
    lines: Sequence[str]
    """What is shown, and what it means."""
    names: Sequence[str]
    panels: Sequence[Panel]
    curve: Curve = ()


def _merged(bar: Bar, seen: set[str]) -> dict[str, int]:
    kept = {part: bar.parts[part] for part in STYLES if part in bar.parts and part in seen}
    rest = bar.total - sum(kept.values())
    if rest:
        return {**kept, OTHER: kept.get(OTHER, 0) + rest}
    return kept


def check_plot(file: Path) -> None:
    """Raise WrongUsage for another format, and Unavailable without matplotlib or if the file exists."""
    if _file_format(file) not in SUFFIXES:
        raise WrongUsage(
            f"`--plot {file}` is neither PNG nor SVG", f"write `--plot {file.stem or 'memory'}.png`"
        )
    if importlib.util.find_spec("matplotlib") is None:
        raise Unavailable("`--plot` needs matplotlib, which is not installed", "`pip install matplotlib`")
    check_new(file)


def _file_format(file: Path) -> str:
    return file.suffix.removeprefix(".").lower()


def render(picture: Picture, file: Path) -> bytes:
    """Draw a picture in the format that the name of the file asks for; equal pictures give equal bytes."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    written = BytesIO()
    with style():
        figure = figure_of(picture)
        if _file_format(file) == "svg":
            FigureCanvasSVG(figure).print_svg(written, metadata={"Date": None, "Title": picture.title})
        else:
            figure.set_dpi(120)
            FigureCanvasAgg(figure).print_png(written, metadata={"Title": picture.title})
    return written.getvalue()


@contextmanager
def style() -> Iterator[None]:
    """Use the settings of zlaunch, and none of the user's, for figures that are made and drawn inside."""
    import matplotlib as mpl

    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(_STYLE)
        yield


def figure_of(picture: Picture) -> Any:
    """Lay out a picture as a figure of matplotlib."""
    from matplotlib.figure import Figure

    panels = [panel.merged() for panel in picture.panels]
    width = 1.6 + PANEL_INCHES[len(panels)] * len(panels) + 2.6
    lines: list[str] = []
    for text in picture.lines:
        lines += textwrap.wrap(text, int(width * CHARACTERS_PER_INCH))
    head = 0.45 + 0.2 * len(lines)
    heights = [0.75 + 0.34 * len(picture.names)]
    if picture.curve:
        heights.append(2.3)
    height = head + sum(heights)
    figure = Figure(figsize=(width, height), layout="constrained")
    engine: Any = figure.get_layout_engine()
    engine.set(rect=(0.005, 0.01, 0.99, 1 - head / height - 0.01), wspace=0.04, hspace=0.06)
    figure.text(0.01, 1 - 0.12 / height, picture.title, va="top", fontsize=12, weight="bold")
    for number, line in enumerate(lines):
        figure.text(0.01, 1 - (0.38 + 0.2 * number) / height, line, va="top")
    rows = figure.add_gridspec(len(heights), 1, height_ratios=heights)
    top = rows[0].subgridspec(1, len(panels))
    pad = 18 if any(panel.is_limit_near for panel in panels) else 6
    inches = 0.93 * PANEL_INCHES[len(panels)]
    drawn = [
        _draw(figure.add_subplot(top[0, number]), panel, panel.axis(inches), pad)
        for number, panel in enumerate(panels)
    ]
    _name_bars(drawn, picture.names)
    _legend(figure, panels)
    if picture.curve:
        _draw_curve(figure.add_subplot(rows[1]), picture.curve)
    return figure


def _draw(axes: Any, panel: Panel, end: float, pad: float) -> Any:
    shown = panel.shown
    unit, name = _unit(shown)
    for row, bar in enumerate(panel.bars):
        start = 0
        for part, size in bar.parts.items():
            stop = min(shown, start + size)
            _, colour, hatch = STYLES[part]
            axes.barh(row, (stop - start) / unit, left=start / unit, height=0.66, color=colour, hatch=hatch,
                      edgecolor="black", linewidth=0.5)  # fmt: skip
            start = stop
        note = f"\u2026 {bar.note}" if bar.total > shown else bar.note
        axes.annotate(
            note,
            (start / unit, row),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            zorder=3,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8},
        )
    if panel.limit is not None and panel.is_limit_near:
        axes.axvline(panel.limit / unit, linestyle="--", color="black", linewidth=1.2, zorder=1)
        axes.text(panel.limit / unit, 1.01, panel.limit_name, transform=axes.get_xaxis_transform(),
                  ha="center", va="bottom", fontsize=8)  # fmt: skip
    axes.set_xlim(0, end / unit)
    axes.set_ylim(len(panel.bars) - 0.4, -0.6)
    axes.set_xlabel(name)
    axes.set_title(panel.title, loc="left", fontsize=9.5, weight="bold", pad=pad)
    return axes


def _unit(most: int) -> tuple[int, str]:
    """Return the unit of an axis, which is that of the texts beside the bars."""
    if most >= 100 * MIB:
        return GIB, "GiB"
    return MIB, "MiB"


def _name_bars(drawn: Sequence[Any], names: Sequence[str]) -> None:
    for axes in drawn:
        axes.set_yticks(range(len(names)), [""] * len(names))
        axes.tick_params(axis="y", length=0)
    drawn[0].set_yticklabels(names)


def _legend(figure: Any, panels: Sequence[Panel]) -> None:
    from matplotlib.patches import Patch

    used: set[str] = set()
    for bar in chain.from_iterable(panel.bars for panel in panels):
        used.update(bar.parts)
    handles = [
        Patch(facecolor=colour, hatch=hatch, edgecolor="black", linewidth=0.5, label=textwrap.fill(label, 26))
        for part, (label, colour, hatch) in STYLES.items()
        if part in used
    ]
    figure.legend(handles=handles, loc="outside right upper", frameon=False, title="from left to right",
                  alignment="left", handleheight=1.2)  # fmt: skip


def _draw_curve(axes: Any, curve: Curve) -> None:
    most = max(1, *(max(used, reserved) for _, used, reserved in curve))
    unit, name = _unit(most)
    axes.fill_between(range(len(curve)), [used / unit for _, used, _ in curve], color="#b0b0b0", linewidth=0)
    axes.step(range(len(curve)), [held / unit for *_, held in curve], color="black", linewidth=1)
    phases = list(_phases(curve))
    least = 0.07 * len(curve)
    for phase, start, end in phases:
        axes.axvline(start, linewidth=0.5, color="black", linestyle=":")
        if end - start >= least:
            axes.text(
                (start + end) / 2, 1.0, phase, transform=axes.get_xaxis_transform(), ha="center", va="bottom"
            )
    axes.set_title("The same over time: tensors (grey), and what torch's allocator holds for them (line)",
                   loc="left", fontsize=9.5, weight="bold", pad=16)  # fmt: skip
    axes.set(ylabel=name, xlabel="allocations and releases, in order")
    axes.set_xlim(0, max(1, len(curve) - 1))
    axes.set_ylim(0, 1.08 * most / unit)
    axes.set_xticks([])


def _phases(curve: Curve) -> Iterator[tuple[str, int, int]]:
    start = 0
    for name, points in groupby(curve, key=lambda point: point[0]):
        end = start + len(list(points))
        yield name, start, end
        start = end


def times(limit: int, need: int) -> str:
    """Say how far a limit is away: `27 times`."""
    ratio = limit / max(1, need)
    if ratio >= 9.95:
        return f"{ratio:.0f} times"
    return f"{ratio:.1f} times"
