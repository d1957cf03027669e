"""An outage of the database, in a few log lines: when it begins, now and then, when it is over."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING

import structlog

from botpool.errors import DatabaseUnreachable

if TYPE_CHECKING:
    from collections.abc import Iterator

_log: structlog.stdlib.BoundLogger = structlog.get_logger("botpool")

_REMINDER_SECONDS = 30.0
# While some calls fail, others may succeed, as on a full disk. It is over when none fails any more.
_QUIET_SECONDS = 5.0


class Outage:
    """Hears of every call to a database, and logs a few lines about all that fail together."""

    def __init__(self) -> None:
        self._began: float | None = None
        self._told = 0.0
        self._failed = 0.0

    @contextmanager
    def noticed(self) -> Iterator[None]:
        """Notice whether a call fails because the database can't be used."""
        try:
            yield
        except DatabaseUnreachable as error:
            self._note_failure(error)
            raise
        if self._began is not None:
            self._note_success(self._began)

    def _note_failure(self, error: DatabaseUnreachable) -> None:
        self._failed = now = _now()
        if self._began is None:
            self._began = self._told = now
            _log.error("the database can't be used", error=str(error))
        elif now - self._told >= _REMINDER_SECONDS:
            self._told = now
            for_ms = round((now - self._began) * 1000)
            _log.error("the database still can't be used", error=str(error), for_ms=for_ms)

    def _note_success(self, began: float) -> None:
        if _now() - self._failed >= _QUIET_SECONDS:
            self._began = None
            for_ms = round((self._failed - began) * 1000)
            _log.warning("the database can be used again", for_ms=for_ms)


def _now() -> float:
    return asyncio.get_running_loop().time()
