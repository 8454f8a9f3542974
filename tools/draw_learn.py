# ruff: noqa: RUF001
"""Draw the pictures of docs/learn, in English and in Chinese: `python -m tools.draw_learn`."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html import escape
from itertools import product
from pathlib import Path

FOLDER = Path(__file__).parent.parent / "docs" / "learn" / "pictures"
RANKS = 4

Texts = Mapping[str, str]
Place = tuple[float, float, float, float]
"""Left, top, width and height."""

ENGLISH: Texts = {
    "rank": "rank",
    "parameters": "parameters",
    "gradients": "gradients",
    "optimizer": "optimizer states",
    "stage 0": "stage 0 (DDP)",
    "stage 1": "stage 1",
    "stage 2": "stage 2",
    "stage 3": "stage 3",
    "stages 1, 2": "stages 1 and 2",
    "elsewhere": "held by another rank",
    "before": "every rank has its own gradients",
    "between": "every rank has the sum of one piece",
    "after": "every rank has the sum of all pieces",
    "reduce-scatter": "reduce-scatter: sends 3/4 K",
    "all-gather": "all-gather: sends 3/4 K",
    "forward": "forward",
    "backward": "backward",
    "step": "step",
    "sum gradients": "all-reduce of gradients: 2",
    "own gradients": "reduce-scatter of gradients: 1",
    "new parameters": "all-gather of parameters: 1",
    "fetch": "all-gather of parameters: 1",
    "unit": "by the ZeRO paper, without gradient accumulation; in K(N−1)/N per rank",
    "GPU": "GPU",
    "host": "host memory",
    "NVMe": "NVMe",
    "2, optimizer on the CPU": "stage 2, `--offload optimizer:cpu`",
    "3, all on the CPU": "stage 3, `--offload cpu`",
    "3, all on NVMe": "stage 3, `--offload nvme`",
    "activations": "activations",
    "buffers": "buffers",
    "layer": "parameters of a few layers",
    "compute": "computes",
    "network": "sends",
    "waits": "each bucket waits for the one before to be sent (stages 1 and 2, default)",
    "overlaps": "a bucket is sent while the next gradients are computed (overlap_comm: true)",
    "prefetches": "stage 3, forward: the next layer is gathered while one computes",
    "time": "time",
}

CHINESE: Texts = {
    "rank": "rank",
    "parameters": "参数",
    "gradients": "梯度",
    "optimizer": "优化器状态",
    "stage 0": "stage 0（DDP）",
    "stage 1": "stage 1",
    "stage 2": "stage 2",
    "stage 3": "stage 3",
    "stages 1, 2": "stage 1 和 2",
    "elsewhere": "在其他 rank 上",
    "before": "每个 rank 只有自己的梯度",
    "between": "每个 rank 有一块的总和",
    "after": "每个 rank 有所有块的总和",
    "reduce-scatter": "reduce-scatter：发送 3/4 K",
    "all-gather": "all-gather：发送 3/4 K",
    "forward": "前向",
    "backward": "反向",
    "step": "更新",
    "sum gradients": "梯度 all-reduce：2",
    "own gradients": "梯度 reduce-scatter：1",
    "new parameters": "参数 all-gather：1",
    "fetch": "参数 all-gather：1",
    "unit": "按 ZeRO 论文，没有梯度累积；单位是每个 rank K(N−1)/N",
    "GPU": "GPU 显存",
    "host": "主机内存",
    "NVMe": "NVMe 硬盘",
    "2, optimizer on the CPU": "stage 2，`--offload optimizer:cpu`",
    "3, all on the CPU": "stage 3，`--offload cpu`",
    "3, all on NVMe": "stage 3，`--offload nvme`",
    "activations": "激活值",
    "buffers": "缓冲区",
    "layer": "少数几层的参数",
    "compute": "计算",
    "network": "通信",
    "waits": "发送一个桶的时候，计算在等待（stage 1 和 2 的默认设置）",
    "overlaps": "发送一个桶的同时，计算后面的梯度（overlap_comm: true）",
    "prefetches": "stage 3 的前向传播：计算一层的同时，收集下一层的参数",
    "time": "时间",
}

COLOURS = {
    "parameters": "#4477aa",
    "gradients": "#ddaa33",
    "optimizer": "#bb5566",
    "activations": "#228833",
    "buffers": "#999999",
    "layer": "#4477aa",
}

DARK = (
    "@media (prefers-color-scheme: dark) { "
    '[fill="#ffffff"] { fill: #1e2129 } [fill="#f3f3f3"] { fill: #2b2f3a } text { fill: #e2e4e9 } '
    '[stroke] { stroke: #a0a0a0 } [fill="#555555"] { fill: #a0a0a0 } }'
)
"""The colours on a dark page; the background is that of the site."""


@dataclass
class Drawing:
    """The parts of an SVG picture, in the order in which they are drawn."""

    width: int
    height: int
    parts: list[str]

    def box(self, place: Place, fill: str, opacity: float = 1.0) -> None:
        """Draw a rectangle."""
        x, y, width, height = place
        attributes = f'x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}"'
        self.parts.append(f'<rect {attributes} fill="{fill}" fill-opacity="{opacity:g}" stroke="#555555"/>')

    def text(self, x: float, y: float, said: str, anchor: str = "middle", size: int = 14) -> None:
        """Write a line."""
        self.parts.append(
            f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" font-size="{size}">{escape(said)}</text>'
        )

    def arrow(self, x: float, y: float, to_x: float, to_y: float) -> None:
        """Draw a line with a head."""
        ends = f'x1="{x:g}" y1="{y:g}" x2="{to_x:g}" y2="{to_y:g}"'
        self.parts.append(f'<line {ends} stroke="#555555" stroke-width="2" marker-end="url(#head)"/>')

    def __str__(self) -> str:
        """Write the file."""
        head = (
            '<marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
            'orient="auto"><path d="M0 0L10 5L0 10z" fill="#555555"/></marker>'
        )
        size = f'width="{self.width}" height="{self.height}" font-family="sans-serif"'
        return "\n".join(
            (
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" {size}>',
                f"<style>{DARK}</style>",
                f"<defs>{head}</defs>",
                f'<rect width="{self.width}" height="{self.height}" fill="#ffffff"/>',
                *self.parts,
                "</svg>\n",
            )
        )


PARTS = {"parameters": 2, "gradients": 2, "optimizer": 12}
"""Bytes per parameter, in training with 16 bits and Adam."""


def partition(said: Texts) -> Drawing:
    """Show what each rank holds at each stage; heights are bytes per parameter."""
    drawing = Drawing(760, 660, [])
    unit, bar, left, high = 7, 120, 150, 140
    for stage in range(4):
        top = 40 + stage * high
        drawing.text(left - 20, top + 8 * unit, said[f"stage {stage}"], "end")
        for rank in range(RANKS):
            x, y = left + rank * (bar + 25), top
            for number, (part, nbytes) in enumerate(PARTS.items()):
                is_cut = stage >= len(PARTS) - number
                for piece in range(RANKS):
                    fill = COLOURS[part]
                    if is_cut and piece != rank:
                        fill = "#ffffff"
                    drawing.box((x + piece * bar / RANKS, y, bar / RANKS, nbytes * unit), fill)
                y += nbytes * unit
    for rank in range(RANKS):
        drawing.text(left + rank * (bar + 25) + bar / 2, 28, f"{said['rank']} {rank}")
    for number, (part, nbytes) in enumerate(PARTS.items()):
        x = (30, 190, 340)[number]
        drawing.box((x, 600, 16, 16), COLOURS[part])
        drawing.text(x + 24, 613, f"{said[part]}: {nbytes} B", "start")
    drawing.box((560, 600, 16, 16), "#ffffff")
    drawing.text(584, 613, said["elsewhere"], "start")
    return drawing


def ring(said: Texts) -> Drawing:
    """Show that an all-reduce is a reduce-scatter and an all-gather."""
    drawing = Drawing(800, 250, [])
    side = 30
    for number, moment in enumerate(("before", "between", "after")):
        left, top = 80 + number * 255, 50
        drawing.text(left + 2 * side, top - 20, said[moment], size=13)
        for rank, piece in product(range(RANKS), repeat=2):
            has_sum = moment == "after" or (moment == "between" and rank == piece)
            x, y = left + piece * side, top + rank * side
            if moment == "before":
                drawing.box((x, y, side, side), COLOURS["gradients"], 0.35)
                drawing.text(x + side / 2, y + 20, str(rank), size=13)
            elif has_sum:
                drawing.box((x, y, side, side), COLOURS["gradients"], 0.75)
                drawing.text(x + side / 2, y + 20, "Σ", size=13)
            else:
                drawing.box((x, y, side, side), "#ffffff", 1)
        for rank in range(RANKS):
            drawing.text(left - 8, top + rank * side + 20, f"{said['rank']} {rank}", "end", 12)
    for number, name in enumerate(("reduce-scatter", "all-gather")):
        x = 80 + number * 255 + 4 * side
        drawing.arrow(x + 10, 190, x + 120, 190)
        drawing.text(x + 65, 215, said[name], size=13)
    return drawing


MESSAGES: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "stage 0": {"forward": (), "backward": ("sum gradients",), "step": ()},
    "stages 1, 2": {"forward": (), "backward": ("own gradients",), "step": ("new parameters",)},
    "stage 3": {"forward": ("fetch",), "backward": ("fetch", "own gradients"), "step": ()},
}
"""What the ZeRO paper sends in each phase; amounts in K(N-1)/N."""


def messages(said: Texts) -> Drawing:
    """Show what is sent in each phase of a step."""
    drawing = Drawing(760, 285, [])
    left, width, high = 130, 205, 70
    drawing.text(left + 1.5 * width, 272, said["unit"], size=13)
    for column, phase in enumerate(("forward", "backward", "step")):
        drawing.text(left + column * width + width / 2, 26, said[phase])
    for row, (stage, phases) in enumerate(MESSAGES.items()):
        top = 40 + row * high
        drawing.text(left - 12, top + high / 2, said[stage], "end")
        for column, sent in enumerate(phases.values()):
            drawing.box((left + column * width, top, width - 6, high - 8), "#f3f3f3")
            for number, one in enumerate(sent):
                y = top + 6 + number * 27
                part = "parameters"
                if one.endswith("gradients"):
                    part = "gradients"
                drawing.box((left + column * width + 5, y, width - 16, 23), COLOURS[part], 0.45)
                drawing.text(left + column * width + width / 2 - 3, y + 16, said[one], size=12)
    return drawing


PLACES: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "2, optimizer on the CPU": {
        "GPU": ("parameters", "activations", "buffers"),
        "host": ("optimizer", "gradients"),
        "NVMe": (),
    },
    "3, all on the CPU": {
        "GPU": ("layer", "activations", "buffers"),
        "host": ("optimizer", "gradients", "parameters"),
        "NVMe": (),
    },
    "3, all on NVMe": {
        "GPU": ("layer", "activations", "buffers"),
        "host": ("gradients", "buffers"),
        "NVMe": ("optimizer", "gradients", "parameters"),
    },
}


def offload(said: Texts) -> Drawing:
    """Show where each part is with offload."""
    drawing = Drawing(760, 400, [])
    left, width, high = 20, 245, 120
    for column, place in enumerate(("GPU", "host", "NVMe")):
        drawing.text(left + column * width + (width - 10) / 2, 24, said[place])
    for row, (setting, places) in enumerate(PLACES.items()):
        top = 56 + row * high
        drawing.text(left, top - 6, said[setting].replace("`", ""), "start", 13)
        for column, parts in enumerate(places.values()):
            drawing.box((left + column * width, top, width - 30, high - 32), "#f3f3f3")
            for number, part in enumerate(parts):
                y = top + 5 + number * 27
                drawing.box((left + column * width + 6, y, width - 42, 23), COLOURS[part], 0.45)
                drawing.text(left + column * width + (width - 30) / 2, y + 16, said[part], size=12)
        for column in range(1 + bool(places["NVMe"])):
            x = left + (column + 1) * width
            drawing.arrow(x - 28, top + 38, x - 3, top + 38)
            drawing.arrow(x - 3, top + 52, x - 28, top + 52)
    return drawing


LAYERS = 4
TIMELINES: Mapping[str, tuple[str, tuple[int, ...], tuple[int, ...]]] = {
    "waits": ("gradients", (0, 7, 14, 21), (4, 11, 18, 25)),
    "overlaps": ("gradients", (0, 4, 8, 12), (4, 8, 12, 16)),
    "prefetches": ("parameters", (3, 7, 11, 15), (0, 3, 7, 11)),
}
"""Case → what is sent, and when each layer begins to be computed and sent; computing takes 4, sending 3."""


def overlap(said: Texts) -> Drawing:
    """Show what is computed and what is sent at the same time."""
    drawing = Drawing(760, 345, [])
    left, unit, high = 110, 21, 108
    for row, (case, (part, computed, sent)) in enumerate(TIMELINES.items()):
        top = 36 + row * high
        drawing.text(20, top - 12, said[case], "start", 13)
        for line, (name, begins, takes, fill) in enumerate(
            (("compute", computed, 4, "#228833"), ("network", sent, 3, COLOURS[part]))
        ):
            y = top + line * 30
            drawing.text(left - 12, y + 18, said[name], "end", 13)
            for layer in range(LAYERS):
                x = left + begins[layer] * unit
                drawing.box((x, y, takes * unit, 25), fill, 0.45)
                drawing.text(x + takes * unit / 2, y + 17, str(layer + 1), size=12)
        drawing.arrow(left, top + 66, left + 28 * unit, top + 66)
        drawing.text(left + 28 * unit + 8, top + 71, said["time"], "start", 12)
    return drawing


DRAWINGS = {drawing.__name__: drawing for drawing in (overlap, partition, ring, messages, offload)}


def pictures() -> Iterator[tuple[Path, str]]:
    """Draw each picture in each language; yield its file and its content."""
    for (name, draw), (suffix, said) in product(DRAWINGS.items(), (("", ENGLISH), (".zh", CHINESE))):
        yield FOLDER / f"{name}{suffix}.svg", str(draw(said))


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for file, content in pictures():
        file.write_text(content, "utf-8")
