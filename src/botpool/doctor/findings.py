"""What a check has found, and how checks are kept from stopping one another."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Self

from botpool.errors import BotpoolError

if TYPE_CHECKING:
    from types import TracebackType

SECONDS = 15.0
"""How long a check may take unless it says otherwise."""


class Result(StrEnum):
    """How a check came out."""

    OK = "ok"
    WARNING = "warning"
    """It works, and could be better, or stop to work some day."""
    PROBLEM = "problem"
    """Bots fail because of it."""
    NOT_CHECKED = "not checked"
    """It can't be told from here, or not before something else is mended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What a check has found. `mend` is what to do about it, empty where there is nothing to do.

    `engine` is the one that it is about; the database and the settings as a whole have none.
    """

    check: str
    engine: str | None
    result: Result
    found: str
    mend: str = ""


class Check:
    """One check, made in a block. What the block raises is a problem, and ends the block only.

    Each method adds a finding. The block takes no longer than `seconds`.
    """

    def __init__(
        self, name: str, engine: str | None, mend: str, seconds: float, findings: list[Finding]
    ) -> None:
        self._name = name
        self._engine = engine
        self._mend = mend
        self._findings = findings
        self._timeout = asyncio.timeout(seconds)

    def ok(self, found: str) -> None:
        """It is as it should be."""
        self._add(Result.OK, found, "")

    def warning(self, found: str, mend: str) -> None:
        """It could be better."""
        self._add(Result.WARNING, found, mend)

    def problem(self, found: str, mend: str) -> None:
        """It must be mended."""
        self._add(Result.PROBLEM, found, mend)

    def not_checked(self, why: str, mend: str = "") -> None:
        """Nobody can tell."""
        self._add(Result.NOT_CHECKED, why, mend)

    async def __aenter__(self) -> Self:
        """Begin to count the time."""
        await self._timeout.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        """Add what the block has raised, and let it go no further; a cancellation does."""
        try:
            await self._timeout.__aexit__(kind, error, trace)
        except TimeoutError as late:
            error = late
        match error:
            case None:
                return False
            case TimeoutError():
                self.problem("There was no answer in time", self._mend)
            case BotpoolError():
                self.problem(str(error), self._mend)
            case Exception():
                # Whatever it is, the other checks go on.
                said = f"{type(error).__name__}: {error}"
                self.problem(f"The check itself failed, {said}", self._mend)
            case _:
                return False
        return True

    def _add(self, result: Result, found: str, mend: str) -> None:
        finding = Finding(
            check=self._name,
            engine=self._engine,
            result=result,
            found=" ".join(found.split()),
            mend=mend,
        )
        self._findings.append(finding)


class Report:
    """The findings about one engine, or about none, in their order."""

    def __init__(self, engine: str | None = None) -> None:
        self.findings: list[Finding] = []
        self._engine = engine

    def check(self, name: str, mend: str = "", *, seconds: float = SECONDS) -> Check:
        """A check. `mend` is what to do about a failure that says no more."""
        return Check(name, self._engine, mend, seconds, self.findings)
