"""Draw stacked bars of memory, as SVG or PNG; readable without colour."""

import importlib.util
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, groupby
from pathlib import Path
from typing import Final

from zlaunch.cli.views.axes import Axis, across, up
from zlaunch.cli.views.drawing import Box, Drawing, Line, Shape, Text, to_png, to_svg
from zlaunch.errors import Unavailable, WrongUsage
from zlaunch.files import check_new
from zlaunch.frozen import dataclass

MIB: Final = 1 << 20
GIB: Final = 1 << 30
SUFFIXES: Final = ("png", "svg")
NEAR: Final = 2.5
"""A limit is drawn if it is less than so many times the longest bar."""
CUT: Final = 5
"""A bar is cut where it is so many times the limit."""
CHARACTER: Final = 7.0
"""Width of a letter, at most on average, in pixels as all lengths of a picture."""
LEAST: Final = 0.004
"""Parts below this share of the longest bar in all bars are drawn together."""
LEAST_PHASE: Final = 0.07
"""Share of the curve that a phase takes if its name is written."""
PANEL_PIXELS: Final = {1: 550, 2: 410, 3: 350}
"""Number of panels → width of each."""
MARGIN, GAP, LINE_PIXELS, AXIS_PIXELS, CURVE_PIXELS = 14, 26, 19, 44, 190
ROW_PIXELS, BAR_PIXELS = 33, 22
LEGEND_PIXELS, LEGEND_CHARACTERS = 244, 26

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
    is_decimal: bool = False
    """Whether the axis is in MB or GB."""

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

    def axis(self, pixels: float) -> float:
        """Return the bytes at which an axis of this width ends: the text beside each bar is inside."""
        ends = [1.02 * self.shown]
        for bar in self.bars:
            text = CHARACTER * (len(bar.note) + 2)
            ends.append(min(bar.total, self.shown) / max(0.1, 1 - text / pixels))
        return max(ends)

    def merged(self) -> "Panel":
        """Put parts together that are too small to be seen in any bar."""
        seen: set[str] = set()
        for bar in self.bars:
            seen.update(part for part, size in bar.parts.items() if size >= LEAST * self.shown)
        bars = [Bar(_merged(bar, seen), bar.note) for bar in self.bars]
        return replace(self, bars=bars)


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
    """Raise WrongUsage for another format; Unavailable if PNG lacks matplotlib, or the file exists."""
    if _file_format(file) not in SUFFIXES:
        raise WrongUsage(
            f"`--plot {file}` is neither PNG nor SVG", f"write `--plot {file.stem or 'memory'}.svg`"
        )
    if _file_format(file) == "png" and importlib.util.find_spec("matplotlib") is None:
        raise Unavailable(
            f"`--plot {file}` needs matplotlib, which is not installed",
            f"write `--plot {file.with_suffix('.svg')}`, or `pip install matplotlib`, the extra `plot`",
        )
    check_new(file)


def _file_format(file: Path) -> str:
    return file.suffix.removeprefix(".").lower()


def render(picture: Picture, file: Path) -> bytes:
    """Draw a picture in the format that the name of the file asks for; equal pictures give equal bytes."""
    if _file_format(file) == "svg":
        return to_svg(drawing_of(picture))
    return to_png(drawing_of(picture))


def drawing_of(picture: Picture) -> Drawing:
    """Lay out a picture."""
    panels = [panel.merged() for panel in picture.panels]
    panel_width = PANEL_PIXELS[len(panels)]
    names = max(map(len, picture.names), default=0) * CHARACTER + 10
    left = MARGIN + names
    legend = left + (panel_width + GAP) * len(panels)
    width = legend + LEGEND_PIXELS
    shapes: list[Shape] = [Text(MARGIN, 24, picture.title, size=16, is_bold=True)]
    y = 26.0
    for paragraph in picture.lines:
        for line in textwrap.wrap(paragraph, int((width - 2 * MARGIN) / CHARACTER)):
            y += LINE_PIXELS
            shapes.append(Text(MARGIN, y, line))
    top = y + 28
    shapes += _legend(panels, legend, top)
    has_limit = any(panel.is_limit_near for panel in panels)
    first_row = top + (24 if has_limit else 8)
    for number, name in enumerate(picture.names):
        shapes.append(Text(left - 8, first_row + (number + 0.5) * ROW_PIXELS + 4, name, "end"))
    for number, panel in enumerate(panels):
        x = left + (panel_width + GAP) * number
        shapes.append(Text(x, top, panel.title, size=12.5, is_bold=True))
        shapes += _bars(panel, x, first_row, panel_width)
    bottom = first_row + len(picture.names) * ROW_PIXELS + AXIS_PIXELS
    if picture.curve:
        shapes += _curve(picture.curve, left, bottom + 20, legend - GAP - left)
        bottom += 20 + CURVE_PIXELS + AXIS_PIXELS
    bottom = max(bottom, *(shape.y + 20 for shape in shapes if isinstance(shape, Text)))
    return Drawing(round(width), round(bottom), picture.title, shapes)


