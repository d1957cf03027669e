"""Attention in the database: what needs a person now."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from botpool.models.attention import Need, NeedAction, NeedKind, Severity, in_order
from botpool.states import FailureCause, Platform
from botpool.store.queries import Queries
from botpool.store.replicas import Replicas

if TYPE_CHECKING:
    from collections.abc import Iterator

    import asyncpg

    from botpool.store.postgres.database import Database

_NEAR_DEADLINE_MS = 60_000
_LATELY_MS = 15 * 60_000
_WEBHOOK_PATIENCE_MS = 10 * 60_000
_MANY = 3
"""So many bots that failed lately for one cause are no chance."""


class Attention:
    """The queries of attention.sql."""

    def __init__(self, database: Database) -> None:
        self._queries = Queries(database, "attention")
        self._replicas = Replicas(database)

    async def needs(self) -> list[Need]:
        """What needs a person now, the most urgent first. Empty if all is well."""
        found = [] if (await self._replicas.counts()).worker else [_NO_WORKER]
        found += await self.hosts()
        found += await self.slots()
        found += await self.pulls()
        found += await self.waits()
        found += await self.pools()
        found += await self.failures()
        found += await self.webhooks()
        return in_order(found)

    async def hosts(self) -> list[Need]:
        """Hosts that get no new work."""
        return [need for row in await self._queries.rows("hosts") for need in _host(row)]

    async def slots(self) -> list[Need]:
        """Slots in error, by platform."""
        return [_slots(row) for row in await self._queries.rows("slots")]

    async def pulls(self) -> list[Need]:
        """Images that can't be brought to a host."""
        return [_pull(row) for row in await self._queries.rows("pulls")]

    async def waits(self) -> list[Need]:
        """Bots that wait longer than they were told, or give up soon."""
        rows = await self._queries.rows("waits", _NEAR_DEADLINE_MS)
        return [need for row in rows for need in _wait(row)]

    async def pools(self) -> list[Need]:
        """Pools that are paused, or full while bots wait."""
        return [_pool(row) for row in await self._queries.rows("pools")]

    async def failures(self) -> list[Need]:
        """Bots that failed lately, by platform and cause."""
        return [_failures(row) for row in await self._queries.rows("failures", _LATELY_MS)]

    async def webhooks(self) -> list[Need]:
        """Endpoints that get nothing."""
        return [_webhook(row) for row in await self._queries.rows("webhooks", _WEBHOOK_PATIENCE_MS)]


_NO_WORKER = Need(
    kind=NeedKind.NO_WORKER,
    severity=Severity.URGENT,
    sentence="No worker runs: no bot is started, and none is stopped.",
    action=NeedAction(label="Start a worker", command="botpool serve --role worker"),
)


def _host(row: asyncpg.Record) -> Iterator[Need]:
    engine, host = row["engine"], row["host"]
    path = f"/api/v1/hosts/{quote(engine, safe='')}/{quote(host, safe='')}"
    drained = row["drained_at"] is not None
    if row["unhealthy_since"] is not None:
        yield Need(
            kind=NeedKind.HOST_UNHEALTHY,
            severity=Severity.SOON,
            sentence=f"{host} gets no new bots: {row['reason'] or 'launches failed there'}",
            since=row["unhealthy_since"],
            error=row["reason"],
            engine=engine,
            host=host,
            action=None
            if drained
            else NeedAction(label="Drain it", method="POST", path=f"{path}/drain"),
        )
    elif not row["open"]:
        yield Need(
            kind=NeedKind.HOST_CLOSED,
            severity=Severity.SOON,
            sentence=f"{host} does not answer, so it gets no new bots.",
            engine=engine,
            host=host,
            action=NeedAction(label="Examine it", command="botpool doctor"),
        )
    if drained:
        yield Need(
            kind=NeedKind.HOST_DRAINED,
            severity=Severity.NOTE,
            sentence=f"{host} is drained: it gets no new bots until it is undrained.",
            since=row["drained_at"],
            engine=engine,
            host=host,
            action=NeedAction(label="Undrain it", method="POST", path=f"{path}/undrain"),
        )


def _slots(row: asyncpg.Record) -> Need:
    count, name, platform = row["count"], row["slot_name"], row["platform"]
    one = count == 1
    which = f"{name} is" if one else f"{count} slots of {platform} are"
    first = "" if one else f"{name}: "
    return Need(
        kind=NeedKind.SLOT_ERROR,
        severity=Severity.SOON,
        sentence=f"{which} in error. {first}{row['error']}",
        since=row["since"],
        count=count,
        error=row["error"],
        platform=Platform(platform),
        slot_id=row["slot_id"],
        slot_name=name,
        action=NeedAction(
            label=f"Recover {name}", method="POST", path=f"/api/v1/slots/{row['slot_id']}/recover"
        ),
    )


