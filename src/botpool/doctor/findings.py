"""What a check finds, and how a failing check leaves the others alone."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Self

from botpool.errors import BotpoolError
from botpool.models.diagnoses import Finding, Result

if TYPE_CHECKING:
    from types import TracebackType

SECONDS = 15.0
"""How long a check may take unless it says otherwise."""


class Check:
    """One check: a block of code. An error in the block is a problem, and ends only this block.

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
        """It must be fixed."""
        self._add(Result.PROBLEM, found, mend)

    def not_checked(self, why: str, mend: str = "") -> None:
        """It could not be checked."""
        self._add(Result.NOT_CHECKED, why, mend)

    async def __aenter__(self) -> Self:
        """Start the clock."""
        await self._timeout.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        """Turn an error of the block into a finding. A cancellation goes on."""
        try:
            await self._timeout.__aexit__(kind, error, trace)
        except TimeoutError as late:
            error = late
        match error:
            case None:
                return False
            case TimeoutError():
                self.problem("No answer in time", self._mend)
            case BotpoolError():
                self.problem(str(error), self._mend)
            case Exception():
                # Whatever it is, the other checks go on.
                said = f"{type(error).__name__}: {error}"
                self.problem(f"The check itself failed with {said}", self._mend)
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
    """The findings about one engine, or about no engine, in order."""

    def __init__(self, engine: str | None = None) -> None:
        self.findings: list[Finding] = []
        self._engine = engine

    def check(self, name: str, mend: str = "", *, seconds: float = SECONDS) -> Check:
        """A new check. `mend` is what to do about an error that the check doesn't expect."""
        return Check(name, self._engine, mend, seconds, self.findings)
