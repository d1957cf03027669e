"""Migrate a database to the schema of this code.

Tables change by numbered files in migrations/, each applied once. Functions, triggers and the
guards made from the state machines can be replaced: functions/ has them as they are now, and they
are installed again whenever they differ. If a change to them would break older code, it comes with
a numbered migration, so that older code refuses to start.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

import asyncpg

from botpool.errors import DatabaseUnfit, SchemaTooNew, SetupError
from botpool.store.postgres.database import LONG_SECONDS
from botpool.store.schema.guards import guards

if TYPE_CHECKING:
    from botpool.store.postgres.database import Connection, Database

_LOCK = 0x626F74706F6F6C  # "botpool": one migration at a time in a database

_TABLES = (
    "api_keys",
    "bot_events",
    "bot_logs",
    "bot_pool_queue",
    "bot_pool_slots",
    "bots",
    "container_logs",
    "diagnosis",
    "duties",
    "hosts",
    "image_pulls",
    "installation",
    "listening",
    "outages",
    "pools",
    "projects",
    "queue_changes",
    "queue_counts",
    "replicas",
    "sessions",
    "sign_in_codes",
    "transitions",
    "webhook_attempts",
    "webhook_deliveries",
    "webhook_endpoints",
    "webhook_secrets",
)
_FUNCTIONS = (
    "guards",
    "triggers",
    "transitions",
    "events",
    "launches",
    "listening",
    "hosts",
    "health",
    "estimate",
    "queue",
    "slots",
    "relaunch",
    "keys",
    "projects",
    "bots",
    "pulls",
    "webhooks",
)
_LOCK_TIMEOUT = "100ms"
_LOCK_ATTEMPTS = 100

_TABLE = """
CREATE TABLE IF NOT EXISTS schema_migrations (
    version    integer PRIMARY KEY,
    name       text NOT NULL,
    checksum   text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
)
"""


_NOTE = """
INSERT INTO schema_migrations (version, name, checksum) VALUES ($1, $2, $3)
ON CONFLICT (version) DO UPDATE SET checksum = $3, applied_at = clock_timestamp()
"""


@dataclass(frozen=True, slots=True)
class Migration:
    """A step of the schema. Version 0 is what can be replaced; it is installed last."""

    version: int
    name: str
    sql: str

    @property
    def checksum(self) -> str:
        """The same for two migrations only if their SQL is the same."""
        return hashlib.sha256(self.sql.encode()).hexdigest()


@cache
def migrations() -> list[Migration]:
    """Every numbered migration, in order. Read once: a changed file counts at the next start."""
    files = sorted(
        resources.files(__package__).joinpath("migrations").iterdir(), key=lambda f: f.name
    )
    return [
        Migration(int(file.name[:4]), file.name.removesuffix(".sql"), file.read_text("utf-8"))
        for file in files
        if file.name.endswith(".sql")
    ]


@cache
def _function_text(name: str) -> str:
    return resources.files(__package__).joinpath("functions", f"{name}.sql").read_text("utf-8")


def functions() -> Migration:
    """Functions, triggers and guards, which are replaced as a whole."""
    guard_functions, *others = map(_function_text, _FUNCTIONS)
    return Migration(0, "functions", "\n".join((guard_functions, guards(), *others)))


async def migrate(database: Database) -> list[str]:
    """Apply missing migrations and return their names, in order; empty if none were missing.

    What comes from a backup of another server is made to fit this one.

    It is one transaction under a lock: replicas that start together wait for one another, and a
    failure leaves the schema as it was. Raises a `SetupError` if a newer botpool has migrated the
    database, or if the database's user may not change it.
    """
    try:
        async with database.transaction() as connection:
            # Another replica's migration may take long: wait for it.
            await connection.execute("SET LOCAL lock_timeout = 0")
            await connection.execute(
                "SELECT pg_advisory_xact_lock($1)", _LOCK, timeout=LONG_SECONDS
            )
            missing = _missing(await _applied(connection))
            if missing:
                await connection.execute(_TABLE)
                await _have_tables_to_ourselves(connection)
            for migration in missing:
                await connection.execute(migration.sql, timeout=LONG_SECONDS)
                await connection.execute(
                    _NOTE, migration.version, migration.name, migration.checksum
                )
            await connection.execute("SELECT settle_restored()", timeout=LONG_SECONDS)
    except DatabaseUnfit as error:
        raise DatabaseUnfit(
            f"The database user may not migrate the database: {error};"
            " let the user own the database and what botpool has made in it."
        ) from error
    return [migration.name for migration in missing]


async def check_schema(database: Database) -> None:
    """Raise a `SetupError` if the database's schema doesn't match this code."""
    async with database.transaction() as connection:
        if _missing(await _applied(connection)):
            raise SetupError("The database is not migrated: run `botpool migrate`.")


async def _applied(connection: Connection) -> dict[int, str]:
    """The checksums of the applied migrations, by version."""
    if not await connection.fetchval("SELECT to_regclass('schema_migrations') IS NOT NULL"):
        return {}
    rows = await connection.fetch("SELECT version, checksum FROM schema_migrations")
    return {row["version"]: row["checksum"] for row in rows}


def _missing(applied: dict[int, str]) -> list[Migration]:
    """The migrations that have to be applied, in order."""
    known = migrations()
    if max(applied, default=0) > known[-1].version:
        raise SchemaTooNew(
            f"The database has schema version {max(applied)}, but this botpool only knows versions"
            f" up to {known[-1].version}: start a newer botpool."
        )
    for migration in known:
        if applied.get(migration.version, migration.checksum) != migration.checksum:
            raise SetupError(
                f"The database was made with another version of migration {migration.name}:"
                " it comes from a build that was never released, and can't be migrated."
            )
    replaceable = functions()
    return [
        *(migration for migration in known if migration.version not in applied),
        *([replaceable] if applied.get(0) != replaceable.checksum else []),
    ]


async def _have_tables_to_ourselves(connection: Connection) -> None:
    """Lock every table. Hold no lock while waiting, so that other transactions can finish."""
    tables = ", ".join(
        [
            table
            for table in _TABLES
            if await connection.fetchval("SELECT to_regclass($1) IS NOT NULL", table)
        ]
    )
    if not tables:
        return
    for last in (*(False,) * _LOCK_ATTEMPTS, True):
        try:
            async with connection.transaction():
                await connection.execute(f"SET LOCAL lock_timeout = '{_LOCK_TIMEOUT}'")
                await connection.execute(f"LOCK TABLE {tables}")
        except asyncpg.LockNotAvailableError:
            if last:
                raise
        else:
            return
