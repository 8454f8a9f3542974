"""Measure how plain the code is, beside the last release: `python -m tools.report`. It has no limits to pass.

`--places` lists the places to work off. `--record RELEASE` keeps the numbers as the last release's, with the
minutes of the tests if they ran in its checkout; `make test` shows these.

A code line is neither blank nor a comment, a docstring or an import. The decisions of a function are its
branches, loops and assertions, conditional expressions, `and`s and `or`s, comprehensions and their
conditions, plus one for itself. A function without a body, such as one of a protocol, does not count.
"""

import argparse
import ast
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

ROOT = Path(__file__).parent.parent
LAST_RELEASE = Path(__file__).with_name("last_release.json")
PACKAGE = "zlaunch"
MINUTES = Path("build/test_minutes.json")
"""Where `make test` leaves how long each part took, in a checkout."""
MANY_DECISIONS = 8
MANY_MODULES = 3
SAY_NOTHING = ("one", "found", "told", "said", "own")
"""Names of values that do not say what they hold."""

Function = ast.FunctionDef | ast.AsyncFunctionDef
Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
Branch = ast.If | ast.For | ast.AsyncFor | ast.While | ast.match_case | ast.Assert | ast.IfExp
Numbers = dict[str, float]


@dataclass(frozen=True)
class Module:
    """A parsed file of the package. `name` is dotted, and `package` the first part below `zlaunch`."""

    name: str
    file: str
    source: str
    tree: ast.Module

    @property
    def package(self) -> str:
        """Say which package it belongs to; modules at the top are packages of their own."""
        return ".".join(self.name.split(".")[:2])


@dataclass(frozen=True)
class Place:
    """A line to work off."""

    kind: str
    file: str
    line: int
    text: str

    def __str__(self) -> str:
        """Format it so that editors jump to it."""
        return f"{self.file}:{self.line}: {self.kind}: {self.text}"


def modules(checkout: Path) -> list[Module]:
    """Parse all modules of the package in a checkout, without recipes, which are programs of their own."""
    parsed = []
    for path in sorted((checkout / PACKAGE).rglob("*.py")):
        relative = path.relative_to(checkout)
        if relative.parts[1] == "recipes":
            continue
        name = ".".join(relative.with_suffix("").parts).removesuffix(".__init__")
        source = path.read_text()
        parsed.append(Module(name, str(relative), source, ast.parse(source)))
    return parsed


def code_lines(module: Module) -> int:
    """Count the lines that are not blank, comments, docstrings or imports."""
    left_out: set[int] = set()
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import | ast.ImportFrom | ast.Expr) and not is_expression(node):
            left_out.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    count = 0
    for number, line in enumerate(module.source.splitlines(), start=1):
        text = line.strip()
        if text and not text.startswith("#") and number not in left_out:
            count += 1
    return count


def decisions_at(node: ast.AST) -> int:
    """Count the decisions of one node, without those of its children."""
    if isinstance(node, ast.BoolOp):
        return len(node.values) - 1
    if isinstance(node, ast.comprehension):
        return 1 + len(node.ifs)
    return int(isinstance(node, Branch))


def decisions(function: Function) -> int:
    """Count the decisions in the body of a function, with those of functions inside it."""
    nodes = chain.from_iterable(ast.walk(statement) for statement in function.body)
    return 1 + sum(map(decisions_at, nodes))


def has_body(function: Function) -> bool:
    """Say if a function has more than a docstring or `...`."""
    return not all(is_constant(statement) for statement in function.body)


