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
    """Why this user can't write to a folder, or create it; None if it can. Creates nothing."""
    try:
        nearest = _nearest(folder)
    except PermissionError as error:
        return f"This user can't enter {error.filename}"
    if not nearest.is_dir():
        return f"{nearest} is not a folder"
    if not os.access(nearest, os.W_OK | os.X_OK):
        return f"This user can't write to {nearest}"
    return None


def check_disk(check: Check, folder: Path, mend: str) -> None:
    """Warn if the disk of a folder, or of the place where it would be created, is nearly full."""
    usage = shutil.disk_usage(_nearest(folder))
    free = f"{usage.free / _GIGABYTE:.1f} GB of {usage.total / _GIGABYTE:.1f} GB free for {folder}"
    if usage.free < max(LEAST_BYTES, usage.total * LEAST_SHARE):
        check.warning(f"Nearly full: {free}", mend)
    else:
        check.ok(free)


def is_folder(path: Path) -> bool:
    """Whether this is a folder that this user can see."""
    try:
        return path.is_dir()
    except PermissionError:
        return False


def _nearest(path: Path) -> Path:
    """The path, or the closest parent that exists."""
    return next(each for each in (path, *path.parents) if each.exists())
