"""What errors of PostgreSQL, asyncpg and the network mean: as our errors, and in plain words."""

from __future__ import annotations

import os
import re
import socket
import ssl
from contextlib import contextmanager
from typing import TYPE_CHECKING

import asyncpg

from botpool.errors import (
    BotpoolError,
    ConstraintViolated,
    DatabaseBusy,
    DatabaseUnfit,
    DatabaseUnreachable,
    InvalidRequest,
    SchemaUnfit,
    SettingsInvalid,
    SetupError,
    StaleLease,
    TransitionRefused,
)
from botpool.store.postgres.address import FORM

if TYPE_CHECKING:
    from collections.abc import Iterator

    from botpool.store.postgres.address import Address

# By an error's code, or how it begins. BP is ours: schema/functions/guards.sql.
_OURS: tuple[tuple[str, type[BotpoolError]], ...] = (
    ("BP002", StaleLease),
    ("BP", TransitionRefused),
    ("08", DatabaseUnreachable),
    ("22", InvalidRequest),
    ("25006", DatabaseUnreachable),  # the server is read-only
    ("23", ConstraintViolated),
    ("28", DatabaseUnreachable),  # it doesn't let us in
    ("3D", DatabaseUnreachable),  # it doesn't have the database
    ("40", DatabaseBusy),  # such as deadlocks
    ("42501", DatabaseUnfit),  # the user lacks a right
    ("42703", SchemaUnfit),  # a column is not there: a newer botpool has migrated the database
    ("42883", SchemaUnfit),  # nor a function
    ("42P01", SchemaUnfit),  # nor a table
    ("53", DatabaseUnreachable),  # too many connections, a full disk
    ("55P03", DatabaseBusy),  # a lock could not be acquired in time
    ("57", DatabaseUnreachable),  # the server shuts down, starts up, or ended the query
)

# What may pass by itself: no connection, a read-only server, a shortage, a shut-down or a start.
# Nothing else does: a wrong password, a missing database, a missing right, an unknown setting.
_PASSING = ("08", "25006", "53", "55", "57")

# asyncpg raises a bare ConnectionError then, and only its text says why.
_NO_TLS = "rejected SSL upgrade"

LOST = (OSError, asyncpg.InterfaceError, asyncpg.InternalClientError)
"""What asyncpg raises when the server can't be reached, or is lost."""


@contextmanager
def mapped_errors() -> Iterator[None]:
    """Turn PostgreSQL's errors into ours by their code; a lost server is `DatabaseUnreachable`."""
    try:
        yield
    except asyncpg.PostgresError as error:
        code = error.sqlstate or ""
        ours = next((ours for prefix, ours in _OURS if code.startswith(prefix)), None)
        if ours is None:
            raise
        if ours is ConstraintViolated:
            raise ConstraintViolated(
                reason(error), getattr(error, "constraint_name", None)
            ) from error
        raise ours(reason(error)) from error
    except LOST as error:
        raise DatabaseUnreachable(f"The database doesn't answer: {reason(error)}") from error


def cannot_connect(address: Address, error: Exception) -> SetupError:
    """Our error for one that was raised on connecting: `DatabaseUnreachable` if it may pass."""
    if isinstance(error, asyncpg.ClientConfigurationError):
        return SettingsInvalid(f"BOTPOOL_DATABASE_URL: {reason(error)}.")
    if isinstance(error, ValueError) and not isinstance(error, ssl.SSLError):
        return SettingsInvalid(FORM)
    kind = DatabaseUnfit if _lasts(error) else DatabaseUnreachable
    return kind(f"The database at {address} can't be used: {reason(error)}.")


def _lasts(error: Exception) -> bool:
    """Whether waiting won't help."""
    if isinstance(error, asyncpg.PostgresError):
        return not (error.sqlstate or "").startswith(_PASSING)
    untrusted = isinstance(error, ssl.SSLCertVerificationError)
    return untrusted or isinstance(error, asyncpg.InterfaceError) or _NO_TLS in str(error)


def reason(error: BaseException) -> str:
    """Why it failed, in a few words, without the numbers that Python adds."""
    match error:
        case ssl.SSLCertVerificationError():
            words = f"its certificate can't be trusted: {error.verify_message}"
        case ssl.SSLError():
            words = f"TLS failed: {error.reason or error}"
        case socket.gaierror():
            words = "its name can't be resolved"
        case TimeoutError():
            words = "no answer in time"
        case asyncpg.TargetServerAttributeNotMatched():
            words = "no server is such as target_session_attrs asks for"
        case ConnectionError() if _NO_TLS in str(error):
            words = "it has no TLS, which sslmode asks for"
        case OSError():
            # If a name has several addresses, asyncio makes one text of all their errors.
            numbers = [error.errno] if error.errno else re.findall(r"\[Errno (\d+)\]", str(error))
            words = ", ".join(dict.fromkeys(os.strerror(int(number)) for number in numbers))
        case _:
            words = ""
    return words or " ".join(str(error).split()).rstrip(".") or type(error).__name__
