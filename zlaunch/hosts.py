"""Asking other hosts, all at once, before anything starts there."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from zlaunch.errors import Unavailable
from zlaunch.placement import most_slots
from zlaunch.process import output_of

CONNECT_SECONDS = 10
_QUESTION = "nproc; nvidia-smi --list-gpus 2>/dev/null | wc -l"


def ask_most_slots(names: Sequence[str]) -> Mapping[str, int]:
    """Ask each host over ssh how many ranks it can have; raise Unavailable naming all that do not answer."""
    with ThreadPoolExecutor(max_workers=32) as pool:
        answers = dict(zip(names, pool.map(_ask, names), strict=True))
    if silent := [name for name, answer in answers.items() if answer is None]:
        raise Unavailable(
            f"not reachable over ssh without a password: {', '.join(silent)}",
            f"make `ssh -o BatchMode=yes {silent[0]} true` work first",
        )
    return {name: answer for name, answer in answers.items() if answer is not None}


def _ask(name: str) -> int | None:
    options = ["-o", "BatchMode=yes", "-o", f"ConnectTimeout={CONNECT_SECONDS}"]
    answer = output_of(["ssh", *options, name, _QUESTION], timeout=3 * CONNECT_SECONDS)
    numbers = (answer or "").split()
    if len(numbers) != 2 or not all(number.isdecimal() for number in numbers):
        return None
    cores, gpus = int(numbers[0]), int(numbers[1])
    return most_slots(gpus, cores)
