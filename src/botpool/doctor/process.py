"""The engine `process`: its command and its folder."""

from __future__ import annotations

import os
import shlex
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from botpool.doctor.folders import why_not_writable
from botpool.doctor.hosts import examine_room
from botpool.engines import SAMPLE_BOT
from botpool.engines.process.folder import TEMPORARY

if TYPE_CHECKING:
    from collections.abc import Sequence

    from botpool.doctor.findings import Check, Report
    from botpool.settings import Settings

_SETTING = "BOTPOOL_PROCESS_COMMAND"


async def examine_process(report: Report, settings: Settings) -> None:
    """Check the command and the folder of the slots."""
    async with report.check("command", f"Correct {_SETTING}.") as check:
        try:
            command = shlex.split(settings.process_command or "")
        except ValueError as error:
            check.problem(
                f"{_SETTING} can't be split into words: {error}", "Close the quotation marks."
            )
        else:
            _check_command(check, command)
    async with report.check("temporary files") as check:
        why = why_not_writable(TEMPORARY)
        if why is None:
            check.ok(f"This user can write to {TEMPORARY}, where each bot has a folder")
        else:
            check.problem(why, f"Let this user write to {TEMPORARY}.")
    async with report.check("slots folder") as check:
        folder = settings.data_dir / "slots"
        why = why_not_writable(folder)
        if why is None:
            check.ok(f"This user can write to {folder}")
        else:
            check.problem(why, "Set BOTPOOL_DATA_DIR to a folder that this user can write to.")
    await examine_room(report, settings, hosts=1)


def _check_command(check: Check, command: Sequence[str]) -> None:
    if not command:
        check.ok(f"The sample bot: {shlex.join(SAMPLE_BOT)}")
        return
    program, *arguments = command
    path = os.environ.get("PATH", os.defpath)
    if "/" in program and not Path(program).is_absolute():
        check.problem(
            f"{program} is relative to the slot's folder, in which the command runs",
            f"Use an absolute path in {_SETTING}.",
        )
    elif (found := shutil.which(program, path=path)) is None:
        why = "is not executable" if Path(program).exists() else "was not found"
        check.problem(
            f"{program} {why}",
            f"Set {_SETTING} to a program on the PATH, or to an absolute path.",
        )
    elif relative := [each for each in arguments if _is_file_here(each)]:
        check.warning(
            f"{' and '.join(relative)} would be relative to the slot's folder, in which the"
            " command runs",
            f"Use absolute paths in {_SETTING}.",
        )
    else:
        check.ok(found)


def _is_file_here(argument: str) -> bool:
    try:
        return not Path(argument).is_absolute() and Path(argument).is_file()
    except OSError:
        return False  # too long for a path
