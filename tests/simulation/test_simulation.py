"""The simulation: it holds, it is the same each time, and it finds what is wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from botpool.engines.base import ContainerState
from botpool.reconciler import release
from botpool.simulation.running import Run, server, simulate

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with server() as url:
        yield url


@pytest.mark.parametrize("seed", [1, 2])
def test_every_promise_holds_whatever_goes_wrong(url: str, seed: int) -> None:
    outcome = simulate(url, Run(seed=seed, hours=0.5))
    assert outcome.broken is None, "\n".join(outcome.lines)
    assert outcome.transitions > 100
    assert outcome.checks > 20


def test_the_same_seed_is_the_same_again(url: str) -> None:
    first, second = (simulate(url, Run(seed=3, hours=0.2)) for _ in range(2))
    assert first.digest == second.digest
    assert first.lines == second.lines


def test_a_slot_that_is_freed_before_its_container_is_proved_stopped_is_found(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(release, "STOPPED", frozenset(ContainerState))
    seeds = (simulate(url, Run(seed=seed, hours=0.5)) for seed in range(1, 6))
    assert any(outcome.broken is not None for outcome in seeds)