def _bars(panel: Panel, x: float, y: float, width: float) -> Iterator[Shape]:
    shown, end = panel.shown, panel.axis(width)
    scale, bottom = width / end, y + len(panel.bars) * ROW_PIXELS
    notes = []
    for row, bar in enumerate(panel.bars):
        start, middle = 0, y + (row + 0.5) * ROW_PIXELS
        for part, size in bar.parts.items():
            stop = min(shown, start + size)
            _, colour, hatch = STYLES[part]
            place = (x + scale * start, middle - BAR_PIXELS / 2, scale * (stop - start), BAR_PIXELS)
            yield Box(*place, fill=colour, hatch=hatch)
            start = stop
        note = f"\u2026 {bar.note}" if bar.total > shown else bar.note
        notes.append(Text(x + scale * start + 5, middle + 4, note, has_back=True))
    if panel.limit is not None and panel.is_limit_near:
        at = x + scale * panel.limit
        yield Line([(at, y - 4), (at, bottom)], width=1.6, dashes="6 4")
        yield Text(at, y - 8, panel.limit_name, "middle", size=10.5)
    yield from notes
    unit = unit_of(shown, is_decimal=panel.is_decimal)
    yield from across(Axis(0.0, end / unit.size, x, x + width), bottom, unit.name)
    yield Line([(x, y), (x, bottom)])


@dataclass(frozen=True)
class Unit:
    """The unit of an axis, and of the texts beside its bars."""

    size: int
    name: str
    digits: int
    """After the point."""

    def text(self, num_bytes: float) -> str:
        """Write a size with its unit."""
        return f"{num_bytes / self.size:.{self.digits}f} {self.name}"


def unit_of(most: float, *, is_decimal: bool = False) -> Unit:
    """Return the unit of an axis whose largest value is `most` bytes."""
    small, large = Unit(MIB, "MiB", 0), Unit(GIB, "GiB", 2)
    if is_decimal:
        small, large = Unit(10**6, "MB", 0), Unit(10**9, "GB", 2)
    if most >= 100 * small.size:
        return large
    return small


def _legend(panels: Sequence[Panel], x: float, y: float) -> Iterator[Shape]:
    used: set[str] = set()
    for bar in chain.from_iterable(panel.bars for panel in panels):
        used.update(bar.parts)
    yield Text(x, y, "from left to right")
    for part, (label, colour, hatch) in STYLES.items():
        if part not in used:
            continue
        y += LINE_PIXELS + 3
        yield Box(x, y - 11, 24, 13, colour, hatch)
        for number, line in enumerate(textwrap.wrap(label, LEGEND_CHARACTERS)):
            y += LINE_PIXELS * min(number, 1)
            yield Text(x + 32, y, line)


def _curve(curve: Curve, x: float, y: float, width: float) -> Iterator[Shape]:
    most = max(1, *(max(used, reserved) for _, used, reserved in curve))
    unit = unit_of(most)
    title = "The same over time: tensors (grey), and what torch's allocator holds for them (line)"
    yield Text(x, y, title, size=12.5, is_bold=True)
    top, bottom = y + 30, y + CURVE_PIXELS
    rows = Axis(0.0, 1.08 * most / unit.size, bottom, top)
    columns = Axis(0.0, float(max(1, len(curve) - 1)), x, x + width)
    tensors = [(columns(at), rows(used / unit.size)) for at, (_, used, _) in enumerate(curve)]
    yield Line([(x, bottom), *tensors, (tensors[-1][0], bottom)], fill="#b0b0b0")
    held: list[tuple[float, float]] = []
    for at, (*_, reserved) in enumerate(curve):
        height = rows(reserved / unit.size)
        held += [(columns(max(0, at - 1)), height), (columns(at), height)]
    yield Line(held)
    for phase, start, end in _phases(curve):
        yield Line([(columns(start), top), (columns(start), bottom)], width=0.7, dashes="1 3")
        if end - start >= LEAST_PHASE * len(curve):
            yield Text((columns(start) + columns(min(end, len(curve) - 1))) / 2, top - 6, phase, "middle")
    yield from up(rows, x, unit.name)
    yield Line([(x, bottom), (x + width, bottom)])
    yield Text(x + width / 2, bottom + 18, "allocations and releases, in order", "middle")


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
