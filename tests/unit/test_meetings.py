"""Which platform a meeting URL is of."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from botpool.errors import InvalidRequest
from botpool.meetings import platform_of, read_platform
from botpool.states import Platform

MEET, TEAMS, ZOOM = Platform.GOOGLE_MEET, Platform.MICROSOFT_TEAMS, Platform.ZOOM


@pytest.mark.parametrize(
    ("url", "platform"),
    [
        ("https://meet.google.com/abc-defg-hij", MEET),
        ("https://meet.google.com/abc-defg-hij?authuser=1", MEET),
        ("https://MEET.google.com/ABC-defg-hij", MEET),
        ("https://meet.google.com/lookup/abcdef", MEET),
        (
            "https://teams.microsoft.com/l/meetup-join/19%3ameeting_x%40thread.v2/0?context=%7b%7d",
            TEAMS,
        ),
        ("https://teams.microsoft.com/meet/2123456789012?p=abc", TEAMS),
        ("https://teams.live.com/meet/9312345678901?p=abc", TEAMS),
        ("https://gov.teams.microsoft.us/l/meetup-join/19%3ameeting_x/0", TEAMS),
        ("https://teams.cloud.microsoft/meet/2123456789012", TEAMS),
        ("https://zoom.us/j/1234567890", ZOOM),
        ("https://zoom.us/j/1234567890?pwd=abc#success", ZOOM),
        ("https://us02web.zoom.us/j/1234567890", ZOOM),
        ("https://company.zoom.us/my/some.one", ZOOM),
        ("https://us06web.zoom.us/wc/join/1234567890", ZOOM),
        ("https://app.zoom.us/wc/1234567890/join", ZOOM),
        ("https://events.zoom.us/w/1234567890", ZOOM),
        ("https://agency.zoomgov.com/j/1234567890", ZOOM),
        ("https://zoom.com/j/1234567890", ZOOM),
    ],
)
def test_the_platform_follows_from_the_url(url: str, platform: Platform) -> None:
    assert platform_of(url) is platform
    assert platform_of(url, platform) is platform


@pytest.mark.parametrize(
    "url",
    [
        "",
        "meet.google.com/abc-defg-hij",
        "http://meet.google.com/abc-defg-hij",
        "ftp://meet.google.com/abc-defg-hij",
        "https://meet.google.com/",
        "https://meet.google.com/abc",
        "https://meet.google.com.evil.example/abc-defg-hij",
        "https://evilmeet.google.com/abc-defg-hij",
        "https://meet.google.com@evil.example/abc-defg-hij",
        "https://meet.google.com:8443/abc-defg-hij",
        "https://meet.google.com/abc-defg-hij\nx",
        "https://meet.google.com/abc-defg-hij x",
        "https://notzoom.us/j/1234567890",
        "https://zoom.us.evil.example/j/1234567890",
        "https://zoom.us/pricing",
        "https://teams.microsoft.com/",
        "https://example.com/abc-defg-hij",
        "https://[meet.google.com/abc-defg-hij",
        "https://meet.google.com:99999/abc-defg-hij",
        f"https://zoom.us/j/1234567890?pwd={'a' * 2000}",
    ],
)
def test_a_url_of_no_meeting_is_refused_and_told_what_is_accepted(url: str) -> None:
    with pytest.raises(InvalidRequest, match=r"https://meet\.google\.com/abc-defg-hij or .*zoom"):
        platform_of(url)


def test_a_url_that_contradicts_the_platform_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="is a zoom link, but platform is google-meet"):
        platform_of("https://zoom.us/j/1234567890", MEET)


@pytest.mark.parametrize(
    ("name", "platform"), [("teams", TEAMS), ("microsoft-teams", TEAMS), ("zoom", ZOOM)]
)
def test_a_platform_is_known_by_its_names(name: str, platform: Platform) -> None:
    assert read_platform(name) is platform


def test_a_platform_that_is_none_is_told_what_there_is() -> None:
    with pytest.raises(InvalidRequest, match="google-meet, microsoft-teams, zoom, teams"):
        read_platform("webex")


@given(st.text(max_size=100), st.sampled_from(["", "https://", "https://zoom.us/j/", "https://x@"]))
def test_whatever_is_asked_it_is_a_platform_or_a_refusal(text: str, start: str) -> None:
    with suppress(InvalidRequest):
        assert platform_of(f"{start}{text}") in Platform
