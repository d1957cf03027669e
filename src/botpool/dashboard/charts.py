"""Charts as SVG: where lines, areas and labels are. The template draws them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime

LEFT, RIGHT, TOP, BOTTOM = 44.0, 600.0, 10.0, 200.0
_TICKS = 4
_LABELS = 6
_SHORT = 3.0
_LONG_DAYS = 2
_STEPS = (1, 2, 3, 5, 10)


class Label(NamedTuple):
    """A text at a place of an axis."""

    place: float
    text: str
    anchor: str = "middle"


class Line(NamedTuple):
    """Points that are joined, and the area below them. Gaps make several of them."""

    points: str
    area: str


@dataclass(frozen=True, kw_only=True)
class Chart:
    """A chart over time: its axes, and a series of lines by name."""

    up: Sequence[Label]
    along: Sequence[Label]
    series: dict[str, list[Line]]

    @property
    def is_empty(self) -> bool:
        """Whether it shows nothing."""
        return not any(self.series.values())


def chart(
    since: datetime,
    until: datetime,
    series: dict[str, Sequence[tuple[datetime, float | None]]],
    told: Callable[[float], str],
    gap_seconds: float = math.inf,
) -> Chart:
    """Values over time as a chart. `told` puts a value into words, for the axis.

    Where two neighbours are further apart than the gap, the line is broken.
    """
    top = _round_up(max((value or 0 for line in series.values() for _, value in line), default=0))
    length = (until - since).total_seconds()

    def x(at: datetime) -> float:
        return LEFT + (RIGHT - LEFT) * (at - since).total_seconds() / length

    def y(value: float) -> float:
        return BOTTOM - (BOTTOM - TOP) * value / top

    def draw(values: Sequence[tuple[datetime, float | None]]) -> list[Line]:
        parts: list[list[tuple[datetime, float]]] = []
        last: datetime | None = None
        for at, value in values:
            if value is None:
                continue
            if last is None or (at - last).total_seconds() > gap_seconds:
                parts.append([])
            parts[-1].append((at, value))
            last = at
        return [_line([(x(at), y(value)) for at, value in part]) for part in parts]

    return Chart(
        up=[Label(y(top * n / _TICKS), told(top * n / _TICKS), "end") for n in range(_TICKS + 1)],
        along=_times(since, until),
        series={name: draw(values) for name, values in series.items()},
    )


def _line(points: Sequence[tuple[float, float]]) -> Line:
    # One value alone is a short line: a point would not be seen.
    if len(points) == 1:
        (left, up) = points[0]
        left = min(left, RIGHT - _SHORT)
        points = [(left, up), (left + _SHORT, up)]
    text = " ".join(f"{left:.1f},{up:.1f}" for left, up in points)
    return Line(text, f"{points[0][0]:.1f},{BOTTOM} {text} {points[-1][0]:.1f},{BOTTOM}")


def _times(since: datetime, until: datetime) -> list[Label]:
    length = until - since
    form = "%b %d" if length.days >= _LONG_DAYS else "%H:%M"
    anchors = {0: "start", _LABELS: "end"}
    return [
        Label(
            LEFT + (RIGHT - LEFT) * n / _LABELS,
            (since + length * n / _LABELS).strftime(form),
            anchors.get(n, "middle"),
        )
        for n in range(_LABELS + 1)
    ]


def _round_up(value: float) -> float:
    """The next number that divides well into ticks."""
    if value <= _TICKS:
        return float(_TICKS)
    power: float = 10.0 ** math.floor(math.log10(value / _TICKS))
    return _TICKS * power * next(step for step in _STEPS if step * power * _TICKS >= value)
