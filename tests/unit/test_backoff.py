"""How long is waited after failures."""

from __future__ import annotations

from random import Random

import pytest

from botpool.tasks.backoff import Backoff, spread


def test_waits_double_from_the_first_to_the_longest() -> None:
    backoff = Backoff(0.5, 15)
    waits = [backoff.seconds(failures) for failures in range(1, 9)]
    assert waits == [0.5, 1, 2, 4, 8, 15, 15, 15]


def test_without_a_longest_they_double_on() -> None:
    assert Backoff(3).seconds(11) == 3 * 2**10


def test_before_any_failure_it_is_the_first() -> None:
    assert Backoff(3).seconds(0) == 3


@pytest.mark.parametrize("backoff", [Backoff(1, 60), Backoff(1)])
def test_however_many_failures_there_were_it_is_a_number(backoff: Backoff) -> None:
    assert 60 <= backoff.seconds(10**6) < 2**31


def test_waits_are_spread_so_that_what_waits_together_comes_back_apart() -> None:
    random = Random(0)  # noqa: S311 - the same numbers each time
    for waits, middle in (
        ([Backoff(0.5, 15).seconds(3, random) for _ in range(200)], 2),
        ([Backoff(0.5, 15).seconds(30, random) for _ in range(200)], 15),
        ([spread(10, random) for _ in range(200)], 10),
    ):
        assert len({*waits}) == 200
        assert 0.8 * middle <= min(waits) < 0.85 * middle
        assert 1.15 * middle < max(waits) <= 1.2 * middle