def is_constant(node: ast.AST) -> bool:
    """Say if a statement is a docstring or `...`."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def is_expression(node: ast.AST) -> bool:
    """Say if a statement is an expression other than a docstring."""
    if not isinstance(node, ast.Expr):
        return False
    return not (isinstance(node.value, ast.Constant) and isinstance(node.value.value, str))


def is_private(function: Function) -> bool:
    """Say if the name of a function starts with one underscore."""
    return function.name.startswith("_") and not function.name.startswith("__")


def is_nested(node: ast.AST) -> bool:
    """Say if a node is a conditional expression that contains another."""
    if not isinstance(node, ast.IfExp):
        return False
    return sum(isinstance(inner, ast.IfExp) for inner in ast.walk(node)) > 1


def is_star_list(node: ast.AST) -> bool:
    """Say if a node is `*([x] if y else [])`."""
    return isinstance(node, ast.Starred) and isinstance(node.value, ast.IfExp)


def is_dense(node: ast.AST) -> bool:
    """Say if a node is a comprehension with more than one `for`, or more than one `if`."""
    if not isinstance(node, Comprehension):
        return False
    return len(node.generators) > 1 or len(node.generators[0].ifs) > 1


def is_conditional_return(node: ast.AST) -> bool:
    """Say if a node is `return a if b else c`."""
    return isinstance(node, ast.Return) and isinstance(node.value, ast.IfExp)


def says_nothing(node: ast.AST) -> bool:
    """Say if a node gives a value a name that does not say what it holds."""
    if isinstance(node, ast.arg):
        return node.arg in SAY_NOTHING
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in SAY_NOTHING


KINDS: dict[str, Callable[[ast.AST], bool]] = {
    "conditional expressions": lambda node: isinstance(node, ast.IfExp),
    "nested conditional expressions": is_nested,
    "star lists": is_star_list,
    "comprehensions": lambda node: isinstance(node, Comprehension),
    "dense comprehensions": is_dense,
    "returns": lambda node: isinstance(node, ast.Return),
    "conditional returns": is_conditional_return,
    "names that say nothing": says_nothing,
}


PLACES = (
    "nested conditional expressions",
    "star lists",
    "dense comprehensions",
    "names that say nothing",
)
"""Kinds of places to work off."""


def count(module: Module) -> Counter[str]:
    """Count everything that is counted by module."""
    counted = Counter({"lines": module.source.count("\n"), "code lines": code_lines(module)})
    for node in ast.walk(module.tree):
        counted.update(kind for kind, matches in KINDS.items() if matches(node))
        if isinstance(node, ast.BoolOp):
            counted["and, or"] += len(node.values) - 1
        elif isinstance(node, Function):
            counted.update(count_function(node))
    return counted


def count_function(function: Function) -> Counter[str]:
    """Count a function and its decisions."""
    counted = Counter[str]()
    if has_body(function):
        number = decisions(function)
        many = int(number > MANY_DECISIONS)
        counted.update({"functions": 1, "decisions": number, "functions over 8": many})
    if is_private(function):
        documented = ast.get_docstring(function) is not None
        counted.update({"private functions": 1, "private docstrings": int(documented)})
    return counted


def imported(module: Module, names: set[str]) -> set[str]:
    """Name the modules of the package that a module imports, wherever in it."""
    targets: set[str] = set()
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            targets.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                if inner in names:
                    targets.add(inner)
                else:
                    targets.add(node.module)
    return (targets & names) - {module.name}


def shared_helpers(parsed: Sequence[Module]) -> dict[str, list[Place]]:
    """Find the names of private functions that three or more modules define."""
    definitions: dict[str, list[Place]] = {}
    for module in parsed:
        functions = (node for node in module.tree.body if isinstance(node, Function))
        for function in functions:
            if is_private(function):
                place = Place("shared helper name", module.file, function.lineno, function.name)
                definitions.setdefault(function.name, []).append(place)
    return {name: defined for name, defined in definitions.items() if len(defined) >= MANY_MODULES}


def places(parsed: Sequence[Module]) -> Iterator[Place]:
    """List what can be worked off, place by place."""
    for module in parsed:
        lines = module.source.splitlines()
        for node in ast.walk(module.tree):
            for kind in PLACES:
                if KINDS[kind](node):
                    line = getattr(node, "lineno", 0)
                    yield Place(kind, module.file, line, lines[line - 1].strip())
    for _, defined in sorted(shared_helpers(parsed).items()):
        yield from defined


def measure(parsed: Sequence[Module]) -> Numbers:
    """Compute the numbers of a package, in the order in which they are shown."""
    total = sum((count(module) for module in parsed), Counter[str]())
    names = {module.name for module in parsed}
    package_of = {module.name: module.package for module in parsed}
    edges: list[tuple[str, str]] = []
    for module in parsed:
        edges += [(module.name, target) for target in imported(module, names)]
    across = [(package_of[source], package_of[target]) for source, target in edges]
    across = [(source, target) for source, target in across if source != target]

    def per_thousand(kind: str) -> float:
        return 1000 * total[kind] / max(1, total["code lines"])

    def share(part: str, whole: str) -> float:
        return 100 * total[part] / max(1, total[whole])

    numbers: Numbers = {
        "decisions per function, mean": total["decisions"] / max(1, total["functions"]),
        "functions of more than 8 decisions, %": share("functions over 8", "functions"),
        "conditional expressions per 1,000 code lines": per_thousand("conditional expressions"),
        "nested conditional expressions": total["nested conditional expressions"],
        "`return a if b else c`, % of returns": share("conditional returns", "returns"),
        "`*([x] if y else [])`": total["star lists"],
        "and, or per 1,000 code lines": per_thousand("and, or"),
        "comprehensions per 1,000 code lines": per_thousand("comprehensions"),
        "comprehensions of several `for` or `if`": total["dense comprehensions"],
        "private functions": total["private functions"],
        "private functions with a docstring": total["private docstrings"],
        "private names defined in three or more modules": len(shared_helpers(parsed)),
        f"names that say nothing: {', '.join(SAY_NOTHING)}": total["names that say nothing"],
        "modules": len(parsed),
        "imports between modules": len(edges),
        "imports between packages": len(across),
        "pairs of packages": len(set(across)),
        "code lines": total["code lines"],
        "lines": total["lines"],
    }
    lines = Counter[str]()
    for module in parsed:
        lines[module.package.removeprefix(f"{PACKAGE}.")] += module.source.count("\n")
    return numbers | {f"lines of {package}": lines[package] for package in sorted(lines)}


def test_minutes(file: Path) -> Numbers:
    """Read how long each part of the tests took, if they ran."""
    minutes: Numbers = {}
    if file.exists():
        minutes = json.loads(file.read_text())
    return minutes


def formatted(number: float | None) -> str:
    """Format a number: a count as an integer, a mean or share with one or two decimals."""
    if number is None:
        return "-"
    if number == int(number):
        return f"{int(number):,}"
    if number < 10:
        return f"{number:.2f}"
    return f"{number:.1f}"


def table(before: Numbers, now: Numbers, release: str) -> Iterator[str]:
    """Show both releases, a line for each number. Packages that are gone stay as a line."""
    yield f"{'':52}{release:>10}{'now':>10}"
    for label in [*now, *(label for label in before if label not in now)]:
        yield f"{label:52}{formatted(before.get(label)):>10}{formatted(now.get(label)):>10}"


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table or the places, or record a release."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.report", description="Measure how plain the code is."
    )
    parser.add_argument("--checkout", type=Path, default=ROOT, metavar="DIR", help="default: this one")
    parser.add_argument("--places", action="store_true", help="list the places to work off")
    parser.add_argument("--record", metavar="RELEASE", help="keep the numbers as those of a release")
    options = parser.parse_args(argv)
    parsed = modules(options.checkout)
    if options.places:
        for place in places(parsed):
            print(place)
        return 0
    numbers = measure(parsed)
    if options.record:
        rounded = {label: round(number, 2) for label, number in numbers.items()}
        minutes = test_minutes(options.checkout / MINUTES)
        release = {"release": options.record, "numbers": rounded, "test minutes": minutes}
        LAST_RELEASE.write_text(json.dumps(release, indent=1) + "\n")
        return 0
    last = json.loads(LAST_RELEASE.read_text())
    for line in table(last["numbers"], numbers, last["release"]):
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