def _pull(row: asyncpg.Record) -> Need:
    engine, host, image, waiting = row["engine"], row["host"], row["image"], row["waiting"]
    who = {0: "", 1: " 1 bot waits for it."}.get(waiting, f" {waiting} bots wait for it.")
    path = f"/api/v1/hosts/{quote(engine, safe='')}/{quote(host, safe='')}/pull"
    return Need(
        kind=NeedKind.PULL_FAILING,
        severity=Severity.URGENT if waiting else Severity.SOON,
        sentence=f"{image} can't be brought to {host}: {row['error']}{who}",
        since=row["started_at"],
        count=row["attempts"],
        error=row["error"],
        engine=engine,
        host=host,
        image=image,
        action=NeedAction(label="Pull it again", method="POST", path=path, body={"image": image}),
    )


def _wait(row: asyncpg.Record) -> Iterator[Need]:
    platform = Platform(row["platform"])
    if row["near"]:
        seconds = max(round(row["left"].total_seconds()), 0)
        others = "" if row["near"] == 1 else f", and {row['near'] - 1} more within a minute"
        yield Need(
            kind=NeedKind.WAIT_NEAR_DEADLINE,
            severity=Severity.URGENT,
            sentence=f"Bot {row['next_bot_id']} waits for a slot of {platform}, and gives up in"
            f" {seconds} s{others}.",
            since=row["timeout_at"],
            count=row["near"],
            platform=platform,
            bot_id=row["next_bot_id"],
            action=NeedAction(
                label="See who waits", method="GET", path=f"/api/v1/queue?platform={platform}"
            ),
        )
    waited = row["waited"].total_seconds()
    if row["told_ms"] is not None and waited * 1000 > row["told_ms"]:
        yield Need(
            kind=NeedKind.WAIT_OVER_ESTIMATE,
            severity=Severity.SOON,
            sentence=f"Bot {row['first_bot_id']} is next for a slot of {platform}, and has waited"
            f" for {waited:.0f} s. It was told {row['told_ms'] / 1000:.0f} s.",
            since=row["queued_at"],
            platform=platform,
            bot_id=row["first_bot_id"],
            action=NeedAction(
                label="See who waits", method="GET", path=f"/api/v1/queue?platform={platform}"
            ),
        )


def _pool(row: asyncpg.Record) -> Need:
    platform, bots = Platform(row["platform"]), row["bots"]
    wait = {0: "No bot waits.", 1: "1 bot waits."}.get(bots, f"{bots} bots wait.")
    if row["paused_at"] is None:
        return Need(
            kind=NeedKind.POOL_FULL,
            severity=Severity.SOON,
            sentence=f"All {row['max_size']} slots of {platform} are taken. {wait}",
            count=bots,
            platform=platform,
            action=NeedAction(label="Let it grow", command="BOTPOOL_MAX_POOL_SIZE"),
        )
    why = f" ({row['pause_reason']})" if row["pause_reason"] else ""
    return Need(
        kind=NeedKind.POOL_PAUSED,
        severity=Severity.URGENT if bots else Severity.NOTE,
        sentence=f"{row['paused_by']} paused the launches of {platform}{why}. {wait}",
        since=row["paused_at"],
        count=bots,
        platform=platform,
        action=NeedAction(label="Resume", method="POST", path=f"/api/v1/pools/{platform}/resume"),
    )


def _failures(row: asyncpg.Record) -> Need:
    platform, cause, count = row["platform"], FailureCause(row["failure_cause"]), row["count"]
    who = f"Bot {row['bot_id']}" if count == 1 else f"{count} bots"
    return Need(
        kind=NeedKind.BOTS_FAILING,
        severity=Severity.URGENT if count >= _MANY else Severity.SOON,
        sentence=f"{who} of {platform} failed in the last 15 minutes ({cause}): {row['error']}",
        since=row["since"],
        count=count,
        error=row["error"],
        cause=cause,
        platform=Platform(platform),
        bot_id=row["bot_id"],
        action=NeedAction(
            label=f"Look at bot {row['bot_id']}", method="GET", path=f"/api/v1/bots/{row['bot_id']}"
        ),
    )


def _webhook(row: asyncpg.Record) -> Need:
    # Not its address: that may have a secret in it.
    name = f"The webhook {row['id']}" + (f" ({row['description']})" if row["description"] else "")
    path = f"/api/v1/webhooks/{row['id']}"
    if row["paused_at"] is None:
        return Need(
            kind=NeedKind.WEBHOOK_FAILING,
            severity=Severity.SOON,
            sentence=f"{name} takes nothing: every attempt to deliver has failed for a while.",
            since=row["failing_since"],
            webhook_id=row["id"],
            action=NeedAction(label="Look at it", method="GET", path=path),
        )
    return Need(
        kind=NeedKind.WEBHOOK_PAUSED,
        severity=Severity.SOON,
        sentence=f"{name} is paused, and gets nothing: {row['pause_reason']}",
        since=row["paused_at"],
        error=row["pause_reason"],
        webhook_id=row["id"],
        action=NeedAction(label="Resume it", method="PATCH", path=path, body={"paused": False}),
    )
