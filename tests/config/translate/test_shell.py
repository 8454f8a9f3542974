"""Command lines as a shell reads and writes them."""

import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.each import each
from zlaunch.config.translate.shell import join, read, readable, without_prompts
from zlaunch.errors import WrongUsage

TEXTS = (
    'torchrun --nnodes=$N --node_rank "$RANK" --master_addr=${HOST:-a b} t.py',
    "t.py '$N' \\$N \"a \\$N\" 'it'\"'\"'s'",
    't.py $(echo "a b" c) `echo d` "$(echo "e f")"',
    "t.py --x ~/y *.none {a,b} [1,2]",
    "t.py \\\n  --lr 1 # the rate",
    r"t.py $'a\xffb\'c' $'\\' x$'y z'",
    't.py "$N and \'more\'" "" --empty=',
)


@each("text", TEXTS)
def test_a_shell_reads_the_same_words_from_what_is_written(text: str) -> None:
    show = f"{sys.executable} -c 'import json, sys; print(json.dumps(sys.argv[1:]))' "
    (command,) = read(text)

    def seen(line: str) -> list[str]:
        done = subprocess.run(
            ["bash", "-c", f"N='1 2' RANK='3 4'; {show} {line}"], capture_output=True, text=True, check=True
        )
        words: list[str] = json.loads(done.stdout)
        return words

    assert seen(join(command.words)) == seen(text)


@given(st.lists(st.text(st.characters(codec="ascii", exclude_characters="\0"), min_size=1), min_size=1))
def test_words_that_are_written_are_read_again(words: list[str]) -> None:
    (command,) = read(join(words))
    assert [readable(word) for word in command.words] == words


@each(
    ("text", "parts"),
    [
        ("cd x && torchrun t.py > log 2>&1 &", [("cd x", " &&"), (" torchrun t.py", " > log 2>&1 &")]),
        ("a; b | c\nd", [("a", ";"), (" b", " |"), (" c", "\n"), ("d", "")]),
        ("if true; then a; fi", [("if", ""), (" true", ";"), (" then", ""), (" a", ";"), (" fi", "")]),
    ],
)
def test_a_text_is_split_into_its_commands(text: str, parts: list[tuple[str, str]]) -> None:
    assert [(command.text, command.tail) for command in read(text)] == parts


@pytest.mark.parametrize("text", ["torchrun 't.py", 'torchrun "t.py'])
def test_a_quote_that_is_not_closed_is_wrong_usage(text: str) -> None:
    with pytest.raises(WrongUsage):
        read(text)


def test_a_byte_that_is_no_text_is_written_as_a_shell_reads_it() -> None:
    written = join(["it's \udcff\\"])
    assert (written, written.isascii()) == (r"$'it\'s \xff\\'", True)


PROMPTS = (
    *("$ ", "% ", "> ", "# ", "!", "(env) $ ", "user@host:~$ ", "(env) user@host:~/x$ ", "user@host x % "),
    *("[user@node1 x]$ ", "root@c0ffee:/workspace# ", "user@host ~/x> ", "\u276f ", "➜  x git:(main) ✗ "),
)


@each("prompt", PROMPTS)
def test_a_prompt_is_no_part_of_a_command(prompt: str) -> None:
    text, prompts = without_prompts(f"{prompt}torchrun t.py")
    assert (text, [about for about, _ in prompts]) == ("torchrun t.py", [prompt.strip()])


def test_each_line_that_was_copied_may_have_a_prompt() -> None:
    text, _ = without_prompts("$ cd x\n$ torchrun \\\n> t.py")
    assert text == "cd x\ntorchrun \\\nt.py"


@each(
    "text",
    [
        *("(cd x) > log && torchrun t.py", "[ -f x ] > log; torchrun t.py", "$X torchrun t.py"),
        *("! torchrun t.py", "a b > c\ntorchrun t.py", "# why\ntorchrun t.py", "cd x &&\ntorchrun t.py"),
    ],
)
def test_what_is_no_prompt_stays(text: str) -> None:
    assert without_prompts(text) == (text, ())
