"""Whether other clocks agree with this machine's."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from botpool.doctor.findings import Check

_MOST_SECONDS = 2.0


def now() -> datetime:
    """The time of this machine."""
    return datetime.now(UTC)


def check_clock(
    check: Check, whose: str, theirs: datetime, asked: datetime, answered: datetime
) -> None:
    """Warn if a clock is off. It was read at some time between `asked` and `answered`."""
    ahead = (theirs - answered).total_seconds()
    behind = (asked - theirs).total_seconds()
    off = max(ahead, behind)
    if off > _MOST_SECONDS:
        way = "ahead of" if ahead > 0 else "behind"
        check.warning(
            f"The clock of {whose} is {off:.0f} s {way} this machine's: times in logs and events"
            " don't fit together, and certificates and signatures may be refused",
            "Let a time server set both clocks, for example with chrony or systemd-timesyncd.",
        )
    else:
        check.ok(f"The clock of {whose} agrees with this machine's")
