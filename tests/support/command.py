"""The command line, run as an operator does."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path


async def run(*command: str, **environment: str) -> tuple[int | None, str, str]:
    """Run a command and return its exit code, standard output and standard error."""
    process = await asyncio.create_subprocess_exec(
        *command,
        env={"PATH": os.environ["PATH"], **environment},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    output, error = await process.communicate()
    return process.returncode, output.decode(), error.decode()


async def botpool(*args: str, **settings: str) -> tuple[int | None, str, str]:
    """Run the command line with these settings."""
    environment = {f"BOTPOOL_{name.upper()}": value for name, value in settings.items()}
    return await run(str(Path(sys.executable).parent / "botpool"), *args, **environment)
