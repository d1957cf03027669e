"""The sample bot: it joins no meeting, and does what its configuration says.

`config.sample` has its orders, all of them optional:

| order | meaning |
|---|---|
| `stayMs` | how long it stays in the call, 5000 by default |
| `joinMs` | how long it takes to join, 100 by default |
| `behaviour` | what it does wrong, `normal` by default |
| `atMs` | when it does so, counted from the claim, 0 by default |

`crash` ends it with exit code 1, `exit` with 0 and without reporting anything. `crash_on_join`
crashes when it would enter the call. `hang` stops its heartbeats and everything else, so that only
a signal ends it. With `ignore_sigterm` it leaves when its time is over, or when a heartbeat tells
it to. At the end it waits to be stopped, so that an engine that restarts ended containers has
nothing to restart.

    python -m botpool.bot.sample
"""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from typing import Any, NamedTuple, NoReturn

from botpool.bot import (
    Assignment,
    AssignmentEnded,
    Refused,
    Status,
    claim,
    wait_to_be_stopped,
)

_BEHAVIOURS = ("normal", "crash", "crash_on_join", "hang", "ignore_sigterm", "exit")
_LONGEST_MS = 24 * 60 * 60 * 1000


class _Orders(NamedTuple):
    stay_seconds: float
    join_seconds: float
    behaviour: str
    at_seconds: float


def read_orders(config: dict[str, Any]) -> _Orders:
    """The orders in a bot's configuration. Raises `ValueError`, which says what is accepted."""
    accepted = {"stayMs": 5000, "joinMs": 100, "behaviour": "normal", "atMs": 0}
    given = config.get("sample", {})
    if not isinstance(given, dict) or not given.keys() <= accepted.keys():
        raise ValueError(f"config.sample may only have {', '.join(accepted)}.")
    orders = {**accepted, **given}
    if orders["behaviour"] not in _BEHAVIOURS:
        raise ValueError(f"config.sample.behaviour must be one of {', '.join(_BEHAVIOURS)}.")
    return _Orders(
        stay_seconds=_seconds(orders, "stayMs"),
        join_seconds=_seconds(orders, "joinMs"),
        behaviour=orders["behaviour"],
        at_seconds=_seconds(orders, "atMs"),
    )


def _seconds(orders: dict[str, Any], name: str) -> float:
    if type(orders[name]) is not int or not 0 <= orders[name] <= _LONGEST_MS:
        raise ValueError(
            f"config.sample.{name} must be a whole number between 0 and {_LONGEST_MS}."
        )
    return float(orders[name] / 1000)


async def live(bot: Assignment) -> None:
    """Act as the bot, from the claim to its end."""
    try:
        orders = read_orders(bot.config)
    except ValueError as error:
        _say(f"FATAL: {error}")
        await bot.status(Status.FATAL, str(error))
        return
    asyncio.get_running_loop().call_later(orders.at_seconds, _misbehave, orders.behaviour)
    await _tell(bot, Status.JOINING_CALL)
    if not await _told_to_leave(bot, orders.join_seconds):
        if orders.behaviour == "crash_on_join":
            _end("crashes on joining", 1)
        await _tell(bot, Status.IN_WAITING_ROOM)
        await _tell(bot, Status.IN_CALL)
        await _told_to_leave(bot, orders.stay_seconds)
    await _tell(bot, Status.LEAVING)
    await _tell(bot, Status.DONE)


async def _tell(bot: Assignment, status: Status) -> None:
    # Printed first: right after the last status the container is stopped.
    _say(status)
    await bot.status(status)


async def _told_to_leave(bot: Assignment, within_seconds: float) -> bool:
    with suppress(TimeoutError):
        async with asyncio.timeout(within_seconds):
            await bot.leave_requested()
            return True
    return False


def _misbehave(behaviour: str) -> None:
    match behaviour:
        case "crash":
            _end("crashes", 1)
        case "exit":
            _end("exits without a word", 0)
        case "hang":
            _hang()
        case "ignore_sigterm":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            _say("ignores SIGTERM")


def _end(how: str, code: int) -> NoReturn:
    _say(how)
    os._exit(code)


def _hang() -> NoReturn:
    """Keep the event loop, and with it the heartbeats, from ever running again."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _say("hangs")
    while True:
        signal.pause()


def _say(line: str) -> None:
    # Flushed, so that a reader gets the line at once, and a crash doesn't lose it.
    print(line, flush=True)


async def main() -> None:
    """Claim a bot, act as it, and wait to be stopped."""
    try:
        async with claim() as bot:
            _say(f"bot {bot.id}, lease {bot.lease}: {bot.bot_display_name} for {bot.meeting_url}")
            await live(bot)
    except AssignmentEnded:
        _say("the assignment is over")
    except Refused as error:
        raise SystemExit(f"sample bot: {error}") from None
    # Printed once it really waits: a reader of this line may stop the container.
    asyncio.get_running_loop().call_soon(_say, "waits to be stopped")
    await wait_to_be_stopped()


if __name__ == "__main__":
    asyncio.run(main())
