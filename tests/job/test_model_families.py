"""The table of families against the models that transformers makes, without memory."""

from typing import Any

from tests.each import each
from zlaunch.job.model_families import LINEAR, SHAPES, families
from zlaunch.job.transformer import read_transformer, with_default_sizes

_DEPTHS = ("num_hidden_layers", "n_layer", "num_layers", "num_decoder_layers")
_KINDS = ("MODEL_FOR_CAUSAL_LM", "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM")
_ENCODERS = frozenset({"bert", "roberta", "xlm-roberta", "camembert"})


def shallow(kind: str) -> dict[str, Any]:
    """Take a type's default config, with two layers."""
    import transformers

    given: dict[str, Any] = transformers.CONFIG_MAPPING[kind]().to_dict()
    given.update({key: 2 for key in _DEPTHS if given.get(key)})
    if given.get("layer_types"):
        given["layer_types"] = given["layer_types"][:2]
    return {**given, "model_type": kind}


def made(kind: str, given: dict[str, Any]) -> Any:
    """Make a model of a type, without memory."""
    import torch
    import transformers
    from transformers.models.auto import modeling_auto

    tables = ["MODEL_FOR_MASKED_LM"] if kind in _ENCODERS else _KINDS
    names = [getattr(modeling_auto, f"{table}_MAPPING_NAMES").get(kind) for table in tables]
    config = transformers.CONFIG_MAPPING[kind].from_dict(given)
    with torch.device("meta"):
        return getattr(transformers, next(name for name in names if name))(config)


@each("kind", families())
def test_a_family_has_the_parameters_that_transformers_makes(kind: str) -> None:
    given = shallow(kind)
    parameters = dict(made(kind, given).named_parameters())
    read = read_transformer(given)
    assert read.parameters == sum(one.numel() for one in parameters.values())
    assert sorted(weight.numel for weight in read.in_order()) == sorted(
        one.numel() for one in parameters.values()
    )


@each("kind", families())
def test_adapters_find_a_familys_matrices_by_name(kind: str) -> None:
    given = shallow(kind)
    ends = {name.rsplit(".", 1)[-1] for name, _ in made(kind, given).named_modules()}
    read = read_transformer(given)
    names = dict(read.family.module_names)
    used = {weight.name for stack in read.stacks for weight in stack.weights} & LINEAR
    assert {names[name] for name in used} <= ends


def test_every_name_in_the_table_has_a_shape() -> None:
    words = {
        word.rstrip("+?")
        for family in families().values()
        for part in (family.embedding, family.layer, family.decoder, family.head)
        for word in part.split()
    }
    assert words == {*SHAPES}


@each("kind", families())
def test_sizes_that_a_config_leaves_out_are_those_of_transformers(kind: str) -> None:
    import transformers

    usual = with_default_sizes({"model_type": kind})
    assert {**transformers.CONFIG_MAPPING[kind]().to_dict(), **usual, "model_type": kind} == {
        **transformers.CONFIG_MAPPING[kind]().to_dict(),
        "model_type": kind,
    }
