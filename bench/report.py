"""What was measured, as a table for the eye and as bench/README.md."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from rich.table import Table

from botpool import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence

README = Path(__file__).with_name("README.md")

COLUMNS = ("measure", "ours", "limit", "unit", "ratio", "spread", "wanted")


@dataclass(frozen=True)
class Measure:
    """Ours against a limit that was measured beside it, once a round. The ratio is what counts."""

    name: str
    unit: str
    ours: Sequence[float]
    limit: Sequence[float]
    at_least: float | None = None
    at_most: float | None = None

    @property
    def ratios(self) -> list[float]:
        return sorted(ours / limit for ours, limit in zip(self.ours, self.limit, strict=True))

    @property
    def holds(self) -> bool:
        ratio = median(self.ratios)
        return ratio >= (self.at_least or 0) and ratio <= (self.at_most or float("inf"))

    @property
    def row(self) -> tuple[str, ...]:
        wanted = (
            f"≥ {self.at_least}"
            if self.at_least
            else f"≤ {self.at_most}"
            if self.at_most
            else "told only"
        )
        return (
            self.name,
            _shown(median(self.ours)),
            _shown(median(self.limit)),
            self.unit,
            f"{median(self.ratios):.2f}",
            f"{self.ratios[0]:.2f} to {self.ratios[-1]:.2f}",
            wanted if self.holds else f"{wanted} **missed**",
        )


def _shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2f}"


@dataclass(frozen=True)
class Part:
    """Measures that belong together, and how they were taken."""

    title: str
    text: str
    measures: Sequence[Measure]

    def table(self) -> Table:
        table = Table(*COLUMNS, title=self.title, title_justify="left")
        for measure in self.measures:
            table.add_row(*measure.row)
        return table

    def markdown(self) -> str:
        rows = (COLUMNS, ("---",) * len(COLUMNS), *(measure.row for measure in self.measures))
        lines = "\n".join(f"| {' | '.join(row)} |" for row in rows)
        return f"## {self.title}\n\n{self.text}\n\n{lines}\n"


def write_readme(parts: Sequence[Part]) -> None:
    """Write what was measured, and on what."""
    machine = f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}"
    day = datetime.now(UTC).date().isoformat()
    README.write_text(
        f"""# Measurements

Written by `make bench` on {day}: botpool {__version__}, Python {platform.python_version()},
{machine}.

Machines differ and are noisy, so what counts is the ratio to a limit that was measured in the same
run, in turns. Each number is the median of the rounds; the spread is the ratio of the worst and of
the best round.

{chr(10).join(part.markdown() for part in parts)}""",
        encoding="utf-8",
    )
