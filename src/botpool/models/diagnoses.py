"""Diagnoses: what doctor found about an installation, and what mends it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime


class Result(StrEnum):
    """How a check came out."""

    OK = "ok"
    WARNING = "warning"
    """It works, but could be better, or may stop working some day."""
    PROBLEM = "problem"
    """Bots fail because of it."""
    NOT_CHECKED = "not checked"
    """It can't be checked from here, or not before something else is fixed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What a check found. `mend` is what to do about it, empty if there is nothing to do.

    `engine` is the engine that it is about; None for the database and the settings as a whole.
    """

    check: str
    engine: str | None
    result: Result
    found: str
    mend: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What a worker's doctor found last; nothing yet, if it was never `made`.

    `asked_at` is since when somebody wants another one, and `begun_at` since when a worker makes
    it; both are None if none is wanted or under way.
    """

    findings: Sequence[Finding]
    made_at: datetime | None
    made_by: str | None
    asked_at: datetime | None
    asked_by: str | None
    begun_at: datetime | None

    @property
    def counts(self) -> Counter[Result]:
        """How many checks came out in which way."""
        return Counter(finding.result for finding in self.findings)
