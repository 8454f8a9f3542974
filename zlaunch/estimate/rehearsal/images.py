"""The images of a vision-language model, as the processor of its type prepares them: inputs, and tokens."""

import math
from collections.abc import Callable, Mapping
from dataclasses import field, replace
from typing import Any, Final

import torch
import transformers

from zlaunch.estimate.rehearsal.model import CannotTell
from zlaunch.estimate.workload import ONE_IMAGE, Images
from zlaunch.frozen import dataclass

Shape = tuple[int, ...]

_EXAMPLE: Final = Images(1, 1024, 768)
_FEWEST_PIXELS: Final = 56 * 56
"""Smaller images are enlarged by the processors of Qwen-VL."""
_MOST_TILES: Final = 12
"""Tiles of an image with the processor of InternVL, besides one of the whole image."""
_TILES_OF_LONGEST_EDGE: Final = 4
"""Tiles along the longest edge of an image with the processors of Idefics 3 and SmolVLM."""
_REDUCED_FROM: Final = 1.1
"""How many times its most tokens an image has along a side from which LLaVA-OneVision reduces it."""
_SHORTEST, _LONGEST = 378, 980
"""Edges of an image with the processor of Idefics 2."""
_WITH_QUARTERS: Final = 5
_CUTTING: Final = (
    *("aya_vision", "cohere2_vision", "llama4", "molmo2", "perception_lm", "qianfan_ocr"),
    *("deepseek_ocr2", "phi4_multimodal", "step3p7", "unlimited_ocr"),
)
"""Types of models whose processors cut large images into tiles, unless they are told not to."""
_AROUND_IMAGE: Final = 2
"""Tokens that begin and end an image."""


@dataclass(frozen=True)
class ImageInputs:
    """The inputs of a model for the images of a micro-batch; without shapes, images are not counted."""

    shapes: Mapping[str, Shape] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    data: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """Data by which the model decides."""
    tokens: int | None = None
    """Tokens of one image in its sequence, if known."""
    token: int | None = None
    """The number that stands for an image in a sequence."""
    missing: tuple[str, ...] = ()
    """What may be there besides."""


@dataclass(frozen=True)
class _Job:
    """What the inputs of images depend on."""

    images: Images
    config: transformers.PretrainedConfig
    arguments: Mapping[str, Any]
    """Arguments of the model's `forward`."""
    batch: Shape
    """Sequences in a micro-batch, and tokens in each."""
    processor: Mapping[str, Any] = field(default_factory=dict)
    """The model's preprocessor_config.json, if it is known."""

    @property
    def vision(self) -> Any:
        return self.config.vision_config

    @property
    def num_images(self) -> int:
        return self.batch[0] * self.images.count

    @property
    def size(self) -> tuple[int, int] | None:
        """Height and width of an image as given."""
        if self.images.width is None or self.images.height is None:
            return None
        return self.images.height, self.images.width


def image_inputs(
    images: Images,
    config: transformers.PretrainedConfig,
    arguments: Mapping[str, Any],
    batch: Shape,
    *,
    processor: Mapping[str, Any] | None = None,
) -> ImageInputs:
    """Return the inputs for so many images in each sequence, of which their tokens are a part.

    `batch` is (sequences, tokens), `processor` the model's preprocessor_config.json, if it is known.
    """
    job = _Job(images, config, arguments, batch, processor or {})
    takes_images = "pixel_values" in arguments and hasattr(config, "vision_config")
    if "pixel_values" not in arguments and images.count and images != ONE_IMAGE:
        return ImageInputs(notes=(f"`--images {images}` has no effect: the model takes no images",))
    if not takes_images or not images.count:
        return ImageInputs()
    prepare = _processor_of(job)
    prepared = prepare(job)
    if prepared is None and images.width is None and prepare(replace(job, images=_EXAMPLE)) is not None:
        return ImageInputs(notes=(f"images of any size are counted with `--images {_EXAMPLE}`",))
    if prepared is None:
        return ImageInputs()
    shapes, tokens, data, of_size = prepared
    for name in ("token_type_ids", "mm_token_type_ids"):
        if name in arguments:
            shapes = {**shapes, name: batch}
    token = getattr(config, "image_token_id", None)
    if token is None:
        token = getattr(config, "image_token_index", None)
    notes, missing = [_note(images, tokens, of_size)], tuple[str, ...]()
    if prepare is _resampled and "do_image_splitting" not in job.processor:
        missing = ("four more parts of each image",)
    elif _leaves_out_tiles(job, prepare):
        missing = ("more tiles of each image",)
        if prepare is _in_tiles:
            notes.append(f"the tiles of images of any size are counted with `--images {_EXAMPLE}`")
    return ImageInputs(shapes, tuple(notes), data, tokens, token, missing)


