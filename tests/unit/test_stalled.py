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


def test_a_run_that_stands_still_ends_and_says_where(tmp_path: Path) -> None:
    """The process of a worker that waits for ever is gone, with its stack printed."""
    (tmp_path / "conftest.py").write_text(_CONFTEST)
    (tmp_path / "test_it.py").write_text(_TESTS)
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-n", "1", "-p", "no:cacheprovider", "-c", "/dev/null",
         "--rootdir", tmp_path, tmp_path],
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": "-p xdist"},
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert run.returncode == 1
    assert "under way: ['test_it.py::test_that_does_not']" in run.stdout
    assert "in test_that_does_not" in run.stderr
