"""The health of hosts: after several failures in a row a host gets no new work.

This notes what happens. The database decides when a host is unhealthy, and when it is probed:
store/schema/functions/health.sql.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from botpool.models.hosts import HostFailure, HostReport
from botpool.states import SlotStatus

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from botpool.engines.base import Engine
    from botpool.models.slots import Slot
    from botpool.pool import Pool
    from botpool.settings import Settings
    from botpool.store import Store

_log: structlog.stdlib.BoundLogger = structlog.get_logger("botpool")


class HostHealth:
    """Notes successes and failures on hosts."""

    def __init__(
        self, store: Store, pool: Pool, engines: Mapping[str, Engine], settings: Settings
    ) -> None:
        self._store = store
        self._pool = pool
        self._engines = engines
        self._settings = settings

    async def report(self, engine: str, hosts: Collection[str]) -> None:
        """Report which of these hosts new slots may be on, and how many slots each may have.

        If each host has its own API, only asking it tells whether it answers, as comparisons do.
        """
        open_ = await self._engines[engine].open_hosts()
        here = True if self._engines[engine].traits.one_api else None
        await self._report(engine, {host: here if host in open_ else False for host in hosts})

    async def _report(self, engine: str, answers: Mapping[str, bool | None]) -> None:
        if engine != self._settings.engine:
            return  # no new slot is put there
        capacity = self._settings.max_slots_per_host
        reports = [
            HostReport(host=host, capacity=capacity, open=open_) for host, open_ in answers.items()
        ]
        await self._pool.hosts.report(engine, reports)

    async def no_answer(self, engine: str, host: str, reason: str) -> None:
        """Note that a host did not answer, if each host has its own API."""
        if not self._engines[engine].traits.one_api:
            await self._report(engine, {host: False})
            what = f"comparison at {await self._store.installation.now():%H:%M:%S}"
            await self._note(HostFailure(engine=engine, host=host, what=what, reason=reason))

    async def answers(self, engine: str, host: str) -> None:
        """Note that a host answers. If it was unhealthy only for not answering, it is healthy."""
        open_ = await self._engines[engine].open_hosts()
        await self._report(engine, {host: host in open_})
        if await self._store.hosts.has_failed(engine, host):
            await self._pool.hosts.note_healthy(engine, host, answers_only=True)

    async def failed(self, slot: Slot, reason: str, *, answered: bool = True) -> None:
        """Note a failure on a slot's host. Several failures make the host unhealthy.

        A launch that failed may be the image's fault. A host that did not answer was not asked for
        the image, and is healthy when it answers.
        """
        if slot.host is not None:
            launch = slot.status is SlotStatus.DEPLOYING and answered
            await self._note(
                HostFailure(
                    engine=slot.engine,
                    host=slot.host,
                    what=f"slot {slot.id}, lease {slot.lease}",
                    reason=reason,
                    image=(slot.image or "") if launch else "",
                )
            )

    async def _note(self, failure: HostFailure) -> None:
        settings = self._settings
        if await self._store.hosts.note_failure(
            failure,
            most=settings.host_failures,
            within_ms=settings.host_failure_window_ms,
            probe_in_ms=settings.recovery_interval_ms,
        ):
            _log.warning(
                "host is unhealthy: it gets no new work",
                engine=failure.engine,
                host=failure.host,
                failures=settings.host_failures,
                reason=failure.reason,
            )
