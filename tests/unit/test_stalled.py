"""A run that stands still ends, and names the tests that do."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_CONFTEST = """
from tests.support.stalled import Stalled, end_run

def pytest_configure(config):
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Stalled(3, end_run))
"""

_TESTS = """
import signal

def test_that_ends():
    pass

def test_that_does_not():
    signal.pause()
"""


_STUBBORN = """
import signal

def test_that_takes_its_first_time_limit_for_nothing():
    try:
        signal.pause()
    except BaseException:
        signal.pause()

def test_after_it():
    pass
"""


def test_a_time_limit_that_was_heard_by_nobody_comes_again(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(
        "from tests.support import stalled\n"
        "stalled._AGAIN = 0.5\n"
        "from tests.support.stalled import pytest_timeout_set_timer\n"
    )
    (tmp_path / "test_it.py").write_text(_STUBBORN)
    run = _pytest(tmp_path, "-p", "pytest_timeout", "--timeout", "0.5")
    assert run.returncode == 1
    assert "1 failed, 1 passed" in run.stdout


def test_a_run_that_stands_still_ends_and_says_where(tmp_path: Path) -> None:
    """The process of a worker that waits for ever is gone, with its stack printed."""
    (tmp_path / "conftest.py").write_text(_CONFTEST)
    (tmp_path / "test_it.py").write_text(_TESTS)
    run = _pytest(tmp_path, "-p", "xdist", "-n", "1")
    assert run.returncode == 1
    assert "under way: ['test_it.py::test_that_does_not']" in run.stdout
    assert "in test_that_does_not" in run.stderr


def _pytest(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options, "-p", "no:cacheprovider", "-c", "/dev/null",
         "--rootdir", folder, folder],
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
