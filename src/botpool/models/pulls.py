"""Pulls: which image is on which host, and how it gets there."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Literal, NamedTuple, Self

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


class PullOutcome(StrEnum):
    """What came of a pull."""

    FETCHED = "fetched"
    PRESENT = "present"
    """The image was there already."""
    FAILED = "failed"

    @classmethod
    def of(cls, *, fetched: bool, failed: bool) -> Self:
        """What came of a pull that has failed, or had to fetch the image or not."""
        if failed:
            return cls("failed")
        return cls("fetched" if fetched else "present")
