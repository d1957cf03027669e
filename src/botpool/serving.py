"""Everything that one botpool process runs: started and stopped in order."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import structlog
import uvicorn

from botpool import __version__
from botpool.access.keys import Keys
from botpool.access.sessions import Sessions
from botpool.api import create_app, create_worker_app
from botpool.api.connections import server_config
from botpool.dashboard import add_dashboard
from botpool.doctor import Rounds, diagnose
from botpool.engines import check_engine, lacks_images, make_engines, try_out
from botpool.engines.measured import MeasuredEngine
from botpool.errors import BotpoolError, SettingsInvalid, SetupError
from botpool.feed.orders import Orders
from botpool.feed.stream import Feed
from botpool.feed.webhooks import Webhooks
from botpool.logs import log_failure
from botpool.metrics import Metrics
from botpool.models.bots import BotPage
from botpool.models.replicas import ReplicaRole, machine_name, new_replica_name
from botpool.pool import Pool
from botpool.reconciler import Reconciler
from botpool.serving_note import ServingNote, noted
from botpool.states import BOT_ENDED, BotStatus
from botpool.store import (
    Store,
    keep_embedded_postgres,
    migrate,
    open_database,
)
from botpool.store.replicas import SEEN_EVERY_SECONDS
from botpool.tasks.finish import finish
from botpool.tasks.lag import EventLoopLag
from botpool.telemetry import Telemetry
from botpool.tracing import tracing

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Iterator

    from fastapi import FastAPI

    from botpool.models.keys import ApiKey
    from botpool.settings import Settings
    from botpool.store import Database
    from botpool.tracing import Traces

_log: structlog.stdlib.BoundLogger = structlog.get_logger("botpool")

_CLOSE_SECONDS = 5
_HOSTS_SECONDS = 5
_LOOK_SECONDS = 0.2


@dataclass(frozen=True)
class Served:
    """A running botpool."""

    store: Store
    pool: Pool
    url: str | None
    """The URL at which this machine reaches it, if it listens: a worker alone, for its health."""
    listens_on: str
    """Where it listens, in words: the URL, or that it is every address."""
    sessions: Sessions
    admin: ApiKey


class _Server(uvicorn.Server):
    """A server that leaves signals to us, because everything else must end with it, in order."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def serving(
    settings: Settings, *, api: bool = True, worker: bool = True
) -> AsyncIterator[Served]:
    """Run botpool for the length of the block: the API, the worker, or both.

    Bots outlive it. At the end, requests under way are answered, slots under way are finished or
    handed over to other replicas, then the connections are closed. Raises a `SetupError` if it
    can't start. An error in any part of it ends the block.
    """
    _check(settings, api=api)
    async with AsyncExitStack() as stack:
        listening = None
        port, setting = (
            (settings.port, "BOTPOOL_PORT")
            if api
            else (settings.health_port, "BOTPOOL_HEALTH_PORT")
        )
        if port is not None:
            listening = stack.enter_context(_listen(settings.host, port, setting))
            settings = settings.model_copy(update={"port": listening.getsockname()[1]})
        database = await stack.enter_async_context(
            open_database(
                settings,
                max_connections=settings.database_connections,
                wait_ms=settings.database_wait_ms,
            )
        )
        if settings.database_url is None:
            await stack.enter_async_context(
                _beside("embedded PostgreSQL", keep_embedded_postgres(settings.data_dir))
            )
        await migrate(database)
        store = Store(database)
        await _warn_of_few_connections(store, settings)
        replica = new_replica_name()
        metrics = await stack.enter_async_context(_measuring(settings))
        traces = await stack.enter_async_context(tracing(replica))
        telemetry = await stack.enter_async_context(_telling(store, metrics, traces))
        pool = Pool(store, settings, telemetry)
        await pool.queue.configure()
        keys = Keys(store, settings)
        admin = await keys.admin()
        await stack.enter_async_context(_present(store, replica, _role(api=api, worker=worker)))
        reconciler = None
        if worker:
            reconciler = await stack.enter_async_context(
                _working(database, store, pool, settings, replica, metrics)
            )
        if listening is not None:
            await stack.enter_async_context(
                _answering(database, store, pool, settings, keys, replica, listening, metrics)
                if api
                else _http(create_worker_app(store, settings, keys, metrics), settings, listening)
            )
        if reconciler is not None:
            # Bots are answered meanwhile. A host that does not answer delays nobody for long.
            with suppress(TimeoutError):
                await asyncio.wait_for(reconciler.hosts_reported.wait(), _HOSTS_SECONDS)
        if api and listening is not None:
            stack.enter_context(noted(settings.data_dir, ServingNote.of(settings)))
        url = None if listening is None else settings.local_url
        yield Served(store, pool, url, _where(settings), Sessions(store), admin)


