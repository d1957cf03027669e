"""Bring a database to the schema of this code.

Tables change by numbered files in migrations/, each applied once. What can be replaced (functions,
triggers, the guards made from the state machines) stands in functions/ as it is now, and is
installed again whenever it differs. A change to it that older code can't live with comes with a
numbered migration, so that older code refuses to start.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING

from botpool.errors import SchemaTooNew, SetupError
from botpool.store.guards import guards

if TYPE_CHECKING:
    from botpool.store.database import Connection, Database

_LOCK = 0x626F74706F6F6C  # "botpool": one migration at a time in a database

_TABLE = """
CREATE TABLE IF NOT EXISTS schema_migrations (
    version    integer PRIMARY KEY,
    name       text NOT NULL,
    checksum   text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
)
"""


@dataclass(frozen=True, slots=True)
class Migration:
    """A step of the schema. Version 0 is what can be replaced, installed after all others."""

    version: int
    name: str
    sql: str

    @property
    def checksum(self) -> str:
        """Tells whether two of the same version are the same."""
        return hashlib.sha256(self.sql.encode()).hexdigest()


def migrations() -> list[Migration]:
    """Every numbered migration, in order."""
    files = sorted(
        resources.files(__package__).joinpath("migrations").iterdir(), key=lambda f: f.name
    )
    return [
        Migration(int(file.name[:4]), file.name.removesuffix(".sql"), file.read_text("utf-8"))
        for file in files
        if file.name.endswith(".sql")
    ]


def functions() -> Migration:
    """What is replaced as a whole."""
    folder = resources.files(__package__).joinpath("functions")
    guard_functions, triggers, pool = (
        folder.joinpath(f"{name}.sql").read_text("utf-8") for name in ("guards", "triggers", "pool")
    )
    return Migration(0, "functions", "\n".join((guard_functions, guards(), triggers, pool)))


async def migrate(database: Database) -> list[str]:
    """Apply what is missing and return its names, in order; an empty list if nothing was.

    All of it happens in one transaction under a lock: replicas that start together wait for one
    another, and a failure leaves the schema as it was. Raises `SchemaTooNew` for a database that a
    newer botpool has migrated.
    """
    async with database.transaction() as connection:
        await connection.execute("SELECT pg_advisory_xact_lock($1)", _LOCK)
        await connection.execute(_TABLE)
        rows = await connection.fetch("SELECT version, name, checksum FROM schema_migrations")
        applied = {row["version"]: row["checksum"] for row in rows}
        known = migrations()
        if max(applied, default=0) > known[-1].version:
            raise SchemaTooNew(
                f"The database has schema version {max(applied)}, and this botpool knows versions"
                f" up to {known[-1].version}: start a newer botpool."
            )
        done = []
        for migration in known:
            if migration.version not in applied:
                await _apply(connection, migration)
                done.append(migration.name)
            elif applied[migration.version] != migration.checksum:
                raise SetupError(
                    f"The database was made with another text of migration {migration.name}:"
                    " it belongs to a build that was never released, and can't be migrated."
                )
        replaceable = functions()
        if applied.get(0) != replaceable.checksum:
            await _apply(connection, replaceable)
            done.append(replaceable.name)
    return done


async def _apply(connection: Connection, migration: Migration) -> None:
    await connection.execute(migration.sql)
    await connection.execute(
        "INSERT INTO schema_migrations (version, name, checksum) VALUES ($1, $2, $3)"
        " ON CONFLICT (version) DO UPDATE SET checksum = $3, applied_at = clock_timestamp()",
        migration.version,
        migration.name,
        migration.checksum,
    )
