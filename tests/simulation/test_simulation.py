"""The simulation: it holds, it is the same each time, and it finds what is wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from botpool.engines.base import ContainerState
from botpool.reconciler import proof
from botpool.simulation import checks
from botpool.simulation.running import Run, server, simulate

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with server() as url:
        yield url


def test_every_promise_holds_whatever_goes_wrong_and_the_same_seed_is_the_same_again(
    url: str,
) -> None:
    """A hundred seeds are `make simulate`."""
    first, second = (simulate(url, Run(seed=2, hours=0.25)) for _ in range(2))
    assert first.broken is None, "\n".join(first.lines)
    assert first.transitions > 100
    assert first.checks > 15
    assert first.digest == second.digest
    assert first.lines == second.lines


def test_a_slot_that_is_freed_before_its_container_is_proved_stopped_is_found(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where containers are used again: elsewhere, one that runs is not removed."""
    monkeypatch.setattr(proof, "STOPPED", frozenset(ContainerState))
    seeds = (simulate(url, Run(seed=seed, hours=0.25)) for seed in range(13, 33))
    assert any(outcome.broken is not None for outcome in seeds)


def test_a_bot_that_lives_longer_than_it_may_while_botpool_works_is_found(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "longest_life", lambda *_: 60.0)
    outcome = simulate(url, Run(seed=2, hours=0.25))
    assert (outcome.broken or "").startswith("every bot ends within 60 s in which botpool works")