def _where(settings: Settings) -> str:
    every = {"0.0.0.0": "every IPv4 address", "::": "every address"}.get(settings.host)  # noqa: S104
    return f"{every} of this machine, port {settings.port}" if every else settings.local_url


def _role(*, api: bool, worker: bool) -> ReplicaRole:
    if api and worker:
        return ReplicaRole.ALL
    return ReplicaRole.API if api else ReplicaRole.WORKER


@asynccontextmanager
async def _measuring(settings: Settings) -> AsyncIterator[Metrics]:
    """What this replica counts. How late its event loop is, is measured all the time."""
    metrics, lag = Metrics(), EventLoopLag()
    metrics.expect_launches(settings.engine)
    metrics.watch_event_loop(lag.worst)
    async with _beside("event loop", lag.keep_measuring()):
        yield metrics


@asynccontextmanager
async def _telling(
    store: Store, metrics: Metrics, traces: Traces | None
) -> AsyncIterator[Telemetry]:
    """What came of bots, told to metrics and traces. At the end, what was not told yet is."""
    telemetry = Telemetry(store, metrics, traces)
    try:
        yield telemetry
    finally:
        with suppress(BotpoolError, TimeoutError):
            async with asyncio.timeout(_CLOSE_SECONDS):
                await telemetry.measure()


@asynccontextmanager
async def _present(store: Store, replica: str, role: ReplicaRole) -> AsyncIterator[None]:
    """Let others know that this replica is there, for the length of the block."""

    async def note() -> None:
        await store.replicas.seen(replica, role, __version__, machine_name())

    async def keep_noting() -> None:
        while True:
            await asyncio.sleep(SEEN_EVERY_SECONDS)
            with suppress(BotpoolError):
                await note()

    await note()
    async with _beside("presence", keep_noting()):
        try:
            yield
        finally:
            with suppress(BotpoolError):
                await finish(store.replicas.gone(replica), seconds=_CLOSE_SECONDS)


def _check(settings: Settings, *, api: bool) -> None:
    """Refuse settings that can't work, and warn of settings that are unlikely to."""
    check_engine(settings)
    if not api and settings.public_url is None:
        raise SettingsInvalid(
            "BOTPOOL_PUBLIC_URL must be set for a worker without an API: bots need it to reach the"
            " API."
        )
    if lacks_images(settings):
        _log.warning(
            "no platform has an image, so no bot can start: set BOTPOOL_IMAGE_…",
            engine=settings.engine,
        )


async def _warn_of_few_connections(store: Store, settings: Settings) -> None:
    left = await store.server.connections_left()
    if left < settings.database_connections:
        _log.warning(
            "the database server leaves botpool few connections: raise its max_connections, or set"
            " BOTPOOL_DATABASE_CONNECTIONS",
            left=left,
            wanted=settings.database_connections,
        )


