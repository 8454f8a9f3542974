"""How amounts are written for people."""

GIB = 1 << 30


def duration(seconds: float) -> str:
    """Write a time as `42 s`, `3 min 05 s` or `2 h 07 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02} min"


def gib(num_bytes: int) -> str:
    """Write bytes as GiB with one decimal."""
    return f"{num_bytes / GIB:.1f} GiB"


def plural(count: int, noun: str) -> str:
    """Write `1 rank`, `2 ranks`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"
