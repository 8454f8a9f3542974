"""A plain Trainer script, which knows nothing of zlaunch: fit a line."""

import torch
from transformers import HfArgumentParser, PretrainedConfig, Trainer, TrainingArguments


class Line(torch.nn.Module):  # type: ignore[misc]
    """Two linear layers with a loss, as the Trainer wants it; every rank has a part of them."""

    def __init__(self) -> None:
        """Start at random weights."""
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.Linear(64, 1))
        self.config = PretrainedConfig(hidden_size=64)  # for the sizes of buckets

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the loss; `x` is (batch, 8), `labels` (batch, 1)."""
        x = x.to(self.layers[0].weight.dtype)
        return {"loss": torch.nn.functional.mse_loss(self.layers(x).float(), labels)}


def main() -> None:
    """Train on samples of a known line."""
    (args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
    torch.manual_seed(0)
    inputs = torch.randn(4096, 8)
    samples = [{"x": x, "labels": x.sum(0, keepdim=True)} for x in inputs]
    Trainer(model=Line(), args=args, train_dataset=samples).train()


if __name__ == "__main__":
    main()
