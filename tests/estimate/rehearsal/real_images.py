"""Images as transformers' own processors prepare them for a model; nothing here is shared with the rehearsal."""

from functools import cache
from typing import Any

TOKENS = {
    ("qwen2_vl", 200, 130): 35,
    ("qwen2_5_vl", 200, 130): 35,
    ("qwen3_vl", 200, 130): 24,
    ("gemma3", 200, 130): 4,
    ("internvl", 200, 130): 28,
    ("llava_next", 200, 130): 70,
    ("idefics3", 200, 130): 52,
    ("smolvlm", 200, 130): 52,
    ("mllama", 200, 130): 1,
    ("llava_onevision", 200, 130): 0,
    ("llava", 200, 130): 48,
    ("mistral3", 200, 130): 12,
    ("idefics2", 200, 130): 8,
}
"""Type of a model, width and height of an image → its tokens; a model fails if the number is wrong."""


def processor_of(model: dict[str, Any], options: dict[str, Any]) -> Any:
    """Make the image processor of a model, in the sizes of its config; `options` are its own."""
    from transformers import models

    side = model["vision_config"].get("image_size", 0)
    kind = model["model_type"]
    if kind in ("qwen2_vl", "qwen2_5_vl", "qwen3_vl"):
        patch = 16 if kind == "qwen3_vl" else 14
        return models.qwen2_vl.image_processing_pil_qwen2_vl.Qwen2VLImageProcessorPil(
            patch_size=patch, **options
        )
    if kind == "gemma3":
        size = {"height": side, "width": side}
        return models.gemma3.image_processing_pil_gemma3.Gemma3ImageProcessorPil(size=size)
    if kind == "internvl":
        size = dict(zip(("height", "width"), side, strict=True))
        return models.got_ocr2.image_processing_pil_got_ocr2.GotOcr2ImageProcessorPil(
            size=size, crop_to_patches=True
        )
    if kind == "llava_next":
        return models.llava_next.image_processing_pil_llava_next.LlavaNextImageProcessorPil(
            size={"shortest_edge": side},
            crop_size={"height": side, "width": side},
            image_grid_pinpoints=model["image_grid_pinpoints"],
        )
    if kind == "llava_onevision":
        return models.llava_onevision.image_processing_pil_llava_onevision.LlavaOnevisionImageProcessorPil(
            size={"height": side, "width": side}, image_grid_pinpoints=model["image_grid_pinpoints"]
        )
    if kind in ("llava", "mistral3"):
        patch = model["vision_config"]["patch_size"] * model.get("spatial_merge_size", 1)
        return models.pixtral.image_processing_pil_pixtral.PixtralImageProcessorPil(
            size={"longest_edge": side}, patch_size={"height": patch, "width": patch}
        )
    if kind == "idefics2":
        return models.idefics2.image_processing_pil_idefics2.Idefics2ImageProcessorPil(**options)
    if kind == "mllama":
        size = {"height": side, "width": side}
        return models.mllama.image_processing_pil_mllama.MllamaImageProcessorPil(size=size)
    tiles = {"size": {"longest_edge": 4 * side}, "max_image_size": {"longest_edge": side}}
    if kind == "idefics3":
        return models.idefics3.image_processing_pil_idefics3.Idefics3ImageProcessorPil(**tiles)
    return models.smolvlm.image_processing_pil_smolvlm.SmolVLMImageProcessorPil(**tiles)


_NESTED = ("idefics2", "idefics3", "smolvlm", "gemma3", "mllama", "llava_onevision")
_OTHERS = (
    *("image_grid_thw", "image_sizes", "aspect_ratio_ids", "aspect_ratio_mask"),
    "batch_num_images",
)
"""Types of models whose processors take lists of images, and what they make beside images and masks."""


class Prepared:
    """What a processor makes of the images of a micro-batch."""

    def __init__(self, workload: dict[str, Any]) -> None:
        """Prepare the images, each of them grey."""
        from PIL import Image

        model, images = workload["model"], workload["images"]
        image = Image.new("RGB", (images["width"], images["height"]), (90, 90, 90))
        sequences = workload["ds_config"]["train_micro_batch_size_per_gpu"]
        nested: Any = [[image] * images["count"]] * sequences
        if model["model_type"] not in _NESTED:
            nested = [image] * (images["count"] * sequences)
        options = workload.get("processor") or {}
        made = processor_of(model, options)(nested, return_tensors="pt")
        self.shapes = {name: tuple(tensor.shape) for name, tensor in made.items() if name == "pixel_values"}
        self.others = {name: tensor.tolist() for name, tensor in made.items() if name in _OTHERS}
        self.masks = {name: tensor.shape for name, tensor in made.items() if name == "pixel_attention_mask"}
        self.count = images["count"]
        self.tokens = TOKENS[model["model_type"], images["width"], images["height"]]
        if model["model_type"] == "llava_onevision":
            self.tokens = {1: 70, 2: 17}[images["count"]]
        elif options.get("do_image_splitting"):
            self.tokens *= 5
        self.token = model.get("image_token_id", model.get("image_token_index"))
        self.types = {"gemma3": ["token_type_ids"], "qwen2_vl": ["mm_token_type_ids"]}.get(
            model["model_type"].replace("2_5", "2").replace("3_vl", "2_vl"), []
        )

    def batch(self, ids: Any, dtype: Any) -> dict[str, Any]:
        """Put images into sequences, each between a token that begins and one that ends it."""
        import torch

        batch = {name: torch.ones(shape, dtype=dtype) for name, shape in self.shapes.items()}
        batch |= {name: torch.ones(shape, dtype=torch.long) for name, shape in self.masks.items()}
        batch |= {name: torch.tensor(values) for name, values in self.others.items()}
        types = {name: torch.zeros(ids.shape, dtype=torch.long) for name in self.types}
        for number in range(self.count):
            first = number * (self.tokens + 2) + 1
            ids[:, first : first + self.tokens] = self.token
            for values in types.values():
                values[:, first : first + self.tokens] = 1
        if "aspect_ratio_mask" in self.others:  # which the processor has of each token of the text, too
            _, number, tiles = self.shapes["pixel_values"][:3]
            batch["cross_attention_mask"] = torch.ones((*ids.shape, number, tiles), dtype=torch.long)
        return batch | types


@cache
def _prepared(key: str) -> Prepared:
    import json

    return Prepared(json.loads(key))


def prepared(workload: dict[str, Any]) -> Prepared:
    """Prepare the images of a workload once."""
    import json

    names = ("model", "images", "ds_config", "processor")
    return _prepared(json.dumps({name: workload.get(name) for name in names}))
