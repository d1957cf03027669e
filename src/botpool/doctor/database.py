"""The database: whether it answers, lets botpool work, and has the schema that it needs."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

from botpool.doctor.clocks import check_clock, now
from botpool.doctor.folders import check_disk, why_not_writable
from botpool.doctor.replicas import examine_replicas
from botpool.errors import DatabaseTooOld, DatabaseUnfit, SchemaTooNew, SettingsInvalid
from botpool.store import Store, check_schema, open_database
from botpool.store.postgres.servers import MINIMUM_VERSION

if TYPE_CHECKING:
    from collections.abc import Sequence

    from botpool.doctor.findings import Report
    from botpool.models.slots import Slot
    from botpool.settings import Settings
    from botpool.states import Platform
    from botpool.store import Database

_SECONDS = 30.0
_READ_SECONDS = 10.0
_ELSEWHERE = "Set BOTPOOL_DATA_DIR to a folder that this user can write to."
_MIGRATE = "Run `botpool migrate`, or start botpool, which migrates first."
_MAKE_ROOM = "Free some space, or set BOTPOOL_DATA_DIR to a folder on another disk."
_LOOK = "Read postgres.log in the data folder, or set BOTPOOL_DATABASE_URL to a server."
_REACH = (
    "Start the server, or correct BOTPOOL_DATABASE_URL: postgresql://user:password@host/database"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What the database knows about this botpool."""

    slots: Sequence[Slot]
    used: frozenset[Platform]
    """The platforms that have slots or waiting bots."""


async def examine_database(
    report: Report, settings: Settings, opened: Database | None
) -> Known | None:
    """Check the data folder and the database. None if the database could not be read.

    Whoever has it open gives it, so that this takes no connection more than the server may have.

    An embedded PostgreSQL that doesn't run is started, and stopped again. If there is none yet,
    none is created.
    """
    usable = False
    async with report.check("data folder", _ELSEWHERE) as check:
        why = why_not_writable(settings.data_dir)
        usable = why is None
        if why is None:
            check_disk(check, settings.data_dir, _MAKE_ROOM)
        else:
            check.problem(why, _ELSEWHERE)
    embedded = settings.database_url is None
    starts = embedded and opened is None
    advice = _LOOK if embedded else _REACH
    async with report.check("database", advice, seconds=_SECONDS) as check:
        if starts and not usable:
            check.not_checked("The embedded PostgreSQL needs the data folder")
            return None
        if starts and not (settings.data_dir / "postgres" / "PG_VERSION").exists():
            check.ok("An embedded PostgreSQL; botpool creates it when it first starts")
            return Known(slots=(), used=frozenset())
        try:
            async with (
                nullcontext(opened)
                if opened
                else open_database(settings, max_connections=1) as database
            ):
                store = Store(database)
                where = f"embedded in {settings.data_dir}" if embedded else "BOTPOOL_DATABASE_URL"
                check.ok(f"PostgreSQL {await store.server.version()}, {where}")
                await _examine_server(report, store, settings)
                if not embedded:
                    await _examine_clock(report, store)
                return await _read(report, database)
        except DatabaseTooOld as error:
            check.problem(str(error), f"Use PostgreSQL {MINIMUM_VERSION} or later.")
        except SettingsInvalid as error:
            check.problem(str(error), "Correct BOTPOOL_DATABASE_URL.")
        except DatabaseUnfit as error:
            check.problem(str(error), "docs/how-to/postgresql.md says what botpool needs.")
    return None


async def _examine_server(report: Report, store: Store, settings: Settings) -> None:
    async with report.check("rights") as check:
        rights = await store.server.rights()
        if rights.may_create:
            check.ok(f"{rights.user} may create tables and functions")
        else:
            where = f"in the schema {rights.schema}" if rights.schema else "in any schema"
            check.problem(
                f"{rights.user} may not create tables and functions {where}",
                f"Let {rights.user} own the database: ALTER DATABASE … OWNER TO {rights.user}.",
            )
    async with report.check("connections") as check:
        left, wanted = await store.server.connections_left(), settings.database_connections
        found = f"The server leaves botpool {left}; each `botpool serve` uses up to {wanted}"
        if left < wanted:
            check.warning(
                found,
                "Raise max_connections of the server, or its limit for the user or the database; or"
                " set BOTPOOL_DATABASE_CONNECTIONS to less.",
            )
        else:
            check.ok(found)


async def _examine_clock(report: Report, store: Store) -> None:
    async with report.check("clock", seconds=_READ_SECONDS) as check:
        asked = now()
        check_clock(check, "the database", await store.server.clock(), asked, now())


async def _read(report: Report, database: Database) -> Known | None:
    async with report.check("schema", _MIGRATE, seconds=_READ_SECONDS) as check:
        try:
            await check_schema(database)
        except SchemaTooNew as error:
            check.problem(str(error), "Start a newer botpool, or use another database.")
            return None
        check.ok("Up to date")
        store = Store(database)
        await examine_replicas(report, store)
        slots = await store.slots.all()
        numbers = await store.pools.numbers()
        used = frozenset(row.platform for row in numbers if row.total or row.queued)
        return Known(slots=slots, used=used)
    return None
