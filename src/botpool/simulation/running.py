"""Runs of the simulation: one PostgreSQL for all, and one database for each."""

from __future__ import annotations

import asyncio
import tempfile
import time
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

import asyncpg

from botpool.simulation.journal import Journal, RecordedDatabase
from botpool.simulation.profiles import profile_of
from botpool.simulation.virtual_time import run_virtually
from botpool.simulation.world import PromiseBroken, World
from botpool.store import connect, migrate
from botpool.store.postgres.embedded import embedded_postgres

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

_TEMPLATE = "botpool_simulation"
_FORGETFUL = ("fsync = off", "synchronous_commit = off", "full_page_writes = off")


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run: a seed, and for how many hours."""

    seed: int
    hours: float = 1.0
    bots: int | None = None
    slots: int | None = None
    only: tuple[str, ...] = ()

    @property
    def command(self) -> str:
        """The command that repeats it."""
        bots = "" if self.bots is None else f" --bots {self.bots}"
        slots = "" if self.slots is None else f" --slots {self.slots}"
        more = bots + slots + "".join(f" --only '{name}'" for name in self.only)
        return f"python -m botpool.simulation --seed {self.seed} --hours {self.hours:g}{more}"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The outcome of a run. `broken` is the promise that broke, if one did."""

    run: Run
    profile: str
    broken: str | None
    lines: list[str] = field(repr=False)
    counts: dict[str, int]
    ended: dict[str, int]
    transitions: int
    checks: int
    virtual_seconds: float
    seconds: float
    digest: str


@contextmanager
def server(url: str | None = None) -> Iterator[str]:
    """The URL of a PostgreSQL with a migrated template: the one at `url`, or an embedded one."""
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        try:
            yield runner.run(_server(stack, url))
        finally:
            runner.run(stack.aclose())


async def _server(stack: AsyncExitStack, url: str | None) -> str:
    if url is None:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="botpool-simulation-"))
        url = await stack.enter_async_context(embedded_postgres(Path(folder)))
        connection = await asyncpg.connect(url)
        # The data need not outlive the run. Autovacuum would make runs depend on its timing.
        for setting in (*_FORGETFUL, "autovacuum = off"):
            await connection.execute(f"ALTER SYSTEM SET {setting}")
        await connection.execute("SELECT pg_reload_conf()")
        await connection.close()
    template = f"{_TEMPLATE}_template"
    await stack.enter_async_context(_new_database(url, template, "template0"))
    async with connect(_named(url, template)) as database:
        await migrate(database)
    return url


@asynccontextmanager
async def _new_database(url: str, name: str, template: str) -> AsyncIterator[str]:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
        await connection.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
        try:
            yield _named(url, name)
        finally:
            await connection.execute(f"DROP DATABASE {name} WITH (FORCE)")
    finally:
        await connection.close()


def _named(url: str, name: str) -> str:
    return urlunsplit(urlsplit(url)._replace(path=f"/{name}"))


def simulate(url: str, run: Run, show: Callable[[str], None] | None = None) -> Outcome:
    """Run one seed on its own database, on the server at `url`."""
    began = time.monotonic()
    name = f"{_TEMPLATE}_{run.seed}"
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        template = f"{_TEMPLATE}_template"
        address = runner.run(stack.enter_async_context(_new_database(url, name, template)))
        try:
            return run_virtually(_simulate(address, run, Journal(show), began))
        finally:
            runner.run(stack.aclose())


async def _simulate(url: str, run: Run, journal: Journal, began: float) -> Outcome:
    profile = profile_of(run.seed, bots=run.bots, slots=run.slots, hours=run.hours, only=run.only)
    broken = None
    async with RecordedDatabase.opened(url) as database:
        world = World(run.seed, run.hours, profile, database, journal)
        try:
            await world.run()
        except PromiseBroken as error:
            broken = str(error)
    return Outcome(
        run=run,
        profile=str(profile),
        broken=broken,
        lines=[*journal.lines],
        counts=dict(journal.counts),
        ended=dict(journal.ended),
        transitions=journal.transitions,
        checks=world.checks.made,
        virtual_seconds=asyncio.get_running_loop().time(),
        seconds=time.monotonic() - began,
        digest=journal.digest,
    )
