"""Time limits as Slurm writes them: `4:00:00`, `2-12:00:00`, and `90m` or `4h` for short."""

import re

from zlaunch.errors import WrongUsage

_CLOCK = re.compile(r"(?:(?P<days>\d{1,4})-)?(?P<hours>\d{1,4}):(?P<minutes>\d{2})(?::(?P<seconds>\d{2}))?")
_SHORT = re.compile(r"(?P<number>\d{1,6})(?P<unit>[smhd])")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def parse_time_limit(text: str) -> int:
    """Read a time limit in seconds; raise WrongUsage for anything that may mean two things."""
    if found := _SHORT.fullmatch(text):
        seconds = int(found["number"]) * _UNITS[found["unit"]]
    elif (found := _CLOCK.fullmatch(text)) and found["seconds"] is not None:
        days, hours = int(found["days"] or 0), int(found["hours"])
        seconds = days * 86400 + hours * 3600 + int(found["minutes"]) * 60 + int(found["seconds"])
    else:
        raise WrongUsage(
            f"`--time-limit {text}` is not HOURS:MINUTES:SECONDS", "write `4:00:00`, `2-00:00:00` or `90m`"
        )
    if not seconds:
        raise WrongUsage("`--time-limit 0` leaves no time", "write `4:00:00`, `2-00:00:00` or `90m`")
    return seconds


def clock(seconds: int) -> str:
    """Write seconds as Slurm does."""
    days, rest = divmod(seconds, 86400)
    hours, rest = divmod(rest, 3600)
    time = f"{hours}:{rest // 60:02}:{rest % 60:02}"
    return f"{days}-{hours:02}:{time.partition(':')[2]}" if days else time
