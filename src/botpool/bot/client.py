"""Calls to botpool: JSON over HTTP, with a slot's token, and with retries."""

from __future__ import annotations

import asyncio
import http.client
import json
import logging
import random
import socket
import ssl
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterator

log = logging.getLogger("botpool.bot")
"""Warnings go to standard error unless the bot sends them elsewhere."""

_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 5.0


class AssignmentEnded(Exception):
    """The assignment is over: stop what you do and exit with 0. Nothing went wrong."""


class Refused(Exception):
    """botpool refused the call. Trying again won't help."""


class Unreachable(Exception):
    """botpool did not answer; it may be restarting. Trying again is safe."""


def pauses() -> Iterator[float]:
    """How many seconds to wait before each next attempt: longer each time, with some randomness."""
    longest = _FIRST_PAUSE_SECONDS
    while True:
        yield random.uniform(longest / 2, longest)  # noqa: S311 - spreads retries
        longest = min(2 * longest, _LONGEST_PAUSE_SECONDS)


class Client:
    """The calls that a container makes, each in a thread of its own."""

    def __init__(self, url: str, token: str, timeout_seconds: float) -> None:
        address = urlsplit(url)
        if address.scheme not in {"http", "https"} or not address.hostname:
            raise ValueError("BOTPOOL_URL must look like https://botpool:8000.")
        self._host, self._port = address.hostname, address.port
        self._path = f"{address.path.rstrip('/')}/api/v1/runtime"
        self._tls = ssl.create_default_context() if address.scheme == "https" else None
        self._timeout_seconds = timeout_seconds
        self._heard_at: float | None = None
        self.max_silence_seconds = 0.0
        """After how much silence `ask` no longer tries again; 0 for never."""
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}

    @property
    def silence_seconds(self) -> float:
        """How long ago botpool answered. 0 if it never did.

        The loop's clock is monotonic: neither a change of the date nor a sleep of the machine
        is silence.
        """
        now = asyncio.get_running_loop().time()
        return now - (now if self._heard_at is None else self._heard_at)

    @property
    def silent_for_too_long(self) -> bool:
        """Whether botpool was out of reach for longer than it allows."""
        return 0 < self.max_silence_seconds <= self.silence_seconds

    async def ask(self, verb: str, body: dict[str, Any]) -> dict[str, Any]:
        """Call until botpool answers. Raises `AssignmentEnded` or `Refused`.

        Raises `Unreachable` only if botpool was silent for too long.
        """
        waits = pauses()
        while True:
            try:
                return await self.ask_once(verb, body)
            except Unreachable as error:
                if self.silent_for_too_long:
                    raise
                pause = next(waits)
                log.warning("%s: %s; trying again in %.1f s", verb, error, pause)
            await asyncio.sleep(pause)

    async def ask_once(
        self, verb: str, body: dict[str, Any], *, timeout_seconds: float | None = None
    ) -> dict[str, Any]:
        """Call once. Raises `AssignmentEnded`, `Refused` or `Unreachable`."""
        status, answer = await self.exchange(verb, body, timeout_seconds or self._timeout_seconds)
        if _is_of_botpool(status, answer):
            self._heard_at = asyncio.get_running_loop().time()
        return _understood(status, answer)

    async def exchange(self, verb: str, body: dict[str, Any], seconds: float) -> tuple[int, Any]:
        """Call, and return the status of the answer and its JSON, or None if it has no JSON."""
        connection = self._connection(seconds)
        try:
            status, answer = await asyncio.to_thread(self._exchange, connection, verb, body)
        except (OSError, http.client.HTTPException) as error:
            why = str(error) or type(error).__name__
            raise Unreachable(f"botpool can't be reached ({why})") from error
        except asyncio.CancelledError:
            _wake(connection)
            raise
        try:
            return status, json.loads(answer or b"{}")
        except ValueError:
            return status, None

    def _connection(self, seconds: float) -> http.client.HTTPConnection:
        if self._tls is None:
            return http.client.HTTPConnection(self._host, self._port, timeout=seconds)
        return http.client.HTTPSConnection(
            self._host, self._port, timeout=seconds, context=self._tls
        )

    def _exchange(
        self, connection: http.client.HTTPConnection, verb: str, body: dict[str, Any]
    ) -> tuple[int, bytes]:
        with closing(connection):
            connection.request("POST", f"{self._path}/{verb}", json.dumps(body), self._headers)
            response = connection.getresponse()
            return response.status, response.read()


def _wake(connection: http.client.HTTPConnection) -> None:
    """End the thread of a cancelled call: otherwise the process would wait for it at its exit."""
    if channel := connection.sock:
        with suppress(OSError):
            channel.shutdown(socket.SHUT_RDWR)


def _is_of_botpool(status: int, answer: Any) -> bool:
    """Whether an answer shows that botpool is there and may still speak for this bot.

    A proxy's answer, which has no `code`, doesn't: it may outlive botpool. Nor does 401: whoever
    answers doesn't know this slot, and will never tell its bot to leave. A 503 of botpool's own
    does: it is there, and judges its bots when its database is back.
    """
    if not isinstance(answer, dict) or status == http.client.UNAUTHORIZED:
        return False
    return status in {200, 204} or "code" in answer


def _understood(status: int, answer: Any) -> dict[str, Any]:
    """The content of an answer, or the error that it means. Only botpool's refusals have `code`."""
    known = isinstance(answer, dict)
    if known and status in {200, 204}:
        return dict(answer)
    code = answer.get("code") if known else None
    if code == "assignment_ended":
        raise AssignmentEnded("The assignment is over.")
    if status == http.client.UNAUTHORIZED:
        raise Refused("BOTPOOL_SLOT_TOKEN is not a slot's token (401).")
    if code is None or status >= http.client.INTERNAL_SERVER_ERROR:
        # A proxy's answer while botpool restarts; some proxies use 404.
        raise Unreachable(f"botpool can't be reached (HTTP {status})")
    raise Refused(f"{answer.get('detail') or answer.get('title')} ({status} {code})")
