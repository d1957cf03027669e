"""Times, sizes and numbers, as people say them."""

from __future__ import annotations

from datetime import timedelta

_SECOND = timedelta(seconds=1)
_HOUR_SECONDS, _DAY_SECONDS = 3600, 86400
_LONG_SECONDS = 600
_KILO = 1000


def pulled(current: int, total: int) -> str:
    """How much of an image is there: `62 %, 1.4 of 2.3 GB`."""
    if not total:
        return "begins"
    return f"{min(100, current * 100 // total)} %, {size(current, total)} of {size(total)}"


def size(count: int, beside: int | None = None) -> str:
    """A number of bytes; without its unit if it stands beside another of the same."""
    unit, power = next(
        (unit, power)
        for unit, power in (("GB", 3), ("MB", 2), ("kB", 1), ("bytes", 0))
        if (beside or count) >= _KILO**power or not power
    )
    number = f"{count / _KILO**power:.1f}" if power else str(count)
    return number if beside else f"{number} {unit}"


def duration(time: timedelta) -> str:
    """A length of time, as short as it can be said: `40 ms`, `2.4 s`, `0:42`, `3 h 05 min`."""
    seconds = time / _SECOND
    if 0 < seconds < 0.1:  # noqa: PLR2004
        return f"{seconds * 1000:.0f} ms"
    if 0 <= seconds < 10:  # noqa: PLR2004 - where tenths of a second matter
        return f"{seconds:.1f} s" if seconds else "0 s"
    return elapsed(time)


def elapsed(time: timedelta) -> str:
    """A length of time that grows while one looks, without tenths. static/times.js does it too."""
    seconds = max(0, int(time / _SECOND))
    if seconds < _LONG_SECONDS:
        return f"{seconds // 60}:{seconds % 60:02}"
    if seconds < _HOUR_SECONDS:
        return f"{seconds // 60} min"
    if seconds < _DAY_SECONDS:
        return f"{seconds // _HOUR_SECONDS} h {seconds % _HOUR_SECONDS // 60:02} min"
    return f"{seconds // _DAY_SECONDS} d {seconds % _DAY_SECONDS // _HOUR_SECONDS} h"


def milliseconds(count: float | None) -> str:
    """A length of time in milliseconds, in words."""
    return "none" if count is None else duration(timedelta(milliseconds=count))


def ordinal(number: int) -> str:
    """1st, 2nd, 3rd, 4th."""
    teens = 10 <= number % 100 <= 20  # noqa: PLR2004
    return f"{number}{'th' if teens else {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th')}"


def counted(number: int, noun: str) -> str:
    """`1 bot`, `2 bots`, `2 launches`."""
    plural = f"{noun}es" if noun.endswith("ch") else f"{noun}s"
    return f"{number:,} {noun if number == 1 else plural}"
