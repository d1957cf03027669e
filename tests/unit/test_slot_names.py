"""What slots are called, and which slot a name is of."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from botpool.models.slots import SlotName, read_slot_name, slot_name
from botpool.states import PLATFORM_ALIASES, Platform

MEET, TEAMS, ZOOM = Platform.GOOGLE_MEET, Platform.MICROSOFT_TEAMS, Platform.ZOOM


@pytest.mark.parametrize(
    ("platform", "number", "name"),
    [
        (ZOOM, 1, "pool-zoom-001"),
        (MEET, 99, "pool-google-meet-099"),
        (TEAMS, 999, "pool-microsoft-teams-999"),
        (ZOOM, 1000, "pool-zoom-1000"),
        (ZOOM, 100_000, "pool-zoom-100000"),
    ],
)
def test_a_slot_is_named_after_its_platform_and_its_number(
    platform: Platform, number: int, name: str
) -> None:
    assert slot_name(platform, number) == name


@pytest.mark.parametrize("lenient", [False, True])
@given(platform=st.sampled_from(Platform), number=st.integers(0, 10**9 - 1))
def test_what_a_slot_is_called_is_read_as_that_slot(
    platform: Platform, number: int, *, lenient: bool
) -> None:
    name = slot_name(platform, number)
    assert read_slot_name(name, lenient=lenient) == SlotName(platform, number)


@pytest.mark.parametrize(
    ("text", "slot"),
    [
        ("meeboter-pool-teams-007", SlotName(TEAMS, 7)),
        ("meeboter-pool-zoom-007", SlotName(ZOOM, 7)),
        ("a-pool-pool-google-meet-012", SlotName(MEET, 12)),
        ("pool-teams-007", SlotName(TEAMS, 7)),
        ("pool-zoom-0007", SlotName(ZOOM, 7)),
    ],
)
def test_what_other_pools_call_a_slot_is_read_where_that_is_wanted(
    text: str, slot: SlotName
) -> None:
    assert read_slot_name(text, lenient=True) == slot
    assert read_slot_name(text) is None


@pytest.mark.parametrize("alias", PLATFORM_ALIASES)
def test_a_platform_that_has_another_name_is_known_by_it(alias: str) -> None:
    assert read_slot_name(f"pool-{alias}-001", lenient=True) == (PLATFORM_ALIASES[alias], 1)


@pytest.mark.parametrize(
    "text",
    [
        *("", "zoom", "pool-zoom", "pool-zoom-", "pool-zoom-7", "pool-zoom-07", "pool-webex-007"),
        *("pool-zoom-007 ", " pool-zoom-007", "pool-zoom-007\n", "pool-zoom-007-abcdef"),
        *("mypool-zoom-007", "POOL-ZOOM-007", "pool-zoom--07", "pool-zoom-0000000007"),
    ],
)
def test_what_is_no_slots_name_is_read_as_none(text: str) -> None:
    assert read_slot_name(text) is None
    assert read_slot_name(text, lenient=True) is None
