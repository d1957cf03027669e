"""`make` on a machine that lacks something, in a folder with a space."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from tests.support.command import run

MAKEFILE = Path(__file__).parents[2] / "Makefile"
WITHOUT_ENSUREPIP = f"""#!/bin/sh
if [ "$1" = -m ]; then
  mkdir -p .venv/bin && touch .venv/bin/python
  echo "ensurepip is not available"
  exit 1
fi
exec {sys.executable} "$@"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "a folder"
    folder.mkdir()
    shutil.copy(MAKEFILE, folder)
    return folder


async def make(folder: Path, python: str) -> tuple[int | None, str]:
    """Make the virtual environment."""
    code, output, error = await run(
        *("make", "-C", str(folder), ".venv/bin/pip"), f"PYTHON={python}"
    )
    return code, output + error


async def test_without_ensurepip_it_says_what_to_install_and_leaves_nothing_half_made(
    folder: Path,
) -> None:
    python = folder / "python"
    python.write_text(WITHOUT_ENSUREPIP)
    python.chmod(0o755)
    for _ in range(2):
        code, said = await make(folder, "./python")
        assert code == 2
        assert "on Debian and Ubuntu, install python3-venv" in said
        assert not (folder / ".venv").exists()


async def test_what_is_half_made_is_made_again(folder: Path) -> None:
    half = folder / ".venv" / "bin"
    half.mkdir(parents=True)
    (half / "python").symlink_to(sys.executable)
    assert (await make(folder, sys.executable))[0] == 0
    code, said, _ = await run(str(half / "python"), "-m", "pip", "--version")
    assert (code, said.split()[0]) == (0, "pip")


async def test_an_old_python_is_told_so(folder: Path) -> None:
    code, said = await make(folder, "false")
    assert (code, "botpool needs Python 3.11 or later" in said) == (2, True)
