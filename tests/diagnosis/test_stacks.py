"""Where ranks are, read from what faulthandler really writes."""

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.each import each
from zlaunch.diagnosis.stacks import Frame, last_stack, odd_ranks, place

DUMPING = """
import faulthandler, json, sys, threading
def outer():
    return inner()
def inner():
    faulthandler.dump_traceback(out, all_threads=True)
def waits():
    started.set(); done.wait()
started, done = threading.Event(), threading.Event()
out = open(sys.argv[1], "a")
if "thread" in sys.argv:
    threading.Thread(target=waits, name="a (most recent call first): b").start(); started.wait()
if "odd names" in sys.argv:
    exec(compile("def f(): outer()\\nf()", 'a "b", line 3 in c\\n.py', "exec"))
if "library" in sys.argv:
    json.loads("1", object_hook=None, parse_int=lambda _: outer())
else:
    outer()
done.set()
"""


def dump(folder: Path, *words: str, file: str = "stacks") -> str:
    (folder / "train.py").write_text(DUMPING)
    subprocess.run([sys.executable, "train.py", file, *words], cwd=folder, check=True)
    return (folder / file).read_text()


@pytest.mark.parametrize("words", [(), ("thread",), ("odd names",)])
def test_the_main_threads_stack_is_read_deepest_call_first(words: tuple[str, ...], tmp_path: Path) -> None:
    stack = last_stack(dump(tmp_path, *words))
    assert [(frame.line, frame.function) for frame in stack] == [
        ("6", "inner"),
        ("4", "outer"),
        (stack[-1].line, "<module>"),
    ]
    assert place(stack) == f"{tmp_path.name}/train.py:6 inner"


def test_of_several_dumps_the_last_one_counts(tmp_path: Path) -> None:
    dump(tmp_path, "thread", "library")
    assert last_stack(dump(tmp_path, "thread"))[1].function == "outer"


def test_a_dump_that_is_cut_at_its_beginning_is_still_read(tmp_path: Path) -> None:
    text = dump(tmp_path, "thread")
    assert last_stack(text[30:]) == last_stack(text)


def test_a_crash_is_read_like_an_answer(tmp_path: Path) -> None:
    (tmp_path / "crash.py").write_text(
        "import faulthandler, os\nfaulthandler.enable()\ndef f(): os.abort()\nf()"
    )
    done = subprocess.run(
        [sys.executable, "crash.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert last_stack(done.stderr)[0].function == "f"


def test_a_place_in_a_library_names_the_users_line_that_led_there() -> None:
    stack = (Frame("/v/lib/python3.11/json/decoder.py", "353", "raw_decode"), MAIN)
    assert place(stack) == "json/decoder.py:353 raw_decode, called from me/train.py:9 main"
    assert place((LOADER,)) == "data/dataloader.py:700 _try_get_data"


@given(st.text())
def test_no_text_is_too_strange_to_be_read(text: str) -> None:
    place(last_stack(text))


SITE = "/v/lib/python3.11/site-packages"
MAIN = Frame("/home/me/train.py", "9", "main")
DEEP = Frame("/home/me/distributed/train.py", "70", "read")
REDUCE = Frame(f"{SITE}/torch/distributed/distributed_c10d.py", "3145", "all_reduce")
BARRIER = Frame(f"{SITE}/torch/distributed/distributed_c10d.py", "5033", "barrier")
FORWARD = Frame(f"{SITE}/deepspeed/runtime/engine.py", "3000", "forward")
LOADER = Frame(f"{SITE}/torch/utils/data/dataloader.py", "700", "_try_get_data")
IN_REDUCE, IN_BARRIER = (REDUCE, MAIN), (BARRIER, MAIN)
ASLEEP, LOADING, IN_STEP = (DEEP, MAIN), (LOADER, MAIN), (FORWARD, MAIN)
UNDER_COMMUNICATION = (DEEP, FORWARD, REDUCE, MAIN)


@each(
    ("stacks", "odd"),
    [
        ([IN_REDUCE, ASLEEP], (1,)),
        ([ASLEEP, IN_REDUCE], (0,)),
        ([IN_REDUCE, LOADING, IN_REDUCE, IN_REDUCE], (1,)),
        ([IN_REDUCE, UNDER_COMMUNICATION], (1,)),
        ([IN_STEP, ASLEEP], (1,)),
        ([IN_STEP, LOADING], (1,)),
        ([IN_REDUCE, IN_REDUCE], ()),
        ([ASLEEP, ASLEEP], ()),
        ([IN_REDUCE, IN_BARRIER], ()),
        ([IN_REDUCE, IN_BARRIER, IN_REDUCE], (1,)),
        ([LOADING, ASLEEP, ASLEEP], (0,)),
        ([IN_REDUCE, ()], (1,)),
        ([ASLEEP, (), IN_REDUCE], (1,)),
        ([(), ()], ()),
        ([IN_REDUCE], ()),
        ([], ()),
    ],
)
def test_the_odd_rank_is_the_one_that_others_wait_for(
    stacks: list[tuple[Frame, ...]], odd: tuple[int, ...]
) -> None:
    assert odd_ranks(dict(enumerate(stacks))) == odd


@given(
    st.dictionaries(st.integers(0, 9), st.sampled_from([(), IN_REDUCE, IN_BARRIER, ASLEEP, LOADING, IN_STEP]))
)
def test_never_are_all_ranks_odd(stacks: dict[int, tuple[Frame, ...]]) -> None:
    odd = odd_ranks(stacks)
    assert set(odd) < set(stacks) or not stacks
    assert len({stacks[rank] for rank in stacks}) > 1 or odd == ()
