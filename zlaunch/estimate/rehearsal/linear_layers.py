"""The model of `zlaunch tour`, linear layers with ReLU, as a class of transformers."""

from typing import Any

import torch
import transformers

from zlaunch.estimate.workload import LINEAR_LAYERS


class LinearLayersConfig(transformers.PretrainedConfig):  # type: ignore[misc]
    """The number of layers, and the size of each: inputs and outputs."""

    model_type = LINEAR_LAYERS

    def __init__(self, num_layers: int = 12, width: int = 2048, **options: Any) -> None:
        """Take the sizes."""
        super().__init__(**options)
        self.num_layers, self.width = num_layers, width


class LinearLayers(transformers.PreTrainedModel):  # type: ignore[misc]
    """The model of `recipes/zero_memory.py`."""

    config_class = LinearLayersConfig
    main_input_name = "vectors"

    def __init__(self, config: LinearLayersConfig) -> None:
        super().__init__(config)
        layers: list[torch.nn.Module] = []
        for _ in range(config.num_layers):
            layers += [torch.nn.Linear(config.width, config.width), torch.nn.ReLU()]
        self.layers = torch.nn.Sequential(*layers)
        self.post_init()

    def forward(self, vectors: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor]:
        """Return the mean squared error, in fp32."""
        return (torch.nn.functional.mse_loss(self.layers(vectors).float(), targets.float()),)


transformers.AutoConfig.register(LINEAR_LAYERS, LinearLayersConfig, exist_ok=True)
