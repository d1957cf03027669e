"""Where a database is, as its URL says: checked, and shown without its password."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Self
from urllib.parse import SplitResult, parse_qs, urlsplit

from botpool.errors import SettingsInvalid

FORM = (
    "BOTPOOL_DATABASE_URL is not the URL of a PostgreSQL server:"
    " it must look like postgresql://user:password@host:5432/database."
)
"""What to say of a URL that can't be read. Its own text may show a part of the password."""

_SSL_MODES = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
_FOR_WRITERS = ("any", "primary", "read-write")
_OF_LIBPQ = re.compile(
    r"connect_timeout|keepalives\w*|tcp_user_timeout|channel_binding|gssencmode|krbsrvname|sslcompression"
    r"|client_encoding|fallback_application_name|load_balance_hosts|require_auth"
)
"""Options for libpq alone. asyncpg would take them for settings of the server."""
_FILES = ("sslrootcert", "sslcert", "sslkey", "sslcrl")


@dataclass(frozen=True, slots=True)
class Address:
    """The URL of a database, and as text the same without user, password, and most options.

    `urls` are URLs for asyncpg: one for each server that it names, in order.
    """

    urls: tuple[str, ...]
    shown: str

    def __str__(self) -> str:
        """The URL without what is secret."""
        return self.shown

    @classmethod
    def read(cls, text: str) -> Self:
        """Read a URL. Raises `SettingsInvalid`, which shows no password."""
        try:
            url = urlsplit(text)
            found = parse_qs(url.query, strict_parsing=True) if url.query else {}
        except ValueError:
            raise SettingsInvalid(FORM) from None
        options = {name: values[-1] for name, values in found.items()}
        _check(url, options)
        account, at, servers = url.netloc.rpartition("@")
        where = "&".join(f"{name}={options[name]}" for name in ("host", "port") if name in options)
        shown = f"postgresql://{servers}{url.path}" + (f"?{where}" if where else "")
        each = servers.split(",") if "port" not in options else [servers]
        query = "&".join(
            option for option in url.query.split("&") if not _OF_LIBPQ.fullmatch(_name(option))
        )
        urls = (
            url._replace(netloc=f"{account}{at}{server}", query=query).geturl() for server in each
        )
        return cls(tuple(urls), shown)


def _name(option: str) -> str:
    return option.partition("=")[0]


def _check(url: SplitResult, options: dict[str, str]) -> None:
    # With a "/", "?" or "#" that isn't percent-encoded, a part of the password would be shown.
    split_password = url.fragment or ("@" in url.path + url.query and "@" not in url.netloc)
    if url.scheme not in {"postgresql", "postgres"} or split_password:
        raise SettingsInvalid(FORM)
    for name, values in {"sslmode": _SSL_MODES, "target_session_attrs": _FOR_WRITERS}.items():
        if options.get(name, values[0]) not in values:
            raise SettingsInvalid(
                f"BOTPOOL_DATABASE_URL: {name} must be one of {', '.join(values)}."
            )
    for name in _FILES:
        if (path := options.get(name)) and not os.access(path, os.R_OK):
            raise SettingsInvalid(
                f"BOTPOOL_DATABASE_URL: {name} names {path}, a file that this user can't read."
            )
