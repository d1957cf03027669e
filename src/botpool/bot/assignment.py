"""One bot's stay in one meeting, as the program in its container sees it."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import asynccontextmanager, suppress
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Self

from botpool.bot.client import AssignmentEnded, Client, log

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from types import TracebackType

_LONGEST_REASON = 1000


class Status(StrEnum):
    """How far a bot has come. It may skip steps, and never goes back."""

    JOINING_CALL = "JOINING_CALL"
    IN_WAITING_ROOM = "IN_WAITING_ROOM"
    IN_CALL = "IN_CALL"
    LEAVING = "LEAVING"
    DONE = "DONE"
    FATAL = "FATAL"


class Cause(StrEnum):
    """Why a bot is `FATAL`."""

    LEFT_BY_HOST = "left_by_host"
    """The host of the meeting sent it away."""
    NOT_ADMITTED = "not_admitted"
    """Nobody let it into the call."""
    BOT_FAILED = "bot_failed"
    """Whatever else."""


@asynccontextmanager
async def claim(
    url: str | None = None, token: str | None = None, *, timeout_seconds: float = 10.0
) -> AsyncIterator[Assignment]:
    """Fetch the bot that this container is for, and be it for the length of the block.

    Waits for as long as botpool can't be reached, and logs a line for each attempt. Within the
    block heartbeats are sent in the background, and SIGTERM is a request to leave. The end of the
    block is the bot's end: an exception makes it `FATAL`, with the exception as its reason, and
    anything else `DONE`, unless the block has said either itself.

    Raises `AssignmentEnded` where there is no bot to be, or not any more; then the block, if it has
    begun, is cancelled. Raises `Refused` for a token that botpool doesn't know.

    `url` and `token` are those of BOTPOOL_URL and BOTPOOL_SLOT_TOKEN unless given; no request waits
    longer than `timeout_seconds` for a sign of life. Call it in the main thread.
    """
    client = Client(
        url or _environment("BOTPOOL_URL"),
        token or _environment("BOTPOOL_SLOT_TOKEN"),
        timeout_seconds,
    )
    async with Assignment(client, await client.ask("claim", {})) as assignment:
        yield assignment


async def wait_to_be_stopped() -> None:
    """Return at SIGTERM, which botpool sends once the bot is over.

    To exit instead is as good where nothing starts an ended container again.
    """
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stopped.set)
    try:
        await stopped.wait()
    finally:
        loop.remove_signal_handler(signal.SIGTERM)


class Assignment:
    """The bot that this container is now. Made by `claim`."""

    def __init__(self, client: Client, claimed: dict[str, Any]) -> None:
        self.id: int = claimed["botId"]
        self.lease: int = claimed["lease"]
        self.correlation_id: str = claimed["correlationId"]
        self.meeting_url: str = claimed["meetingUrl"]
        self.bot_display_name: str = claimed["botDisplayName"]
        self.platform: str = claimed["platform"]
        self.config: dict[str, Any] = claimed["config"]
        self.log_level: str | None = None
        """What botpool would have the bot log, from the first heartbeat on."""
        self._heartbeat_seconds: float = claimed["heartbeatIntervalMs"] / 1000
        self._client = client
        self._leave = asyncio.Event()
        self._ended = False
        self._final = False

    async def status(
        self, status: str, reason: str | None = None, cause: str | None = None
    ) -> None:
        """Tell how far the bot has come. Waits for as long as botpool can't be reached.

        `FATAL` may have a cause. After it, and after `DONE`, no more heartbeats are sent. Raises
        `AssignmentEnded`, and `Refused` for a status or a cause that is not in `Status` or `Cause`.
        """
        if self._ended:
            raise AssignmentEnded("The assignment is over.")
        final = status in {Status.DONE, Status.FATAL}
        if final:
            # One that arrives after it would be told that the assignment is over.
            self._heartbeats.cancel()
        said: dict[str, object] = {"lease": self.lease, "status": status}
        if reason is not None:
            said["reason"] = _storable(reason)
        if cause is not None:
            said["cause"] = cause
        await self._client.ask("status", said)
        self._final = self._final or final

    async def leave_requested(self) -> None:
        """Return once the bot is to leave its call: botpool said so, or SIGTERM did."""
        await self._leave.wait()

    async def done(self) -> None:
        """Tell that the bot has left its call and all is well."""
        await self.status(Status.DONE)

    async def __aenter__(self) -> Self:
        """Begin to send heartbeats, the first at once, and to heed SIGTERM."""
        body = asyncio.current_task()
        if body is None:
            raise RuntimeError("An assignment needs a task that can be cancelled.")
        self._body = body
        self._cancelled_before = body.cancelling()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._leave.set)
        self._heartbeats = asyncio.create_task(self._send_heartbeats())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Tell botpool how the bot has ended, if it has not been told."""
        # From here on nothing cancels the body: what it is cancelled by came within the block.
        self._heartbeats.cancel()
        try:
            if self._ended:
                self._leave_cancelled_body(error)
            else:
                await self._tell_end(error)
        finally:
            asyncio.get_running_loop().remove_signal_handler(signal.SIGTERM)

    def _leave_cancelled_body(self, error: BaseException | None) -> None:
        """Raise `AssignmentEnded`, unless the body ends for a reason of its own."""
        ours_alone = self._body.uncancel() <= self._cancelled_before
        if error is None or (ours_alone and isinstance(error, asyncio.CancelledError)):
            raise AssignmentEnded("The assignment is over.") from None

    async def _tell_end(self, error: BaseException | None) -> None:
        if self._final or isinstance(error, AssignmentEnded):
            return
        if error is None:
            await self.done()
            return
        # What went wrong says more than that nobody wants to know any more.
        with suppress(AssignmentEnded):
            await self.status(Status.FATAL, f"{type(error).__name__}: {error}")

    async def _send_heartbeats(self) -> None:
        while not self._ended:
            try:
                answer = await self._client.ask_once("heartbeat", {"lease": self.lease})
            except AssignmentEnded:
                self._end()
            except Exception as error:  # noqa: BLE001 - it never ends the bot, and the next one tells
                log.warning("heartbeat: %s", error)
            else:
                self._heed(answer)
            await asyncio.sleep(self._heartbeat_seconds)

    def _heed(self, answer: dict[str, Any]) -> None:
        self.log_level = answer.get("logLevel", self.log_level)
        if answer.get("action") == "leave":
            self._leave.set()
        elif answer.get("action") == "exit":
            self._end()

    def _end(self) -> None:
        self._ended = True
        self._body.cancel()


def _environment(name: str) -> str:
    try:
        return os.environ[name]
    except KeyError:
        raise RuntimeError(f"{name} is not set: botpool sets it in every container.") from None


def _storable(reason: str) -> str:
    """What the database can hold of a text, whatever an exception has put into it."""
    return reason.encode(errors="replace").decode().replace("\0", "")[:_LONGEST_REASON]
