"""Which platform a meeting URL belongs to."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from botpool.errors import InvalidRequest, MeetingUrlUnknown, PlatformMismatch
from botpool.states import PLATFORM_ALIASES, Platform

LONGEST_URL = 2000

ACCEPTED = (
    "https://meet.google.com/abc-defg-hij",
    "https://teams.microsoft.com/l/meetup-join/…",
    "https://teams.live.com/meet/…",
    "https://zoom.us/j/…",
)
"""An example of each accepted form."""


PLATFORM_NAMES = (*Platform, *PLATFORM_ALIASES)
"""Every name that a caller may use for a platform."""

# A platform, its hosts, and the paths of its meetings.
_FORMS: tuple[tuple[Platform, re.Pattern[str], re.Pattern[str]], ...] = (
    (
        Platform.GOOGLE_MEET,
        re.compile(r"meet\.google\.com"),
        re.compile(r"/(?:[a-z]{3}-[a-z]{4}-[a-z]{3}|lookup/[\w-]+)/?", re.IGNORECASE),
    ),
    (
        Platform.MICROSOFT_TEAMS,
        re.compile(r"(?:[\w-]+\.)?teams\.(?:microsoft\.(?:com|us)|live\.com|cloud\.microsoft)"),
        re.compile(r"/(?:l/meetup-join/.+|meet/\d+/?)"),
    ),
    (
        Platform.ZOOM,
        re.compile(r"(?:[\w-]+\.)*(?:zoom\.us|zoom\.com|zoom\.com\.cn|zoomgov\.com)"),
        re.compile(r"/(?:[jw]/\d+|s/\d+|my/[\w.-]+|wc/(?:join/)?\d+(?:/join)?)/?"),
    ),
)


FORMS = tuple(
    (platform, hosts.pattern, paths.pattern, bool(paths.flags & re.IGNORECASE))
    for platform, hosts, paths in _FORMS
)
"""The same for a page that recognises a platform as one types: as texts that browsers know, too."""


def read_platform(name: str) -> Platform:
    """The platform with this name; `teams` is one too. Raises `InvalidRequest`."""
    try:
        return PLATFORM_ALIASES.get(name) or Platform(name)
    except ValueError:
        raise InvalidRequest(f"platform must be one of {', '.join(PLATFORM_NAMES)}.") from None


def platform_of(meeting_url: str, wanted: Platform | None = None) -> Platform:
    """The platform of a meeting URL.

    Raises `MeetingUrlUnknown`, or `PlatformMismatch` if it belongs to another one than `wanted`.
    """
    found = _found(meeting_url)
    if found is None:
        forms = " or ".join(ACCEPTED)
        raise MeetingUrlUnknown(f"meetingUrl is not a meeting link. Expected {forms}.")
    if wanted not in {None, found}:
        raise PlatformMismatch(f"meetingUrl is a {found} link, but platform is {wanted}.")
    return found


def _found(meeting_url: str) -> Platform | None:
    try:
        url = urlsplit(meeting_url)
        port = url.port
    except ValueError:
        return None
    if url.scheme != "https" or "@" in url.netloc or port not in {None, 443}:
        return None
    if len(meeting_url) > LONGEST_URL or not meeting_url.isprintable() or " " in meeting_url:
        return None
    host = (url.hostname or "").rstrip(".")
    for platform, hosts, paths in _FORMS:
        if hosts.fullmatch(host) and paths.fullmatch(url.path):
            return platform
    return None
