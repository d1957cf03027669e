"""HTTP connections: what a client may send, for how long, and how many it may hold open.

uvicorn's fast parser limits none of that, and all of it happens before a key is asked for. A client
is a stranger until a request of its connection has a valid key or slot token. Strangers of one
address have a limited number of connections; the one that has done nothing for longest makes way,
so that a client that holds many open hinders nobody but itself.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, cast

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from botpool.api.errors import raw_problem
from botpool.models.addresses import TrustedProxies, network_of, plain_address

if TYPE_CHECKING:
    from fastapi import FastAPI, Request
    from starlette.types import ASGIApp
    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

LARGEST_BODY_BYTES = 2**20
"""The largest body that a request may have."""

_CLOSE_SECONDS = 5
_IDLE_SECONDS = 75
"""For how long a connection without a request stays open. Longer than clients and load balancers
keep one, most of them for up to a minute: else a request may meet its end."""
_KNOWN = "caller_is_known"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """What one connection may cost. `strangers` are connections of one address."""

    head_bytes: int = 64 * 1024
    headers: int = 100
    head_seconds: float = 10.0
    # On the wire: in chunks of one byte each, a body is several times as large.
    body_bytes: int = 8 * LARGEST_BODY_BYTES
    body_seconds: float = 30.0
    answer_seconds: float = 60.0
    strangers: int = 100
    grace_seconds: float = 1.0


def server_config(
    app: FastAPI, trusted_proxies: str = "", limits: ConnectionLimits | None = None
) -> uvicorn.Config:
    """How uvicorn serves an app, with these limits."""
    chosen = limits or ConnectionLimits()
    connection = partial(_Connection, chosen, TrustedProxies(trusted_proxies), Strangers(chosen))
    return uvicorn.Config(
        cast("ASGIApp", app),
        http=cast("type[asyncio.Protocol]", connection),
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        # The app itself does that, and trusts nobody unless it is told to.
        proxy_headers=False,
        timeout_graceful_shutdown=_CLOSE_SECONDS,
        timeout_keep_alive=_IDLE_SECONDS,
    )


def caller_is_known(request: Request) -> None:
    """Note that a request had a valid key or token: its connection is no stranger's."""
    note = getattr(request.state, _KNOWN, None)
    if note is not None:
        note()


class Strangers:
    """The connections of each address that nobody knows. Too many of one address are closed.

    A connection is closed only if its client did nothing for a moment, and doesn't wait for us: so
    requests that are on their way are answered, however many begin at once.
    """

    def __init__(self, limits: ConnectionLimits) -> None:
        self._most = limits.strangers
        self._grace_seconds = limits.grace_seconds
        # By address: since when each has done nothing. The one that did so for longest is first.
        self._since: dict[str, dict[_Connection, float]] = {}
        self._looking: set[str] = set()

    def act(self, connection: _Connection, address: str) -> None:
        """Note a stranger's new connection, or that a stranger has sent a request."""
        since = self._since.setdefault(address, {})
        since.pop(connection, None)
        since[connection] = asyncio.get_running_loop().time()
        if len(since) > self._most:
            self._look_later(address)

    def leave(self, connection: _Connection, address: str) -> None:
        """Forget a connection: it is closed, or its client is known."""
        since = self._since.get(address, {})
        since.pop(connection, None)
        if not since:
            self._since.pop(address, None)

    def _look_later(self, address: str) -> None:
        if address not in self._looking:
            self._looking.add(address)
            loop = asyncio.get_running_loop()
            loop.call_later(self._grace_seconds, self._make_room, address)

    def _make_room(self, address: str) -> None:
        self._looking.discard(address)
        since = self._since.get(address, {})
        latest = asyncio.get_running_loop().time() - self._grace_seconds
        too_many = len(since) - self._most
        for connection, at in list(since.items()):
            if too_many <= 0:
                return
            if at > latest:
                break
            if not connection.waits_for_answer:
                connection.drop()
                too_many -= 1
        if too_many > 0:
            self._look_later(address)


