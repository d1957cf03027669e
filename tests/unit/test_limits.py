"""How fast a key may be used, and how many wrong ones an address may send."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from botpool.access.limits import RateLimits, WrongKeys
from botpool.errors import TooManyRequests, TooManyWrongKeys
from botpool.models.keys import ApiKey
from botpool.states import Role


class Clock:
    """The time that a replica measures by itself."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def key(key_id: int, role: Role = Role.CLIENT) -> ApiKey:
    return ApiKey(
        id=key_id,
        name="notes",
        role=role,
        project_id=None,
        prefix="",
        created_at=datetime(2026, 1, 1, tzinfo=UTC),
        last_used_at=None,
        expires_at=None,
    )


def test_a_slow_limit_tells_how_long_to_wait() -> None:
    clock = Clock()
    limits = RateLimits(0.5, clock=clock)
    limits.take(key(1))
    clock.now += 0.5
    with pytest.raises(TooManyRequests) as raised:
        limits.take(key(1))
    assert raised.value.retry_after_seconds == 2
    clock.now += 1.5
    limits.take(key(1))


def test_a_rest_saves_up_no_more_than_the_burst() -> None:
    clock = Clock()
    limits = RateLimits(2, clock=clock)
    limits.take(key(1))
    clock.now += 3600
    for _ in range(4):
        limits.take(key(1))
    with pytest.raises(TooManyRequests):
        limits.take(key(1))


def test_limits_remember_a_bounded_number_of_keys() -> None:
    limits = RateLimits(1, most=2, clock=Clock())
    for key_id in (1, 2, 1, 3):
        limits.take(key(key_id))
    assert len(limits) == 2
    # Of the first two, the one that was used last is remembered.
    with pytest.raises(TooManyRequests):
        limits.take(key(1))
    for _ in range(2):
        limits.take(key(2))


@pytest.mark.parametrize(
    ("one", "another", "same"),
    [
        ("192.0.2.1", "192.0.2.2", False),
        ("192.0.2.1", "::ffff:192.0.2.1", True),
        ("2001:db8::1", "2001:db8::ffff:2", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:192.0.2.1", "::ffff:192.0.2.2", False),
    ],
)
def test_wrong_keys_are_counted_by_address_and_of_ipv6_by_network(
    one: str, another: str, same: bool
) -> None:
    wrong = WrongKeys(clock=Clock())
    for _ in range(20):
        wrong.count(one)
    with pytest.raises(TooManyWrongKeys) as raised:
        wrong.count(one)
    assert raised.value.retry_after_seconds == 1
    if same:
        with pytest.raises(TooManyWrongKeys):
            wrong.count(another)
    else:
        wrong.count(another)
