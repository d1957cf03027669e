"""Measure everything, print it, and write bench/README.md. Exit code 1 if a ratio is missed.

`python -m bench core engines` measures these parts only, and writes nothing. Only if they are
named: `coolify-long`, which takes more than ten minutes, and `kubernetes`, which needs a real one.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from pathlib import Path

from rich.console import Console

from bench import api, coolify, core, engines, kubernetes, pages, queue
from bench.report import write_readme
from botpool.logs import configure_logs
from testbed.network import leave_machine_network

PARTS = {
    "core": core.run,
    "queue": queue.run,
    "engines": engines.run,
    "coolify": coolify.run,
    "api": api.run,
    "pages": pages.run,
}
NAMED = {"coolify-long": coolify.run_long, "kubernetes": kubernetes.run}


async def main() -> int:
    console = Console()
    # Log lines are written as in production, to nowhere: their cost is part of what is measured.
    with open(os.devnull, "w") as nowhere:  # noqa: ASYNC230, PTH123
        configure_logs(style="json", stream=nowhere)
        with tempfile.TemporaryDirectory(prefix="bench-") as folder:
            parts = [
                await run(Path(folder), lambda text: console.print(f"… {text}"))
                for name, run in (PARTS | NAMED).items()
                if name in (sys.argv[1:] or PARTS)
            ]
    for part in parts:
        console.print(part.table())
    if not sys.argv[1:]:
        write_readme(parts)
    return 0 if all(measure.holds for part in parts for measure in part.measures) else 1


if __name__ == "__main__":
    leave_machine_network()
    sys.exit(asyncio.run(main()))