class _Connection(HttpToolsProtocol):
    """A connection that is closed when its client sends too much, or takes too long."""

    def __init__(
        self,
        limits: ConnectionLimits,
        proxies: TrustedProxies,
        strangers: Strangers,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._limits = limits
        self._proxies = proxies
        self._strangers = strangers
        self._address: str | None = None
        """The address that this connection counts for, while its client is a stranger."""
        self._refusal = (HTTPStatus.BAD_REQUEST, "bad_request", "The request is not HTTP.")
        self._in_head = True
        self._begun = False
        self._moved = False
        """Whether the parser has come to another part of a request with the data at hand."""
        self._arrived = 0
        """How many bytes have arrived since it did so last."""
        self._parsed = 0
        self._waiting: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None

    # What asyncio calls

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self.client is not None:
            host = plain_address(self.client[0])
            self.client = (host, self.client[1])
            if host not in self._proxies:
                self._address = network_of(host)
                self._strangers.act(self, self._address)
        self._wait()

    def data_received(self, data: bytes) -> None:
        self._moved = False
        super().data_received(data)
        if self.transport.is_closing():
            return
        if not self._moved:
            self._arrived += len(data)
        if self._arrived > (self._limits.head_bytes if self._in_head else self._limits.body_bytes):
            self._refuse_size()
        elif self._begun or self._arrived:
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self.caller_is_known()
        self._stop_waiting()
        self.resume_writing()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._unread is None:
            self._unread = self.loop.call_later(self._limits.answer_seconds, self.drop)

    def resume_writing(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None
        if self.flow is not None:
            super().resume_writing()

    # What the parser calls

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._begun = self._moved = True
        self._arrived = self._parsed = 0
        self.scope["state"][_KNOWN] = self.caller_is_known

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        self._parsed += len(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._parsed += len(name) + len(value)
        if self._parsed > self._limits.head_bytes or len(self.headers) >= self._limits.headers:
            self._refuse_size()
            # The parser stops, and uvicorn asks for an answer.
            raise ValueError("too many or too long headers")
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head, self._moved, self._arrived = False, True, 0
        self._stop_waiting()
        if self._address is not None:
            self._strangers.act(self, self._address)
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._in_head, self._begun, self._moved, self._arrived = True, False, True, 0
        self._stop_waiting()
        super().on_message_complete()

    # What uvicorn calls

    def send_400_response(self, msg: str) -> None:
        self._refuse(*self._refusal)

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._drop_later()

    # What the app and other connections cause

    def caller_is_known(self) -> None:
        """Count this connection for no address any more."""
        if self._address is not None:
            self._strangers.leave(self, self._address)
            self._address = None

    def drop(self) -> None:
        """Close the connection at once, with what was not sent yet."""
        self.transport.abort()

    @property
    def waits_for_answer(self) -> bool:
        """Whether a request is under way, and nothing of its answer is sent yet."""
        return not self._is_answered and not self.cycle.response_started

    # Inside

    @property
    def _is_answered(self) -> bool:
        """Whether no request is under way."""
        # Before the first request there is no cycle, whatever its type says.
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is None or cycle.response_complete

    def _wait(self) -> None:
        """Give the client its time for the rest of what it sends, unless that runs already."""
        if self._waiting is None:
            limits = self._limits
            seconds = limits.head_seconds if self._in_head else limits.body_seconds
            self._waiting = self.loop.call_later(seconds, self._waited)

    def _stop_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def _waited(self) -> None:
        self._waiting = None
        answers_first = self._in_head and not self._is_answered
        if self.flow.read_paused or answers_first:
            self._wait()  # it was not let send, or has an answer to come
        elif not self._begun and not self._arrived:
            self.transport.close()
            self._drop_later()
        else:
            what = "header" if self._in_head else "body"
            self._refuse(
                HTTPStatus.REQUEST_TIMEOUT,
                "request_timeout",
                f"The request's {what} did not arrive in time.",
            )

    def _refuse_size(self) -> None:
        if self._in_head:
            self._refusal = (
                HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
                "headers_too_large",
                f"A request may have {self._limits.headers} headers, and they may have"
                f" {self._limits.head_bytes} bytes with the URL.",
            )
        else:
            self._refusal = (
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                "request_too_large",
                "The body is too large.",
            )
        self._refuse(*self._refusal)

    def _refuse(self, status: HTTPStatus, code: str, detail: str) -> None:
        """Answer, unless another answer is under way, and close."""
        if self.transport.is_closing():
            return
        if self._is_answered or not self.cycle.response_started:
            self.transport.write(raw_problem(status, code, detail))
        if not self._is_answered:
            # Nothing that the app says may follow this answer.
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.transport.close()
        self._drop_later()

    def _drop_later(self) -> None:
        """Don't wait for ever for a client that doesn't read what it was sent."""
        if self.transport.get_write_buffer_size():
            self.loop.call_later(self._limits.answer_seconds, self.drop)
