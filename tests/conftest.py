"""One PostgreSQL a run, one database a test, copied from a migrated template."""

from __future__ import annotations

import os
import shutil
import signal
from contextlib import asynccontextmanager, contextmanager
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import psutil
import pytest

from botpool.pool import Pool
from botpool.settings import Settings
from botpool.store import (
    Database,
    Store,
    connect,
    migrate,
)
from botpool.store.invariants import broken_invariants
from botpool.store.postgres.embedded import embedded_postgres
from testbed.kubernetes import joined
from testbed.network import leave_machine_network
from tests.support.scene import Scene
from tests.support.stalled import Stalled, end_run, pytest_timeout_set_timer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Generator, Iterator

    from testbed.kubernetes import Cluster

__all__ = ["pytest_timeout_set_timer"]  # pytest finds it here

NO_SKIP = "BOTPOOL_TEST_NO_SKIP" in os.environ

_TEMPLATE = "botpool_template"
_MEMORY = Path("/dev/shm")  # noqa: S108 - a folder of its own is made there
_PLENTY = 4 * 2**30
_PATIENCE = 900.0  # longer than the time limit of a test
_numbers = count(1)
_SLOW = frozenset({"acceptance", "browser", "deploy", "engines"})


def _named(dsn: str, name: str) -> str:
    return urlunsplit(urlsplit(dsn)._replace(path=f"/{name}"))


def pytest_configure(config: pytest.Config) -> None:
    """Tests see nothing of the machine's network, nor does that see anything of them."""
    leave_machine_network()
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Stalled(_PATIENCE, end_run))
    _hear_signals()


def _hear_signals() -> None:
    """Undo what started the tests: in the background, a shell has them ignore some signals.

    Others block some. Either would hold for all that the tests start, and for their time limit.
    """
    for number in (signal.SIGHUP, signal.SIGQUIT, signal.SIGALRM, signal.SIGTERM):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what needs a real Kubernetes, and begin with what waits for long."""
    items.sort(key=lambda item: item.path.parent.name not in _SLOW)
    for item in items:
        callspec = getattr(item, "callspec", None)
        of_engine = callspec is not None and "kubernetes" in callspec.params.values()
        if of_engine or "kubernetes" in getattr(item, "fixturenames", ()):
            item.add_marker("cluster")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Where nothing may be skipped, as in CI, a skipped test is a failed one."""
    report = yield
    if NO_SKIP and report.skipped:
        report.outcome = "failed"
        report.longrepr = f"skipped, where nothing may be: {report.longreprtext}"
    return report


@pytest.fixture(scope="session", autouse=True)
def nothing_left(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What tests have started in their folders ends with them."""
    yield
    base = str(tmp_path_factory.getbasetemp())
    me = psutil.Process()
    of_ours = [
        process
        for process in {*psutil.process_iter(["cmdline"])} - {me, *me.parents()}
        if any(base in part for part in process.info["cmdline"] or ())
    ]
    _, left = psutil.wait_procs(of_ours, timeout=5)
    assert not left, [process.cmdline() for process in left]


@contextmanager
def _data_folder(base: Path) -> Iterator[Path]:
    """A folder, in memory where there is plenty: databases are made there in no time."""
    if not _MEMORY.is_dir() or shutil.disk_usage(_MEMORY).free < _PLENTY:
        yield base
        return
    with TemporaryDirectory(prefix="botpool-test-", dir=_MEMORY) as folder:
        yield Path(folder)


@pytest.fixture(scope="session")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    """The address of a PostgreSQL that forgets fast: nothing in it must outlive the run."""
    version = int(os.environ.get("BOTPOOL_TEST_POSTGRES", "18"))
    with _data_folder(tmp_path_factory.mktemp("data")) as folder:
        async with embedded_postgres(folder, version=version) as dsn:
            await _prepare(dsn)
            yield dsn


async def _prepare(dsn: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute("ALTER SYSTEM SET fsync = off")
        await connection.execute("ALTER SYSTEM SET synchronous_commit = off")
        await connection.execute("ALTER SYSTEM SET max_wal_size = '256MB'")
        await connection.execute("SELECT pg_reload_conf()")
        await connection.execute(f"CREATE DATABASE {_TEMPLATE}")
    finally:
        await connection.close()
    async with connect(_named(dsn, _TEMPLATE)) as database:
        await migrate(database)


@asynccontextmanager
async def new_database(server: str, template: str = _TEMPLATE) -> AsyncIterator[str]:
    """The address of a database of its own, migrated unless told otherwise, gone at the end."""
    name = f"test_{next(_numbers)}"
    connection = await asyncpg.connect(server)
    try:
        await connection.execute(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY FILE_COPY")
        yield _named(server, name)
        await connection.execute(f"DROP DATABASE {name} WITH (FORCE)")
    finally:
        await connection.close()


@pytest.fixture
async def empty_database_url(server: str) -> AsyncIterator[str]:
    """A database that nobody has migrated."""
    async with new_database(server, "template0") as url:
        yield url


@pytest.fixture
async def database_url(server: str) -> AsyncIterator[str]:
    """A migrated database."""
    async with new_database(server) as url:
        yield url


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    async with connect(database_url) as database:
        yield database


@pytest.fixture
async def scene(database: Database) -> AsyncIterator[Scene]:
    """A pool of at most 3 slots a platform, whose time a test sets. Checked for every invariant."""
    store = Store(database)
    await store.installation.use_virtual_clock()
    scene = Scene(database, store, Pool(store, Settings(max_pool_size=3)))
    await scene.pool.queue.configure()
    await scene.add_host()
    yield scene
    assert await broken_invariants(database) == []


@pytest.fixture(scope="session")
async def kubernetes(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    """The cluster that all processes of this run share. Tests use `cluster` or `whole_cluster`."""
    base = tmp_path_factory.getbasetemp()
    run = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    async with joined(run / "kubernetes") as cluster:
        yield cluster


@pytest.fixture
async def cluster(kubernetes: Cluster) -> AsyncIterator[Cluster]:
    """A cluster with the nodes n1 and n2. Others use it, too: take a namespace of your own."""
    async with kubernetes.shared():
        yield kubernetes


@pytest.fixture
async def whole_cluster(kubernetes: Cluster) -> AsyncIterator[Cluster]:
    """The same, and nobody else uses it: for tests that take parts of it away."""
    async with kubernetes.alone():
        yield kubernetes
