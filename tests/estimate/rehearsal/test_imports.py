import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from zlaunch.estimate.rehearsal.imports import import_lazily

pytestmark = pytest.mark.program


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """Lazily import a package that counts its executions; its attribute `known` is given."""
    folder = tmp_path / "lazybones"
    folder.mkdir()
    text = "import sys\nsys.lazybones_executions = getattr(sys, 'lazybones_executions', 0) + 1\nvalue = 7\nknown = 'own'\n"
    (folder / "__init__.py").write_text(text + "from lazybones import circle\n")
    (folder / "circle.py").write_text("from . import value\ntwice = 2 * value\n")
    (folder / "alone.py").write_text("value = 8\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "lazybones_executions", 0, raising=False)
    import_lazily("lazybones", {"known": "given"})
    yield sys.modules["lazybones"]
    for name in [name for name in sys.modules if name.startswith("lazybones")]:
        del sys.modules[name]


def executions() -> int:
    return sys.lazybones_executions  # type: ignore[attr-defined, no-any-return]


def test_a_given_attribute_does_not_execute_the_module(package: ModuleType) -> None:
    assert (package.known, executions()) == ("given", 0)


def test_any_other_attribute_executes_the_module_once(package: ModuleType) -> None:
    assert (package.value, package.value, executions()) == (7, 7, 1)


def test_an_executed_module_replaces_given_attributes(package: ModuleType) -> None:
    assert package.value
    assert package.known == "own"


def test_importing_a_submodule_executes_its_package_first(package: ModuleType) -> None:
    from lazybones.circle import twice  # type: ignore[import-not-found]

    assert (twice, executions()) == (14, 1)


def test_a_lazy_submodule_is_executed_once_with_its_package(package: ModuleType) -> None:
    import_lazily("lazybones.circle", {"known": 1})
    circle = sys.modules["lazybones.circle"]
    assert (circle.known, executions()) == (1, 0)
    assert (circle.twice, executions()) == (14, 1)
    assert package.circle is circle


def test_a_standalone_submodule_does_not_execute_its_package(package: ModuleType) -> None:
    import_lazily("lazybones.alone", standalone=True)
    assert (sys.modules["lazybones.alone"].value, executions()) == (8, 0)


def test_a_missing_attribute_raises_an_attribute_error(package: ModuleType) -> None:
    with pytest.raises(AttributeError, match="nowhere"):
        package.nowhere  # noqa: B018
