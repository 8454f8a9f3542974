import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from zlaunch.estimate.rehearsal.lazy_modules import import_later


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """Import a package later that counts how often it runs; `known` is known of it."""
    folder = tmp_path / "lazybones"
    folder.mkdir()
    text = "import sys\nsys.lazybones_ran = getattr(sys, 'lazybones_ran', 0) + 1\nvalue = 7\nknown = 'own'\n"
    (folder / "__init__.py").write_text(text + "from lazybones import circle\n")
    (folder / "circle.py").write_text("from . import value\ntwice = 2 * value\n")
    (folder / "alone.py").write_text("value = 8\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "lazybones_ran", 0, raising=False)
    import_later("lazybones", {"known": "told"})
    yield sys.modules["lazybones"]
    for name in [name for name in sys.modules if name.startswith("lazybones")]:
        del sys.modules[name]


def times_run() -> int:
    return sys.lazybones_ran  # type: ignore[attr-defined, no-any-return]


def test_what_is_known_of_a_module_does_not_run_it(package: ModuleType) -> None:
    assert (package.known, times_run()) == ("told", 0)


def test_what_is_not_known_runs_the_module_once(package: ModuleType) -> None:
    assert (package.value, package.value, times_run()) == (7, 7, 1)


def test_a_module_that_ran_says_itself_what_was_known_of_it(package: ModuleType) -> None:
    assert package.value
    assert package.known == "own"


def test_a_submodule_that_needs_its_package_runs_it_first(package: ModuleType) -> None:
    from lazybones.circle import twice  # type: ignore[import-not-found]

    assert (twice, times_run()) == (14, 1)


def test_a_submodule_that_comes_later_too_runs_once_with_its_package(package: ModuleType) -> None:
    import_later("lazybones.circle", {"known": 1})
    circle = sys.modules["lazybones.circle"]
    assert (circle.known, times_run()) == (1, 0)
    assert (circle.twice, times_run()) == (14, 1)
    assert package.circle is circle


def test_a_submodule_that_can_do_alone_leaves_its_package_as_it_is(package: ModuleType) -> None:
    import_later("lazybones.alone", alone=True)
    assert (sys.modules["lazybones.alone"].value, times_run()) == (8, 0)


def test_what_a_module_does_not_have_is_an_attribute_error(package: ModuleType) -> None:
    with pytest.raises(AttributeError, match="nowhere"):
        package.nowhere  # noqa: B018
