"""What is written, validated and resolved is what was meant: no value changes on the way."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.making import WRITTEN
from zlaunch.config.resolve.compose import preset, to_json
from zlaunch.config.resolve.resolve import resolve_file
from zlaunch.config.resolve.values import AUTO, Values
from zlaunch.config.rules.rule import Context
from zlaunch.config.validate import validate_document
from zlaunch.dsconfig.text.document import value_at
from zlaunch.dsconfig.text.parser import parse
from zlaunch.errors import FATAL
from zlaunch.job.spec import STAGES, Offload, Stage

VALUES: dict[tuple[str, ...], st.SearchStrategy[Any]] = {
    ("gradient_clipping",): st.floats(0.0, 1e6),
    ("steps_per_print",): st.integers(1, 10**9),
    ("train_micro_batch_size_per_gpu",): st.integers(1, 10**6),
    ("gradient_accumulation_steps",): st.integers(1, 10**6),
    ("wall_clock_breakdown",): st.booleans(),
    ("zero_optimization", "reduce_bucket_size"): st.integers(1, 10**12),
    ("zero_optimization", "overlap_comm"): st.booleans(),
    ("bf16", "enabled"): st.just(False),
}
changes = st.lists(
    st.sampled_from(sorted(VALUES)).flatmap(lambda path: st.tuples(st.just(path), VALUES[path])), max_size=6
)


@given(st.sampled_from([*STAGES.values()]), changes, st.integers(1, 64))
def test_a_value_goes_unchanged_through_writing_validating_and_resolving(
    stage: Stage, chosen: list[tuple[tuple[str, ...], Any]], world_size: int
) -> None:
    values = Values.of(preset(stage, Offload(), None), WRITTEN)
    for path, value in chosen:
        values = values.put(path, value, WRITTEN)
    document, context = parse(to_json(values.config()), "ds.json"), Context(world_size=world_size)
    assert [one for one in validate_document(document, context) if one.severity in FATAL] == []
    resolved = resolve_file(document, context).values.config()
    written = {path: leaf.value for path, leaf in values.leaves.items() if leaf.value != AUTO}
    assert {path: value_at(resolved, path) for path in written} == written
