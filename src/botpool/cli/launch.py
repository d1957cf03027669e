"""`bots create --wait`: a launch, phase by phase as they pass, and how it went."""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Self

from botpool.cli.exits import CommandFailed, Exit
from botpool.cli.output import on_terminal, say, terminal
from botpool.cli.patience import Patience
from botpool.models.launches import Phase
from botpool.quantities import duration, milliseconds, ordinal, pulled

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.progress import Progress, TaskID

    from botpool.cli.api import Api

Json = dict[str, Any]

_LOOK_SECONDS = 0.4
_BAR = 20
_STEP_PERCENT = 10
"""Elsewhere than on a terminal, a pull is told of each time it has come so much further."""

PHASES = {
    Phase.QUEUED: "has a slot",
    Phase.PULLED: "its image is on the host",
    Phase.CREATED: "its container is made",
    Phase.STARTED: "its container runs",
    Phase.CLAIMED: "it is heard",
    Phase.JOINED: "it has joined",
    Phase.IN_CALL: "it is in its call",
}
"""What a phase has brought when it ends."""


class Until(StrEnum):
    """What is waited for."""

    IN_CALL = "in-call"
    ENDED = "ended"


async def wait_for(
    api: Api, bot_id: int, until: Until, timeout_seconds: float | None, *, shown: bool
) -> Json:
    """Wait until a bot is in its call, or has ended, and return it as it is then.

    Raises `CommandFailed` with `TOO_LATE` if the time is over first.
    """
    try:
        async with asyncio.timeout(timeout_seconds):
            with _Screen() if shown and on_terminal() else nullcontext() as screen:
                told = _Told(screen.told if screen else (say if shown else _nothing), screen)
                return await _wait(api, bot_id, until, told)
    except TimeoutError:
        raise CommandFailed(
            f"Bot {bot_id} is not as far as that after {timeout_seconds:g} s. It goes on: stop it"
            f" with `botpool bots stop {bot_id}`.",
            Exit.TOO_LATE,
        ) from None


async def _wait(api: Api, bot_id: int, until: Until, told: _Told) -> Json:
    patience = Patience(api)
    while True:
        bot = await patience.call(lambda: api.get(f"/bots/{bot_id}"))
        launch = await patience.call(lambda: api.get(f"/bots/{bot_id}/launch"))
        told.look(bot, launch)
        arrived = bot["joinedAt"] is not None and until is Until.IN_CALL
        if arrived or bot["endedAt"] is not None:
            return bot
        await asyncio.sleep(_LOOK_SECONDS)


def outcome(bot: Json, until: Until) -> tuple[str, Exit]:
    """How it went, in a sentence, and the exit code for that."""
    who = f"bot {bot['id']}"
    reason = f": {bot['failureReason']}" if bot["failureReason"] else ""
    match bot["status"]:
        case "FATAL" if until is Until.IN_CALL and bot["joinedAt"]:
            return f"{who} was in its call, and has failed ({bot['failureCause']}){reason}", (
                Exit.BOT_FAILED
            )
        case "FATAL":
            return f"{who} has failed ({bot['failureCause']}){reason}", Exit.BOT_FAILED
        case "CANCELLED":
            return f"{who} was stopped before it was in its call", Exit.BOT_CANCELLED
        case "DONE":
            return f"{who} is done", Exit.DONE
        case _:
            return f"{who} is in its call", Exit.DONE


class _Told:
    """What was told of a launch so far."""

    def __init__(self, tell: Callable[[str], None], screen: _Screen | None) -> None:
        self._tell = tell
        self._screen = screen
        self._attempt = 1
        self._phases: set[str] = set()
        self._wait: tuple[object, ...] = ()

    def look(self, bot: Json, launch: Json) -> None:
        """Tell what is new."""
        if launch["attempt"] != self._attempt:
            self._attempt = launch["attempt"]
            self._phases.clear()
            self._tell(f"  its launch failed: this is launch {self._attempt}")
        for phase in launch["phases"]:
            if phase["endedAt"] is not None and phase["name"] not in self._phases:
                self._phases.add(phase["name"])
                self._tell(_phase(phase))
        waiting = bot["waitingFor"]
        if self._screen is not None:
            self._screen.now(_waits(bot), waiting)
        elif waiting is not None:
            percent = 100 * (waiting["current"] or 0) // (waiting["total"] or 1)
            wait = (self._attempt, waiting["what"], waiting["error"], percent // _STEP_PERCENT)
            if wait != self._wait:
                self._wait = wait
                self._tell(f"  … {_waits(bot)}")


def _phase(phase: Json) -> str:
    took, usual = milliseconds(phase["durationMs"]), phase["usual"]["p50"]
    beside = f"  (usually {milliseconds(usual)})" if usual is not None else ""
    return f"  {phase['name']:<8} {took:>8}  {PHASES[Phase(phase['name'])]}{beside}"


def _waits(bot: Json) -> str:
    """What a bot waits for now, or its status."""
    waiting = bot["waitingFor"]
    if waiting is None:
        return str(bot["status"])
    text = f"waits for {waiting['what']}: {waiting['detail']}"
    if waiting["what"] == "image" and waiting["total"]:
        text += f", {pulled(waiting['current'] or 0, waiting['total'])}"
    if waiting["error"]:
        text += f" ({waiting['error']})"
    if bot["queuePosition"] is not None:
        text += f", {ordinal(bot['queuePosition'])} in the queue"
    if bot["estimatedWaitMs"] is not None:
        text += f", about {duration(timedelta(milliseconds=bot['estimatedWaitMs']))} to go"
    return text


def bar(current: int, total: int) -> str:
    """How far something has come, as a bar."""
    done = min(_BAR, _BAR * current // total) if total else 0
    return "━" * done + "┄" * (_BAR - done)


class _Screen(AbstractContextManager["_Screen"]):
    """A line that moves, with a bar while an image is pulled, below what has passed."""

    def __init__(self) -> None:
        from rich.progress import (  # noqa: PLC0415 - takes long
            Progress,
            SpinnerColumn,
            TextColumn,
            TimeElapsedColumn,
        )
        from rich.table import Column  # noqa: PLC0415

        cut = Column(no_wrap=True, overflow="ellipsis", ratio=1)
        self._progress: Progress = Progress(
            SpinnerColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.description}", markup=False, table_column=cut),
            console=terminal(),
            transient=True,
            expand=True,
        )
        self._line: TaskID = self._progress.add_task("", total=None)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def told(self, line: str) -> None:
        self._progress.console.print(line, soft_wrap=True)

    def now(self, text: str, waiting: Json | None) -> None:
        if waiting is not None and waiting["what"] == "image" and waiting["total"]:
            text = f"{bar(waiting['current'] or 0, waiting['total'])}  {text}"
        self._progress.update(self._line, description=text)


def _nothing(_: str) -> None:
    pass
