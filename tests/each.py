"""One test of many cases: `pytest.mark.parametrize` costs milliseconds for each, which thousands of cases multiply."""

import functools
import inspect
import traceback
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

MOST_TOLD = 20
LINES_TOLD = 30


def each(
    names: str | Sequence[str],
    cases: Iterable[Any] | Callable[[], Iterable[Any]],
    ids: Callable[..., object] | Iterable[object] | None = None,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run a test for every case, as `parametrize` does, but as one test, which fails with all cases that fail.

    Fixtures are made once for all cases, so a test whose cases share something that they change must not use it.
    Cases that a heavy package has to tell are a function, which is called when the test runs.
    """
    keys = [name.strip() for name in names.split(",")] if isinstance(names, str) else [*names]

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def every(**fixtures: Any) -> None:
            taken = [values_of(case, len(keys)) for case in (cases() if callable(cases) else cases)]
            assert taken, "no case"
            labels = taken if ids is None else [ids(*values) for values in taken] if callable(ids) else ids
            failures = []
            for label, values in zip(labels, taken, strict=True):
                try:
                    test(**fixtures, **dict(zip(keys, values, strict=True)))
                except Exception as error:  # noqa: BLE001 - a case may raise anything
                    failures.append(told(label, error))
            if failures:
                head = f"{len(failures)} cases fail"
                pytest.fail("\n\n".join([head, *failures[:MOST_TOLD]]), pytrace=False)

        signature = inspect.signature(test)
        rest = [one for name, one in signature.parameters.items() if name not in keys]
        every.__signature__ = signature.replace(parameters=rest)  # type: ignore[attr-defined]
        return every

    return decorate


def values_of(case: Any, count: int) -> Sequence[Any]:
    """Take a case as `parametrize` takes it."""
    if hasattr(case, "marks") and hasattr(case, "values"):
        assert not case.marks, "the cases of one test cannot be marked apart"
        values: Sequence[Any] = case.values
        return values
    return (case,) if count == 1 else case


def told(label: object, error: Exception) -> str:
    """Tell which case failed, where, and with what."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    words = "".join(traceback.format_exception_only(error)).strip().splitlines()[:LINES_TOLD]
    return "\n".join([f"--- {label!s:.200}", f"{frame.filename}:{frame.lineno}: {frame.line}", *words])