_Prepared = tuple[Mapping[str, Shape], int | None, Mapping[str, torch.Tensor], tuple[int, int]]
"""Shapes, tokens of an image, data by which the model decides, and the size that is counted."""
_Processor = Callable[[_Job], _Prepared | None]


def _processor_of(job: _Job) -> _Processor:
    """Choose a way to prepare images by what the model's `forward` takes."""
    if "image_grid_thw" in job.arguments:
        return _as_grids
    if getattr(job.vision, "model_type", None) == "pixtral":
        return _at_own_size
    if hasattr(job.config, "perceiver_config"):
        return _resampled
    if hasattr(job.config, "image_grid_pinpoints"):
        return _at_any_resolution
    if "pixel_attention_mask" in job.arguments:
        return _split_in_four
    if "aspect_ratio_ids" in job.arguments:
        return _on_canvas
    if job.config.model_type == "internvl":
        return _in_tiles
    return _of_one_size


def _leaves_out_tiles(job: _Job, prepare: _Processor) -> bool:
    """Whether the model's processor cuts large images, of which one tile is counted."""
    if job.processor.get("crop_to_patches") is False:
        return False
    if prepare is _in_tiles:
        return job.size is None
    return prepare is _of_one_size and job.config.model_type in _CUTTING


def _note(images: Images, tokens: int | None, size: tuple[int, int]) -> str:
    number = "one image"
    if images.count != 1:
        number = f"{images.count} images"
    counted = "its tokens included"
    if images.width is not None and tokens is not None:
        counted = f"{tokens} tokens each"
    elif images.count != 1:
        counted = "their tokens included"
    return f"counted with {number} of {size[1]} x {size[0]} in each sequence, {counted}"


def image_shape(vision: Any) -> tuple[int, int, int] | None:
    """Return channels, height and width of the images that a vision model has one size for."""
    size = getattr(vision, "image_size", None)
    if not size:
        return None
    height = width = size
    if isinstance(size, (list, tuple)):
        height, width = size
    return getattr(vision, "num_channels", None) or 3, height, width


def _of_one_size(job: _Job) -> _Prepared | None:
    """Resize images to the only size that the model takes."""
    image = image_shape(job.vision)
    if image is None:
        return None
    return {"pixel_values": (job.num_images, *image)}, _tokens_of_tile(job), {}, image[1:]


