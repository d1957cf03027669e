"""Whether a folder can be written to, and whether its disk has room."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from botpool.doctor.findings import Check

LEAST_BYTES = 2 * 2**30
LEAST_SHARE = 0.05

_GIGABYTE = 2**30


def why_not_writable(folder: Path) -> str | None:
    """Why a folder can't be written to, or made, by this user; None if it can. Makes nothing."""
    try:
        nearest = _nearest(folder)
    except PermissionError as error:
        return f"{error.filename} can't be entered by this user"
    if not nearest.is_dir():
        return f"{nearest} is not a folder"
    if not os.access(nearest, os.W_OK | os.X_OK):
        return f"{nearest} can't be written to by this user"
    return None


def check_disk(check: Check, folder: Path, mend: str) -> None:
    """Warn if the disk of a folder, or of where it would be made, is nearly full."""
    usage = shutil.disk_usage(_nearest(folder))
    free = f"{usage.free / _GIGABYTE:.1f} GB of {usage.total / _GIGABYTE:.1f} GB free for {folder}"
    if usage.free < max(LEAST_BYTES, usage.total * LEAST_SHARE):
        check.warning(f"Nearly full: {free}", mend)
    else:
        check.ok(free)


def is_folder(path: Path) -> bool:
    """Whether there is such a folder that this user can see."""
    try:
        return path.is_dir()
    except PermissionError:
        return False


def _nearest(path: Path) -> Path:
    """The path, or what there is of it."""
    return next(each for each in (path, *path.parents) if each.exists())