class _Workers:
    """How many replicas call engines: they share what an engine lets one user do."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.count = 1

    async def keep_counting(self) -> None:
        while True:
            with suppress(BotpoolError):
                self.count = max(1, (await self._store.replicas.counts()).worker)
            await asyncio.sleep(SEEN_EVERY_SECONDS)


@asynccontextmanager
async def _working(
    database: Database,
    store: Store,
    pool: Pool,
    settings: Settings,
    replica: str,
    metrics: Metrics,
) -> AsyncIterator[Reconciler]:
    installation = await store.installation.name()
    workers = _Workers(store)
    made = make_engines(settings, installation, lambda: workers.count)
    engines = {name: MeasuredEngine(engine, metrics.called) for name, engine in made.items()}
    reconciler = Reconciler(
        store,
        pool,
        engines,
        settings,
        installation=installation,
        replica=replica,
        metrics=metrics,
    )
    webhooks = Webhooks(store, settings, replica=replica)
    doctor = Rounds(store, pool, replica, examine=partial(diagnose, settings, database=database))
    try:
        await try_out(made[settings.engine])
        async with (
            _beside("workers", workers.keep_counting()),
            _beside("reconciler", reconciler.run(database)) as reconciling,
            _beside("webhooks", webhooks.run(database)) as delivering,
            _beside("doctor", doctor.run(database)),
        ):
            try:
                yield reconciler
            finally:
                reconciler.stop()
                webhooks.stop()
                await asyncio.wait({reconciling, delivering})
    finally:
        for engine in engines.values():
            await engine.close()


@asynccontextmanager
async def _answering(
    database: Database,
    store: Store,
    pool: Pool,
    settings: Settings,
    keys: Keys,
    replica: str,
    listening: socket.socket,
    metrics: Metrics,
) -> AsyncIterator[None]:
    feed = Feed(store, Orders(store, settings))
    app = create_app(store, pool, settings, keys, feed, metrics)
    add_dashboard(app)
    async with (
        _beside("listening", pool.listening.keep_noting(replica)),
        _beside("feed", feed.run(database)) as following,
        _http(app, settings, listening),
    ):
        try:
            yield
        finally:
            # Streams don't end by themselves: stopping the feed ends them.
            feed.stop()
            await asyncio.wait({following})


@asynccontextmanager
async def _http(app: FastAPI, settings: Settings, listening: socket.socket) -> AsyncIterator[None]:
    """Answer requests for the length of the block. Those under way at its end are answered."""
    server = _Server(server_config(app, settings.trusted_proxies or ""))
    async with _beside("server", server.serve(sockets=[listening])) as answering:
        try:
            yield
        finally:
            server.should_exit = True
            await asyncio.wait({answering})


@asynccontextmanager
async def _beside(what: str, work: Awaitable[None]) -> AsyncIterator[asyncio.Future[None]]:
    """Run something beside the block. If it fails, cancel the block and raise the error."""
    body = asyncio.current_task()
    running = asyncio.ensure_future(work)
    failed = False

    def ended(task: asyncio.Future[None]) -> None:
        nonlocal failed
        if not task.cancelled() and (error := task.exception()) is not None and body is not None:
            log_failure(
                "a part of botpool failed",
                error,
                logging.ERROR,
                part=what,
                kind=type(error).__name__,
            )
            failed = True
            body.cancel()

    running.add_done_callback(ended)
    try:
        yield running
    except asyncio.CancelledError:
        if failed and body is not None and body.uncancel() == 0:
            await running
        raise
    finally:
        running.remove_done_callback(ended)
        if not running.done():
            running.cancel()
            await asyncio.wait({running})


def tcp_socket(listening: socket.socket) -> socket.socket:
    """The same socket, known as TCP: so asyncio sends small answers without a delay."""
    family, kind = listening.family, listening.type
    return socket.socket(family, kind, socket.IPPROTO_TCP, fileno=listening.detach())


@contextmanager
def _listen(host: str, port: int, setting: str) -> Iterator[socket.socket]:
    try:
        listening = socket.create_server(
            (host, port),
            family=socket.AF_INET6 if ":" in host else socket.AF_INET,
            dualstack_ipv6=host == "::" and socket.has_dualstack_ipv6(),
        )
    except (OSError, UnicodeError) as error:
        # Only the reason: Python's message repeats the address.
        number = getattr(error, "errno", None) or 0
        why = os.strerror(number) if number > 0 else "this name can't be resolved"
        raise SetupError(
            f"Can't listen on {host}, port {port}: {why}; change BOTPOOL_HOST or {setting}."
        ) from error
    with tcp_socket(listening) as tcp:
        yield tcp


async def stop_every_bot(store: Store, pool: Pool, settings: Settings) -> int:
    """Stop every live bot, wait until all have ended, and return how many they were.

    It waits no longer than a bot may take to leave plus its container to stop.
    """
    live = [status for status in BotStatus if status not in BOT_ENDED]
    bots = await store.bots.page(BotPage(statuses=live, limit=1_000_000))
    for bot in bots:
        await pool.assignments.stop_bot(bot.id, "botpool shuts down")
    seconds = (settings.leave_grace_ms + settings.stop_grace_ms) / 1000 + _CLOSE_SECONDS
    try:
        async with asyncio.timeout(seconds):
            while await _occupied(store):  # noqa: ASYNC110 - only the database knows
                await asyncio.sleep(_LOOK_SECONDS)
    except TimeoutError:
        _log.warning("some bots did not end in time")
    return len(bots)


async def _occupied(store: Store) -> bool:
    return any(row.deploying + row.busy + row.releasing for row in await store.pools.numbers())