def _tokens_of_tile(job: _Job) -> int | None:
    for name in ("mm_tokens_per_image", "image_seq_length"):
        if (tokens := getattr(job.config, name, None)) is not None:
            return int(tokens)
    image, patch = image_shape(job.vision), _whole_number(job.vision, "patch_size")
    if image is None or patch is None:
        return None
    return (image[1] // patch) * (image[2] // patch)


def _whole_number(vision: Any, name: str) -> int | None:
    value = getattr(vision, name, None)
    if isinstance(value, int):
        return value
    return None


def _as_grids(job: _Job) -> _Prepared | None:
    """Round images to whole patches, as the processors of Qwen-VL and GLM-V do (`smart_resize`)."""
    patch, merge = (_whole_number(job.vision, name) for name in ("patch_size", "spatial_merge_size"))
    if job.size is None or patch is None or merge is None:
        return None
    depth = _whole_number(job.vision, "temporal_patch_size") or 1
    channels = _whole_number(job.vision, "in_channels") or _whole_number(job.vision, "in_chans") or 3
    height, width = _rounded(job.size, patch * merge, _pixels(job.processor))
    rows, columns = height // patch, width // patch
    shapes = {
        "pixel_values": (job.num_images * rows * columns, channels * depth * patch * patch),
        "image_grid_thw": (job.num_images, 3),
    }
    data = {"image_grid_thw": torch.tensor([[1, rows, columns]] * job.num_images)}
    return shapes, rows * columns // merge**2, data, (height, width)


def _pixels(processor: Mapping[str, Any]) -> tuple[int, int | None]:
    """Return the fewest and the most pixels of an image; None if it is not known how many."""
    size = processor.get("size") or {}
    fewest = processor.get("min_pixels") or size.get("shortest_edge") or _FEWEST_PIXELS
    return fewest, processor.get("max_pixels") or size.get("longest_edge")


def _rounded(size: tuple[int, int], factor: int, pixels: tuple[int, int | None]) -> tuple[int, int]:
    """Round the sides of an image to multiples of a factor; enlarge small ones, and reduce large ones."""
    fewest, most = pixels
    sides = [max(factor, round(side / factor) * factor) for side in size]
    if most is not None and math.prod(sides) > most:
        scale = math.sqrt(most / math.prod(size))
        sides = [max(factor, math.floor(side * scale / factor) * factor) for side in size]
    elif math.prod(sides) < fewest:
        scale = math.sqrt(fewest / math.prod(size))
        sides = [math.ceil(side * scale / factor) * factor for side in size]
    return sides[0], sides[1]


def _in_tiles(job: _Job) -> _Prepared | None:
    """Cut images into tiles of the model's size, as InternVL does; without their size, there is one."""
    image, tokens = image_shape(job.vision), _tokens_of_tile(job)
    if image is None:
        return None
    if job.size is None or tokens is None:
        return _of_one_size(job)
    if job.processor.get("crop_to_patches") is False:
        return _of_one_size(job)
    tiles = _num_tiles(job.size, image[1:], job.processor.get("max_patches", _MOST_TILES))
    return {"pixel_values": (job.num_images * tiles, *image)}, tiles * tokens, {}, job.size


def _num_tiles(size: tuple[int, int], tile: tuple[int, int], most: int) -> int:
    """Return the tiles of the canvas of the closest shape, and one of the whole image if they are several."""
    ratio, area = size[1] / size[0], math.prod(size)
    shapes = [(columns, rows) for columns in range(1, most + 1) for rows in range(1, most // columns + 1)]
    best, least = (1, 1), math.inf
    for columns, rows in sorted(shapes, key=math.prod):
        difference = abs(ratio - columns / rows)
        is_filled = area > math.prod(tile) * columns * rows / 2
        if difference < least or (difference == least and is_filled):
            best, least = (columns, rows), difference
    tiles = math.prod(best)
    if tiles == 1:
        return 1
    return tiles + 1


def _at_any_resolution(job: _Job) -> _Prepared | None:
    """Cut images into tiles of one of the model's resolutions, as LLaVA-NeXT does, and leave out padding.

    LLaVA-OneVision cuts only one image of a sequence, and has fewer tokens of large ones.
    """
    image, size, kind = image_shape(job.vision), job.size, job.config.model_type
    if image is None or size is None or kind not in ("llava_next", "llava_onevision"):
        return None
    best = _best_resolution(size, job.config.image_grid_pinpoints)
    rows, columns = best[0] // image[1], best[1] // image[2]
    side = image[1] // job.vision.patch_size
    tiles, (height, width) = rows * columns + 1, _unpadded(size, rows * side, columns * side)
    data = {"image_sizes": torch.tensor([list(size)] * job.num_images)}
    tokens = side * side + height * (width + 1)
    if kind == "llava_onevision":
        data["batch_num_images"] = torch.tensor([job.images.count] * job.batch[0])
        most = int(job.config.vision_aspect_ratio.removeprefix("anyres_max_"))
        ratio = math.sqrt(height * width / (most * side * side))
        if ratio > _REDUCED_FROM:
            tokens = side * side + int(height // ratio) * (int(width // ratio) + 1)
        if job.images.count > 1:
            tiles, tokens = 1, side * side + 1
    shapes = {name: tuple(values.shape) for name, values in data.items()}
    return {**shapes, "pixel_values": (job.num_images, tiles, *image)}, tokens, data, size


def _best_resolution(size: tuple[int, int], resolutions: list[list[int]]) -> tuple[int, int]:
    """Return the height and width that keep the most pixels of an image, and waste the fewest."""

    def quality(resolution: list[int]) -> tuple[int, int]:
        scale = min(resolution[1] / size[1], resolution[0] / size[0])
        kept = min(int(size[1] * scale) * int(size[0] * scale), math.prod(size))
        return kept, kept - math.prod(resolution)

    height, width = max(resolutions, key=quality)
    return height, width


def _unpadded(size: tuple[int, int], rows: int, columns: int) -> tuple[int, int]:
    """Return the rows and columns of patches that are no padding."""
    height, width = size
    if width / height > columns / rows:
        rows -= (rows - int(round(height * (columns / width), 7))) // 2 * 2
    else:
        columns -= (columns - int(round(width * (rows / height), 7))) // 2 * 2
    return rows, columns


def _split_in_four(job: _Job) -> _Prepared | None:
    """Enlarge images to four tiles along the longest edge, as Idefics 3 does, and add the whole image."""
    image, scale = image_shape(job.vision), getattr(job.config, "scale_factor", None)
    if image is None or job.size is None or scale is None:
        return None
    edge = image[1]
    longest = _TILES_OF_LONGEST_EDGE * edge
    tiles = 1 + math.prod(math.ceil(int(longest * side / max(job.size)) / edge) for side in job.size)
    shape = (job.batch[0], job.images.count * tiles)
    shapes = {"pixel_values": (*shape, *image), "pixel_attention_mask": (*shape, *image[1:])}
    data = {
        "pixel_values": torch.ones(()).expand(shapes["pixel_values"]),  # a tile of zeros is skipped
        "pixel_attention_mask": torch.ones(shapes["pixel_attention_mask"], dtype=torch.long),
    }
    return shapes, tiles * (edge // job.vision.patch_size) ** 2 // scale**2, data, job.size


def _at_own_size(job: _Job) -> _Prepared | None:
    """Fit images into the largest size of the model and round them to whole patches, as Pixtral does."""
    patch, longest = _whole_number(job.vision, "patch_size"), _whole_number(job.vision, "image_size")
    longest = (job.processor.get("size") or {}).get("longest_edge", longest)
    if job.size is None or patch is None or longest is None:
        return None
    merged = patch * getattr(job.config, "spatial_merge_size", 1)
    ratio = max(1.0, max(job.size) / longest)
    rows, columns = (math.ceil(int(side / ratio) / merged) for side in job.size)
    size = (rows * merged, columns * merged)
    data = {"image_sizes": torch.tensor([list(size)] * job.num_images)}
    shapes = {"pixel_values": (job.num_images, 3, *size), "image_sizes": (job.num_images, 2)}
    return shapes, rows * columns, data, size


def _resampled(job: _Job) -> _Prepared | None:
    """Fit images between a shortest and a longest edge, as Idefics 2 does, which resamples each of them.

    Whether it cuts them into four parts beside the whole, its processor alone knows.
    """
    if job.size is None:
        return None
    sides = job.processor.get("size") or {}
    shortest, longest = sides.get("shortest_edge", _SHORTEST), sides.get("longest_edge", _LONGEST)
    tiles, (height, width) = 1, job.size
    if job.processor.get("do_image_splitting"):
        # The parts are as large as the whole once they are fitted, unless an image is small.
        tiles = _WITH_QUARTERS
    if width >= height and width > longest:
        width, height = longest, int(longest / (width / height))
    elif height > longest:
        height, width = longest, int(longest * (width / height))
    size = (max(shortest, height), max(shortest, width))
    shape = (job.batch[0], job.images.count * tiles)
    shapes = {"pixel_values": (*shape, 3, *size), "pixel_attention_mask": (*shape, *size)}
    data = {
        "pixel_values": torch.ones(()).expand(shapes["pixel_values"]),  # an image of zeros is skipped
        "pixel_attention_mask": torch.ones(shapes["pixel_attention_mask"], dtype=torch.long),
    }
    return shapes, tiles * job.config.perceiver_config.resampler_n_latents, data, size


def _on_canvas(job: _Job) -> _Prepared | None:
    """Pad images to the most tiles, as the processor of Llama 3.2 Vision does, whatever their size is."""
    image, tiles = image_shape(job.vision), getattr(job.vision, "max_num_tiles", None)
    if image is None or tiles is None:
        return None
    shape = (job.batch[0], job.images.count)
    shapes = {
        "pixel_values": (*shape, tiles, *image),
        "aspect_ratio_ids": shape,
        "aspect_ratio_mask": (*shape, tiles),
        "cross_attention_mask": (*job.batch, job.images.count, tiles),
    }
    return shapes, 1, {}, job.size or image[1:]


def tokens_with_images(
    images: ImageInputs, number: int, shape: Shape, names: Mapping[str, Shape]
) -> dict[str, torch.Tensor]:
    """Return token ids of so many images before the text, and the types of tokens that the model takes."""
    if images.tokens is None:
        return {}
    length = number * (images.tokens + _AROUND_IMAGE)
    if length > shape[-1]:
        raise CannotTell(
            f"{number} x {images.tokens} tokens of images do not fit into a sequence of {shape[-1]}: "
            f"`--seq-len {length}` or more, or fewer or smaller images"
        )
    of_image = torch.zeros(images.tokens + _AROUND_IMAGE, dtype=torch.bool)
    of_image[1:-1] = True
    is_image = torch.zeros(shape, dtype=torch.bool)
    is_image[..., :length] = of_image.repeat(number)
    data = {"input_ids": is_image.long() * (images.token or 0)}
    for name in ("token_type_ids", "mm_token_type_ids"):
        if name in names:
            data[name] = is_image.long()
    return data
