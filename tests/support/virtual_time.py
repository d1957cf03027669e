"""Tests in virtual time: the event loop, and so the clock, of the simulation."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any

from botpool.simulation.virtual_time import run_virtually

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine


def virtual(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test in virtual time."""

    @wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        run_virtually(test(*args, **kwargs))

    return run
