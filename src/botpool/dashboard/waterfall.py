"""A launch as a drawing: how long each phase took, beside how long it usually takes."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from botpool.models.launches import Phase
from botpool.quantities import duration, milliseconds

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from botpool.models.launches import Launch, LaunchPhase

WIDTH = 1000
"""How wide the drawing is, in its own units."""

_LEAST_WIDTH = 4.0
_SLOW_FACTOR = 1.2
_SLOW_MS = 500.0

_LONGER_BECAUSE = {
    Phase.QUEUED: "it waited for a slot",
    Phase.PULLED: "its host had to fetch the image",
    Phase.CREATED: "its container had to be made",
    Phase.STARTED: "its container was slow to start",
    Phase.CLAIMED: "it was slow to come up",
    Phase.JOINED: "it was slow to join",
    Phase.IN_CALL: "it waited to be let in",
}
_NOW = {
    Phase.QUEUED: "it waits for a slot",
    Phase.PULLED: "it waits for the image",
    Phase.CREATED: "its container is made",
    Phase.STARTED: "its container starts",
    Phase.CLAIMED: "it comes up",
    Phase.JOINED: "it joins",
    Phase.IN_CALL: "it waits to be let in",
}


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A phase as it is drawn: where it begins, how long it and what is usual are, and in words."""

    name: Phase
    label: str
    left: float
    width: float
    usual_width: float
    took: str
    beside: str
    slow: bool
    under_way: bool


@dataclass(frozen=True, kw_only=True)
class Waterfall:
    """A launch in one sentence, and its phases as they are drawn."""

    sentence: str
    usual_of: int
    bars: Sequence[Bar]


def waterfall(launch: Launch, now: datetime, ended_at: datetime | None) -> Waterfall:
    """The drawing of a launch as it is now, or was when its bot ended."""
    until = ended_at or now
    longest = max(
        launch.total_ms or _ms(until - launch.began_at),
        launch.usual_total.p95 or 0,
        1.0,
    )
    return Waterfall(
        sentence=_sentence(launch, until, ended=ended_at is not None),
        usual_of=launch.usual_of,
        bars=[_bar(phase, launch.began_at, until, WIDTH / longest) for phase in launch.phases],
    )


def _bar(phase: LaunchPhase, began_at: datetime, until: datetime, scale: float) -> Bar:
    took = _took(phase, until)
    usual = phase.usual
    left = 0.0 if phase.began_at is None else _ms(phase.began_at - began_at) * scale
    longer = None if took is None or usual.p50 is None else took - usual.p50
    slow = (
        took is not None
        and usual.p95 is not None
        and took > max(usual.p95 * _SLOW_FACTOR, usual.p95 + _SLOW_MS)
    )
    beside = "" if usual.p50 is None else f"usually {milliseconds(usual.p50)}"
    if slow and longer is not None:
        beside = f"{milliseconds(longer)} longer"
    return Bar(
        name=phase.name,
        label=phase.name.replace("_", " "),
        left=round(left, 1),
        width=0 if took is None else round(max(_LEAST_WIDTH, took * scale), 1),
        usual_width=0 if usual.p95 is None or took is None else round(usual.p95 * scale, 1),
        took="" if took is None else milliseconds(took),
        beside=beside,
        slow=slow,
        under_way=phase.began_at is not None and phase.ended_at is None,
    )


def _took(phase: LaunchPhase, until: datetime) -> float | None:
    if phase.began_at is None:
        return None
    return _ms((phase.ended_at or max(until, phase.began_at)) - phase.began_at)


def _sentence(launch: Launch, until: datetime, *, ended: bool) -> str:
    again = "" if launch.attempt == 1 else f" Launch {launch.attempt} of this bot."
    total = launch.total_ms
    if total is None:
        current = next(
            (each for each in launch.phases if each.began_at and not each.ended_at), None
        )
        so_far = duration(until - launch.began_at)
        if ended:
            where = "" if current is None else f", while {_NOW[current.name]}"
            return f"It never came into its call: it ended after {so_far}{where}.{again}"
        where = "" if current is None else f": {_NOW[current.name]}"
        return f"On its way for {so_far}{where}.{again}"
    said = f"In its call after {milliseconds(total)}"
    usual = launch.usual_total
    if usual.p50 is None or usual.p95 is None:
        return f"{said}. What is usual is not known yet.{again}"
    if total > max(usual.p95, usual.p50 + _SLOW_MS):
        slowest = max(
            launch.phases, key=lambda each: (each.duration_ms or 0) - (each.usual.p50 or 0)
        )
        why = _LONGER_BECAUSE[slowest.name]
        return f"{said}, {milliseconds(total - usual.p50)} longer than usual: {why}.{again}"
    return f"{said}, as usual.{again}"


def _ms(time: timedelta) -> float:
    return time / timedelta(milliseconds=1)
