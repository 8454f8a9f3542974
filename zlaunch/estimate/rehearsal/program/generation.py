"""Generated tokens without the generation, which ends when a value says so."""

from collections.abc import MutableMapping
from typing import Any

import torch
from transformers import GenerationMixin

from zlaunch.estimate.rehearsal.model import CannotTell

_USUAL_LENGTH = 20
"""The `max_length` of transformers."""


def apply(uncounted: MutableMapping[str, str]) -> None:
    """Let models return as many tokens as they may generate, and note that their memory is not counted."""

    def generate(
        self: Any, inputs: Any = None, generation_config: Any = None, *_: object, **given: Any
    ) -> torch.Tensor:
        uncounted["the generation of tokens"] = "takes a cache of keys and values"
        config = generation_config or self.generation_config
        if _setting("return_dict_in_generate", given, config) or given.get("streamer") is not None:
            raise CannotTell("it reads more of a generation than its tokens")
        prompt = given.get("input_ids", inputs)
        if prompt is None:
            raise CannotTell("it generates from something other than tokens")
        length = _setting("max_new_tokens", given, config)
        if length is None:
            length = max(1, (_setting("max_length", given, config) or _USUAL_LENGTH) - prompt.shape[1])
        prompt = prompt.repeat_interleave(_setting("num_return_sequences", given, config) or 1, 0)
        if self.config.is_encoder_decoder:
            prompt = prompt[:, :1]
        special = (config.eos_token_id, config.pad_token_id)
        token = next(number for number in range(4) if number not in _flat(special))
        new = torch.full((prompt.shape[0], length), token, dtype=prompt.dtype, device=prompt.device)
        return torch.cat([prompt, new], 1)

    GenerationMixin.generate = generate


def _setting(name: str, given: Any, config: Any) -> Any:
    if given.get(name) is not None:
        return given[name]
    return getattr(config, name, None)


def _flat(tokens: tuple[Any, ...]) -> list[Any]:
    flat: list[Any] = []
    for token in tokens:
        flat += token if isinstance(token, list) else [token]
    return flat
