"""`botpool doctor`: finds what is wrong with this installation."""

from __future__ import annotations

import asyncio
import dataclasses
from collections import Counter
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from botpool.cli.output import AsJson, print_json
from botpool.engines.base import EngineName
from botpool.errors import SettingsInvalid
from botpool.logs import configure_logs
from botpool.settings import load_settings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from botpool.doctor import Finding

_STYLES = {"ok": "green", "warning": "yellow", "problem": "bold red", "not checked": "dim"}


def doctor(
    as_json: AsJson = False,
    engine: Annotated[
        EngineName | None,
        typer.Option(help="Check this engine. By default, the engines that are in use."),
    ] = None,
    probe: Annotated[
        bool,
        typer.Option(
            "--probe",
            help="On Kubernetes, start a pod that calls botpool, and delete it afterwards.",
        ),
    ] = False,
) -> None:
    """Check the database, the settings and the engines, and say how to fix what is wrong.

    It needs no server, and changes nothing, except for --probe. The exit code is 1 if there is a
    problem, and 0 if there are only warnings.
    """
    findings = asyncio.run(_diagnose(engine, probe=probe))
    if as_json:
        print_json([dataclasses.asdict(finding) for finding in findings])
    else:
        console = Console()
        console.print(_table(findings))
        console.print(f"\n{_summary(findings)}")
    raise typer.Exit(any(finding.result == "problem" for finding in findings))


async def _diagnose(engine: EngineName | None, *, probe: bool) -> list[Finding]:
    # Imported here because it takes long, and no other command needs it.
    from botpool.doctor import diagnose, unreadable_settings  # noqa: PLC0415

    try:
        settings = load_settings()
    except SettingsInvalid as error:
        return [unreadable_settings(error)]
    configure_logs(settings.log_level, settings.log_format)
    return await diagnose(settings, engine, probe=probe)


def _table(findings: Sequence[Finding]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("check", max_width=16)
    table.add_column("result", max_width=8)
    table.add_column("found, and how to fix it", overflow="fold")
    for finding in findings:
        about = f"{finding.engine}: " if finding.engine else ""
        # As plain text: it may look like Rich's markup.
        found = Text(finding.found)
        if finding.mend:
            found.append(f"\n→ {finding.mend}", "bold")
        result = Text(finding.result, _STYLES[finding.result])
        table.add_row(Text(f"{about}{finding.check}"), result, found)
    return table


def _summary(findings: Sequence[Finding]) -> str:
    counts = Counter(str(finding.result) for finding in findings)
    plural = {result: f"{result}s" for result in ("warning", "problem")}
    return ", ".join(
        f"{count} {plural.get(result, result) if count > 1 else result}"
        for result in _STYLES
        if (count := counts[result])
    )
