"""One bot's stay in one meeting, as the program in its container sees it."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import asynccontextmanager, suppress
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Self

from botpool.bot.client import AssignmentEnded, Client, Refused, Unreachable, log, pauses

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from types import TracebackType

_LONGEST_REASON = 1000
_LONGEST_LINE = 4000
_MOST_LINES = 500

# botpool answers a wait within 25 s, and one that it has no reason to end not before.
_WAIT_SECONDS = 40.0
_SHORTEST_WAIT_SECONDS = 1.0

# How long a bot has to leave by itself if botpool is not there to force it.
_LEAVE_SECONDS = 60.0


class Status(StrEnum):
    """How far a bot has come. It may skip steps, but never goes back."""

    JOINING_CALL = "JOINING_CALL"
    IN_WAITING_ROOM = "IN_WAITING_ROOM"
    IN_CALL = "IN_CALL"
    LEAVING = "LEAVING"
    DONE = "DONE"
    FATAL = "FATAL"


class Cause(StrEnum):
    """Why a bot is `FATAL`."""

    LEFT_BY_HOST = "left_by_host"
    """The host of the meeting removed the bot."""
    NOT_ADMITTED = "not_admitted"
    """The bot was not let into the call."""
    BOT_FAILED = "bot_failed"
    """Any other failure of the bot."""


@asynccontextmanager
async def claim(
    url: str | None = None, token: str | None = None, *, timeout_seconds: float = 10.0
) -> AsyncIterator[Assignment]:
    """Fetch the bot that this container runs, and run it for the length of the block.

    While botpool can't be reached, it tries again and logs a line for each attempt. Within the
    block it sends heartbeats in the background, waits for an order to leave, and takes SIGTERM as
    one. The end of the block ends the bot: as `FATAL` with the exception as its reason if there is
    one, otherwise as `DONE`. If the block has reported `DONE` or `FATAL` itself, that stands.

    If botpool can't be reached for BOTPOOL_MAX_SILENCE_MS, that is an order to leave, too: nobody
    else could tell the bot to. While that lasts, what it reports is tried once, and a minute later
    the block is cancelled.

    Raises `AssignmentEnded` if there is no bot for this container, or if its assignment is over; if
    the block is running, it is cancelled. Raises `Refused` if botpool doesn't know the token.

    `url` and `token` are BOTPOOL_URL and BOTPOOL_SLOT_TOKEN by default. No request waits longer
    than `timeout_seconds` for data. Call it in the main thread.
    """
    client = Client(
        url or _environment("BOTPOOL_URL"),
        token or _environment("BOTPOOL_SLOT_TOKEN"),
        timeout_seconds,
    )
    async with Assignment(client, await client.ask("claim", {})) as assignment:
        yield assignment


async def wait_to_be_stopped() -> None:
    """Return when SIGTERM arrives. botpool sends it once the assignment is over.

    If the engine doesn't restart containers that end, you may also just exit.
    """
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stopped.set)
    try:
        await stopped.wait()
    finally:
        loop.remove_signal_handler(signal.SIGTERM)


class Assignment:
    """The bot that this container runs. Made by `claim`."""

    def __init__(self, client: Client, claimed: dict[str, Any]) -> None:
        self.id: int = claimed["botId"]
        self.lease: int = claimed["lease"]
        self.correlation_id: str = claimed["correlationId"]
        self.meeting_url: str = claimed["meetingUrl"]
        self.bot_display_name: str = claimed["botDisplayName"]
        self.platform: str = claimed["platform"]
        self.config: dict[str, Any] = claimed["config"]
        self.log_level: str | None = None
        """The log level that botpool wants; known after the first heartbeat."""
        client.max_silence_seconds = claimed.get("maxSilenceMs", 0) / 1000
        self._heartbeat_seconds: float = claimed["heartbeatIntervalMs"] / 1000
        self._client = client
        self._leave = asyncio.Event()
        self._ended = False
        self._final = False

    async def status(
        self, status: str, reason: str | None = None, cause: str | None = None
    ) -> None:
        """Report how far the bot has come. While botpool can't be reached, it tries again.

        `FATAL` may have a cause. After `FATAL` and `DONE` no more heartbeats are sent. Raises
        `AssignmentEnded`, and `Refused` for a status or a cause that is not in `Status` or `Cause`.
        """
        if self._ended:
            raise AssignmentEnded("The assignment is over.")
        final = status in {Status.DONE, Status.FATAL}
        if final:
            # A heartbeat that arrives later would be answered with `assignment_ended`.
            self._stop_listening()
        said: dict[str, object] = {"lease": self.lease, "status": status}
        if reason is not None:
            said["reason"] = _storable(reason, _LONGEST_REASON)
        if cause is not None:
            said["cause"] = cause
        await self._tell("status", said)
        self._final = self._final or final

    async def event(self, type: str, data: dict[str, Any] | None = None) -> None:  # noqa: A002
        """Report something that happened in the call, such as `participant.joined`.

        It is in the bot's timeline, in the stream, and in webhooks for `bot.event`. While botpool
        can't be reached, it tries again. Raises `AssignmentEnded`, and `Refused` for a type with
        other characters than letters, digits and `_.:-`.
        """
        event = {"type": type, "data": data or {}}
        await self._tell("events", {"lease": self.lease, "events": [event]})

    async def log(self, text: str, level: str = "info") -> None:
        """Send log lines, for `GET /bots/{id}/logs`, where a container's output is, too.

        The level is `debug`, `info`, `warning` or `error`. Long lines are cut. While botpool can't
        be reached, it tries again. Raises `AssignmentEnded`, and `Refused` for another level.
        """
        lines = [
            {"line": _storable(line, _LONGEST_LINE), "level": level} for line in text.splitlines()
        ]
        for start in range(0, len(lines), _MOST_LINES):
            some = lines[start : start + _MOST_LINES]
            await self._tell("logs", {"lease": self.lease, "lines": some})

    async def leave_requested(self) -> None:
        """Return once the bot should leave its call.

        Because of botpool or SIGTERM, or because botpool was out of reach for too long.
        """
        await self._leave.wait()

    async def done(self) -> None:
        """Report that the bot has left its call and all is well."""
        await self.status(Status.DONE)

    async def __aenter__(self) -> Self:
        """Begin to send heartbeats, the first one at once, and to handle SIGTERM."""
        body = asyncio.current_task()
        if body is None:
            raise RuntimeError("An assignment must be used in an asyncio task.")
        self._body = body
        self._cancelled_before = body.cancelling()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._leave.set)
        self._listening = (
            asyncio.create_task(self._send_heartbeats()),
            asyncio.create_task(self._await_orders()),
            asyncio.create_task(self._bear_silence()),
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Tell botpool how the bot ended, unless the block has done so."""
        # From here on nothing cancels the body: a cancellation we see now came within the block.
        self._stop_listening()
        try:
            if self._ended:
                self._leave_cancelled_body(error)
            else:
                await self._tell_end(error)
        finally:
            asyncio.get_running_loop().remove_signal_handler(signal.SIGTERM)

    def _leave_cancelled_body(self, error: BaseException | None) -> None:
        """Raise `AssignmentEnded`, unless the body ended for its own reason."""
        ours_alone = self._body.uncancel() <= self._cancelled_before
        if error is None or (ours_alone and isinstance(error, asyncio.CancelledError)):
            raise AssignmentEnded("The assignment is over.") from None

    async def _tell_end(self, error: BaseException | None) -> None:
        if self._final or isinstance(error, AssignmentEnded):
            return
        if error is None:
            await self.done()
            return
        # The error of the block says more than that its assignment is over.
        with suppress(AssignmentEnded):
            await self.status(Status.FATAL, f"{type(error).__name__}: {error}")

    async def _tell(self, verb: str, said: dict[str, object]) -> None:
        """Report something. It is lost if botpool has been out of reach for too long."""
        try:
            await self._client.ask(verb, said)
        except Unreachable as error:
            log.warning("%s: %s; not told", verb, error)

    async def _bear_silence(self) -> None:
        """Leave by itself when botpool was out of reach for too long: it can't say so any more."""
        longest = self._client.max_silence_seconds
        if not longest:
            return
        await self._silence_of(longest)
        log.warning("nothing was heard of botpool for %.0f s: the bot leaves", longest)
        self._leave.set()
        await self._silence_of(longest + _LEAVE_SECONDS)
        self._end()

    async def _silence_of(self, seconds: float) -> None:
        """Return when nothing was heard of botpool for that long."""
        while (left := seconds - self._client.silence_seconds) > 0:  # noqa: ASYNC110 - no answer
            await asyncio.sleep(left)

    async def _send_heartbeats(self) -> None:
        while not self._ended:
            try:
                answer = await self._client.ask_once("heartbeat", {"lease": self.lease})
            except AssignmentEnded:
                self._end()
            except Exception as error:  # noqa: BLE001 - a failed heartbeat never ends the bot
                log.warning("heartbeat: %s", error)
            else:
                self._heed(answer)
            await asyncio.sleep(self._heartbeat_seconds)

    async def _await_orders(self) -> None:
        """Learn at once what the next heartbeat would tell."""
        clock = asyncio.get_running_loop().time
        waits = pauses()
        while not self._ended and not self._leave.is_set():
            began = clock()
            try:
                answer = await self._client.ask_once(
                    "wait", {"lease": self.lease}, timeout_seconds=_WAIT_SECONDS
                )
            except AssignmentEnded:
                self._end()
            except Refused:
                return  # an older botpool: its heartbeats tell
            except Unreachable:
                await asyncio.sleep(next(waits))
            else:
                waits = pauses()
                self._heed(answer)
                if clock() - began < _SHORTEST_WAIT_SECONDS:
                    await asyncio.sleep(_SHORTEST_WAIT_SECONDS)

    def _stop_listening(self) -> None:
        for task in self._listening:
            task.cancel()

    def _heed(self, answer: dict[str, Any]) -> None:
        self.log_level = answer.get("logLevel", self.log_level)
        if answer.get("action") == "leave":
            self._leave.set()
        elif answer.get("action") == "exit":
            self._end()

    def _end(self) -> None:
        if not self._ended:
            self._ended = True
            self._body.cancel()


def _environment(name: str) -> str:
    try:
        return os.environ[name]
    except KeyError:
        raise RuntimeError(f"{name} is not set. botpool sets it in every container.") from None


def _storable(text: str, longest: int) -> str:
    """A text that the database can store, whatever an exception has put into it."""
    return text.encode(errors="replace").decode().replace("\0", "")[:longest]
