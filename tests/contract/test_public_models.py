"""The bundled models as transformers builds them: one of each type, and all that the closed form does not count."""

from tests.each import each
from tests.job.test_public_models import is_published
from zlaunch.job.public_models import PublicModel, public_models
from zlaunch.job.transformer import read_transformer


def built() -> list[PublicModel]:
    first = {model.config["model_type"]: model for model in reversed(public_models())}
    uncounted = [model for model in public_models() if not read_transformer(dict(model.config)).known]
    return list({model.name: model for model in (*first.values(), *uncounted)}.values())


@each("model", built, ids=lambda model: model.name)
def test_transformers_counts_the_parameters_that_were_published(model: PublicModel) -> None:
    import torch
    import transformers

    config = dict(model.config)
    made = transformers.AutoConfig.for_model(config.pop("model_type"), **config)
    with torch.device("meta"):
        network = getattr(transformers, config["architectures"][0])(made)
    count = sum(parameter.numel() for parameter in network.parameters())
    assert is_published(count, model.parameters), f"{count:,}"
