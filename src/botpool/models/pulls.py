"""Pulls: which image is on which host, and how it gets there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from datetime import datetime


class PullKey(NamedTuple):
    """An image on one host of an engine."""

    engine: str
    host: str
    image: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ImagePull:
    """An image on a host: `asked` for, `pulling`, `present` or `failed`.

    `asked_at` is set as long as somebody who asked for it has no answer.
    On engines whose starts bring the image, `slot_id` and `lease` say which start does.
    """

    engine: str
    host: str
    image: str
    status: Literal["asked", "pulling", "present", "failed"]
    reserved_by: str | None
    reserved_until: datetime | None
    attempts: int
    current_bytes: int
    total_bytes: int
    error: str | None
    started_at: datetime
    finished_at: datetime | None
    retry_at: datetime | None
    slot_id: int | None
    lease: int | None
    asked_at: datetime | None = None
    asked_by: str | None = None

    @property
    def key(self) -> PullKey:
        """Which image it is, and where."""
        return PullKey(self.engine, self.host, self.image)
