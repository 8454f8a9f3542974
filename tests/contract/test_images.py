"""Images have as many tokens, and tiles, as the processors of transformers make of them."""

import math
from collections.abc import Mapping
from importlib import import_module
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from zlaunch.estimate.workload import Images

if TYPE_CHECKING:
    from zlaunch.estimate.rehearsal.images import ImageInputs

SIZES = [(w, h) for w in (30, 56, 199, 336, 560, 1000, 3000) for h in (28, 130, 449, 672, 1300)]


def image_inputs(*args: Any, **settings: Any) -> "ImageInputs":
    from zlaunch.estimate.rehearsal import images

    return images.image_inputs(*args, **settings)


def inputs(
    width: int, height: int, arguments: Mapping[str, Any], config: Any, **processor: Any
) -> "ImageInputs":
    arguments = {"pixel_values": None, **arguments}
    return image_inputs(Images(1, width, height), config, arguments, (1, 64), processor=processor)


def prepared_by(module: str) -> Any:
    """Import a module of image processors."""
    return import_module(f"transformers.models.{module}")


@pytest.mark.parametrize("patch", [14, 16])
def test_qwen_rounds_images_to_whole_patches(patch: int) -> None:
    resize = prepared_by("qwen2_vl.image_processing_pil_qwen2_vl").smart_resize
    vision = SimpleNamespace(patch_size=patch, spatial_merge_size=2, temporal_patch_size=2)
    for width, height in SIZES:
        made = inputs(width, height, {"image_grid_thw": None}, SimpleNamespace(vision_config=vision))
        rows, columns = resize(height, width, factor=2 * patch, max_pixels=1 << 40)
        assert made.data["image_grid_thw"].tolist() == [[1, rows // patch, columns // patch]]
        assert made.tokens == rows * columns // (2 * patch) ** 2


def test_qwen_reduces_images_to_the_most_pixels_of_its_processor() -> None:
    resize = prepared_by("qwen2_vl.image_processing_pil_qwen2_vl").smart_resize
    vision = SimpleNamespace(patch_size=14, spatial_merge_size=2, temporal_patch_size=2)
    config = SimpleNamespace(vision_config=vision)
    for width, height in SIZES:
        made = inputs(width, height, {"image_grid_thw": None}, config, max_pixels=200_000, min_pixels=50_000)
        rows, columns = resize(height, width, factor=28, max_pixels=200_000, min_pixels=50_000)
        assert made.data["image_grid_thw"].tolist() == [[1, rows // 14, columns // 14]]


@pytest.mark.parametrize("merge", [1, 2])
def test_pixtral_fits_images_into_its_largest_size(merge: int) -> None:
    import torch

    fitted = prepared_by("pixtral.image_processing_pil_pixtral").get_resize_output_image_size
    vision = SimpleNamespace(model_type="pixtral", image_size=1024, patch_size=16)
    config = SimpleNamespace(vision_config=vision, model_type="mistral3", spatial_merge_size=merge)
    for width, height in SIZES:
        made = inputs(width, height, {}, config)
        size = fitted(torch.zeros(3, height, width), 1024, 16 * merge)
        assert made.shapes["pixel_values"][2:] == size
        assert made.tokens == math.prod(size) // (16 * merge) ** 2


def test_idefics2_fits_images_between_two_edges() -> None:
    import torch

    module = prepared_by("idefics2.image_processing_pil_idefics2")
    edges = SimpleNamespace(shortest_edge=378, longest_edge=980)
    perceiver = SimpleNamespace(resampler_n_latents=64)
    config = SimpleNamespace(vision_config=SimpleNamespace(), perceiver_config=perceiver)
    for width, height in SIZES:
        made = inputs(width, height, {}, config)
        size = module.get_resize_output_image_size(torch.zeros(3, height, width), edges)
        assert made.shapes["pixel_values"] == (1, 1, 3, *size)
        assert made.tokens == 64
        assert made.missing


def test_idefics2_cuts_images_if_its_processor_does() -> None:
    perceiver = SimpleNamespace(resampler_n_latents=64)
    config = SimpleNamespace(vision_config=SimpleNamespace(), perceiver_config=perceiver)
    made = inputs(1000, 500, {}, config, do_image_splitting=True)
    assert made.shapes["pixel_values"][:2] == (1, 5)
    assert made.tokens == 5 * 64
    assert not made.missing


def test_internvl_cuts_images_into_tiles() -> None:
    processor = prepared_by("got_ocr2.image_processing_pil_got_ocr2").GotOcr2ImageProcessorPil(
        size={"height": 448, "width": 448}, crop_to_patches=True
    )
    vision = SimpleNamespace(image_size=[448, 448])
    config = SimpleNamespace(vision_config=vision, model_type="internvl", image_seq_length=256)
    for width, height in SIZES:
        tiles = processor.get_number_of_image_patches(height, width)
        assert inputs(width, height, {}, config).shapes["pixel_values"][0] == tiles


@pytest.mark.parametrize(
    ("kind", "images", "processor", "missing"),
    [
        ("internvl", Images(1), {}, ("more tiles of each image",)),
        ("internvl", Images(1, 3000, 1300), {}, ()),
        ("internvl", Images(1), {"crop_to_patches": False}, ()),
        ("llama4", Images(1, 3000, 1300), {}, ("more tiles of each image",)),
        ("gemma3", Images(1), {}, ()),
    ],
)
def test_tiles_that_are_not_counted_make_the_number_a_lower_bound(
    kind: str, images: Images, processor: dict[str, Any], missing: tuple[str, ...]
) -> None:
    vision = SimpleNamespace(image_size=336, patch_size=14)
    config = SimpleNamespace(vision_config=vision, model_type=kind)
    made = image_inputs(images, config, {"pixel_values": None}, (1, 64), processor=processor)
    assert made.missing == missing


def test_smolvlm_splits_images() -> None:
    processor = prepared_by("smolvlm.image_processing_pil_smolvlm").SmolVLMImageProcessorPil(
        size={"longest_edge": 2048}, max_image_size={"longest_edge": 512}
    )
    vision = SimpleNamespace(image_size=512, patch_size=16)
    config = SimpleNamespace(vision_config=vision, scale_factor=4)
    for width, height in SIZES:
        tiles, *_ = processor.get_number_of_image_patches(height, width)
        made = inputs(width, height, {"pixel_attention_mask": None}, config)
        assert made.shapes["pixel_values"][1] == tiles
        assert made.tokens == tiles * 64


def test_llava_next_leaves_out_padding() -> None:
    module = prepared_by("llava_next.processing_llava_next")
    resolutions = [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]]
    vision = SimpleNamespace(image_size=336, patch_size=14)
    config = SimpleNamespace(vision_config=vision, model_type="llava_next", image_grid_pinpoints=resolutions)
    count = module.LlavaNextProcessor._get_number_of_features
    own = SimpleNamespace(
        image_processor=SimpleNamespace(image_grid_pinpoints=resolutions),
        patch_size=14,
        num_additional_image_tokens=0,
    )
    own._get_unpadded_features = lambda *sizes: module.LlavaNextProcessor._get_unpadded_features(own, *sizes)
    for width, height in SIZES:
        assert inputs(width, height, {}, config).tokens == count(own, height, width, 336, 336)


def test_llava_onevision_has_fewer_tokens_of_large_images() -> None:
    processor = prepared_by("llava_onevision.processing_llava_onevision").LlavaOnevisionProcessor
    resolutions = prepared_by("llava_onevision.image_processing_pil_llava_onevision")
    resolutions = resolutions.LlavaOnevisionImageProcessorPil.image_grid_pinpoints
    vision = SimpleNamespace(image_size=384, patch_size=14)
    config = SimpleNamespace(
        vision_config=vision,
        model_type="llava_onevision",
        image_grid_pinpoints=resolutions,
        vision_aspect_ratio="anyres_max_9",
    )
    own = SimpleNamespace(
        image_processor=SimpleNamespace(image_grid_pinpoints=resolutions),
        num_image_tokens=27**2,
        vision_aspect_ratio="anyres_max_9",
    )
    own._get_unpadded_features = lambda *sizes: processor._get_unpadded_features(own, *sizes)
    for width, height in SIZES:
        count = processor._get_number_of_features(own, height, width, 384, 384)
        assert inputs(width, height, {}, config).tokens == count


def test_images_have_no_size_of_their_own_in_a_model_that_resizes_all() -> None:
    config = SimpleNamespace(vision_config=SimpleNamespace(image_size=224, patch_size=14), model_type="llava")
    made = inputs(1000, 500, {}, config)
    assert made.shapes["pixel_values"] == (1, 3, 224, 224)
    assert made.tokens == math.prod((16, 16))


def test_a_model_without_images_is_said_to_take_none() -> None:
    config = SimpleNamespace(model_type="llama")
    assert image_inputs(Images(2), config, {}, (1, 64)).notes == (
        "`--images 2` has no effect: the model takes no images",
    )
    assert image_inputs(Images(), config, {}, (1, 64)).notes == ()
