"""Shapes of a picture, written as SVG, or as PNG with matplotlib. Lengths are in pixels from the top left."""

from collections.abc import Iterator, Sequence
from html import escape
from io import BytesIO
from typing import Any, Final

from zlaunch.frozen import dataclass

INCH: Final = 96
DPI: Final = 120
FONT: Final = "DejaVu Sans"
STROKE: Final = 0.7
POINT: Final = 72 / INCH
_SIDES: Final = {"start": "left", "middle": "center", "end": "right"}
_WEIGHTS: Final = ("normal", "bold")

_HATCHES: Final = {
    "//": "M0 6L6 0M-1 1L1 -1M5 7L7 5",
    "\\\\": "M0 0L6 6M-1 5L1 7M5 -1L7 1",
    "||": "M3 0V6",
    "--": "M0 3H6",
    "++": "M3 0V6M0 3H6",
    "xx": "M0 6L6 0M0 0L6 6",
    "..": "M2.5 3H3.5",
    "oo": "M1 3A2 2 0 1 1 5 3A2 2 0 1 1 1 3",
}
"""Hatching, as matplotlib names it, and its path in a square of 6 pixels."""


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle with an edge."""

    x: float
    y: float
    width: float
    height: float
    fill: str
    hatch: str = ""


@dataclass(frozen=True, slots=True)
class Line:
    """A line through points, or with `fill` the area inside of it."""

    points: Sequence[tuple[float, float]]
    colour: str = "#000000"
    width: float = 1.0
    dashes: str = ""
    fill: str = ""


@dataclass(frozen=True, slots=True)
class Text:
    """A line of text, whose baseline begins, ends or has its middle at a point."""

    x: float
    y: float
    text: str
    anchor: str = "start"
    size: float = 12.0
    is_bold: bool = False
    has_back: bool = False
    """Whether it covers what is behind it."""


Shape = Box | Line | Text


@dataclass(frozen=True)
class Drawing:
    """Shapes in the order in which they are drawn, on white."""

    width: float
    height: float
    title: str
    shapes: Sequence[Shape]


def to_svg(drawing: Drawing) -> bytes:
    """Write an SVG file; equal drawings give equal bytes."""
    width, height = f"{drawing.width:g}", f"{drawing.height:g}"
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    fonts = f'font-family="{FONT}, Verdana, sans-serif"'
    lines = [
        '<?xml version="1.0" encoding="utf-8"?>',
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} {fonts}>',
        f"<title>{escape(drawing.title)}</title>",
        '<rect width="100%" height="100%" fill="#ffffff"/>',
        *_patterns(drawing),
    ]
    for shape in drawing.shapes:
        lines += _svg(shape)
    return "\n".join([*lines, "</svg>\n"]).encode()


def _patterns(drawing: Drawing) -> Iterator[str]:
    used = {shape.hatch for shape in drawing.shapes if isinstance(shape, Box)}
    for number, (hatch, path) in enumerate(_HATCHES.items()):
        if hatch in used:
            yield (
                f'<pattern id="hatch{number}" width="6" height="6" patternUnits="userSpaceOnUse">'
                f'<path d="{path}" fill="none" stroke="#000000" stroke-width="{STROKE}"/></pattern>'
            )


def _svg(shape: Shape) -> Iterator[str]:
    if isinstance(shape, Box):
        place = f'x="{shape.x:.2f}" y="{shape.y:.2f}" width="{shape.width:.2f}" height="{shape.height:.2f}"'
        edge = f'stroke="#000000" stroke-width="{STROKE}"'
        yield f'<rect {place} fill="{shape.fill}" {edge}/>'
        if shape.hatch:
            yield f'<rect {place} fill="url(#hatch{[*_HATCHES].index(shape.hatch)})"/>'
    elif isinstance(shape, Line):
        points = " ".join(f"{x:.2f},{y:.2f}" for x, y in shape.points)
        if shape.fill:
            yield f'<polygon points="{points}" fill="{shape.fill}"/>'
            return
        dashes = f' stroke-dasharray="{shape.dashes}"' if shape.dashes else ""
        style = f'stroke="{shape.colour}" stroke-width="{shape.width:g}"{dashes}'
        yield f'<polyline points="{points}" fill="none" {style}/>'
    else:
        style = f'text-anchor="{shape.anchor}" font-size="{shape.size:g}"'
        if shape.is_bold:
            style += ' font-weight="bold"'
        if shape.has_back:
            style += ' paint-order="stroke" stroke="#ffffff" stroke-width="6"'
        yield f'<text x="{shape.x:.2f}" y="{shape.y:.2f}" {style}>{escape(shape.text, quote=False)}</text>'


def to_png(drawing: Drawing) -> bytes:
    """Write a PNG file with matplotlib; equal drawings give equal bytes."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    written = BytesIO()
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update({"font.family": [FONT], "text.parse_math": False, "hatch.linewidth": STROKE})
        canvas = FigureCanvasAgg(figure_of(drawing))
        canvas.print_png(written, metadata={"Title": drawing.title})
    return written.getvalue()


def figure_of(drawing: Drawing) -> Any:
    """Put the shapes on a figure of matplotlib."""
    from matplotlib.figure import Figure
    from matplotlib.transforms import Affine2D

    figure = Figure(figsize=(drawing.width / INCH, drawing.height / INCH), dpi=DPI, facecolor="white")
    pixels = Affine2D().scale(1 / drawing.width, -1 / drawing.height).translate(0, 1) + figure.transFigure
    for order, shape in enumerate(drawing.shapes):
        _add(figure, shape, transform=pixels, zorder=order)
    return figure


def _add(figure: Any, shape: Shape, **how: Any) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Polygon, Rectangle

    if isinstance(shape, Box):
        box = Rectangle((shape.x, shape.y), shape.width, shape.height, **how)
        box.set(facecolor=shape.fill, edgecolor="black", linewidth=STROKE * POINT, hatch=shape.hatch)
        figure.add_artist(box)
    elif isinstance(shape, Text):
        font: dict[str, Any] = {"fontsize": shape.size * POINT, "weight": _WEIGHTS[shape.is_bold]}
        if shape.has_back:
            font["bbox"] = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}
        figure.text(shape.x, shape.y, shape.text, ha=_SIDES[shape.anchor], va="baseline", **font, **how)
    elif shape.fill:
        figure.add_artist(Polygon(shape.points, facecolor=shape.fill, edgecolor="none", **how))
    else:
        line = Line2D(*zip(*shape.points, strict=True), color=shape.colour, **how)
        line.set_linewidth(shape.width * POINT)
        if shape.dashes:
            line.set_linestyle((0, tuple(map(float, shape.dashes.split()))))
        figure.add_artist(line)
