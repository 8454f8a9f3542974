"""Have DeepSpeed gather the experts of a block together, if it does not by default."""

from zlaunch.config.resolve.values import Values
from zlaunch.config.rules.model_types import LEAF_CLASSES, needed_leaves
from zlaunch.config.rules.rule import Context
from zlaunch.dsconfig.releases import NEWEST
from zlaunch.dsconfig.schema.section import ZERO
from zlaunch.job.model_types import model_type
from zlaunch.job.source import Source


def with_leaf_modules(values: Values, context: Context) -> Values:
    """Write `leaf_module` at stage 3 for a model whose experts are modules of their own."""
    model, release = context.model, context.release or NEWEST
    if model is None or values[(ZERO, "stage")] != 3 or values.has(LEAF_CLASSES[:2]):
        return values
    needed = needed_leaves(model_type(model, context.packages.get("transformers")), release)
    if not needed or not release.knows(LEAF_CLASSES):
        return values
    why = f"each expert of a `{model.kind}` is a module, and ranks use different ones"
    return values.put(LEAF_CLASSES, list(needed), Source.computed(why))
