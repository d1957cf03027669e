"""Schemathesis as many callers: each of its requests comes from an address of its own.

It sends wrong keys, too, to see that they are refused; from one address these would be too many. A
header of its own cases would not do: it adds its key to these.
"""

from __future__ import annotations

from ipaddress import IPv4Address
from itertools import count
from typing import Any

import requests

_ADDRESSES = count(int(IPv4Address("10.0.0.1")))
_send = requests.Session.send


def _send_as_another(
    session: requests.Session, request: requests.PreparedRequest, **options: Any
) -> requests.Response:
    """Say who sends a request, as a proxy that botpool trusts does."""
    request.headers["X-Forwarded-For"] = str(IPv4Address(next(_ADDRESSES)))
    return _send(session, request, **options)


requests.Session.send = _send_as_another  # type: ignore[method-assign, assignment]
