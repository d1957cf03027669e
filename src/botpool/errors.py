"""Every error that botpool raises on purpose.

The first line of a class's docstring is its default message.

    BotpoolError
    ├── SetupError                the program can't start; one sentence says what to mend
    │   ├── SettingsInvalid
    │   ├── EmbeddedPostgresFailed
    │   ├── DatabaseUnreachable
    │   ├── DatabaseTooOld
    │   └── SchemaTooNew
    ├── NotFound
    │   ├── BotNotFound
    │   └── SlotNotFound
    ├── InvalidRequest            the caller asks for what can't be
    ├── StaleLease                the writer's assignment is over
    └── TransitionRefused         the database knows no such step
"""

from __future__ import annotations


class BotpoolError(Exception):
    """Something went wrong in botpool."""

    def __init__(self, message: str | None = None) -> None:
        doc = type(self).__doc__ or ""
        super().__init__(message or doc.partition("\n")[0])


class SetupError(BotpoolError):
    """botpool can't start as it is set up.

    Its message is one sentence for the operator; the command line prints it and exits with 2.
    """


class SettingsInvalid(SetupError):
    """A setting has a value that can't be used."""


class EmbeddedPostgresFailed(SetupError):
    """The embedded PostgreSQL could not be started."""


class DatabaseUnreachable(SetupError):
    """The database does not answer."""


class DatabaseTooOld(SetupError):
    """The database server is older than PostgreSQL 14."""


class SchemaTooNew(SetupError):
    """The database was migrated by a newer botpool."""


class NotFound(BotpoolError):
    """There is no such thing."""


class BotNotFound(NotFound):
    """There is no such bot."""


class SlotNotFound(NotFound):
    """There is no such slot."""


class InvalidRequest(BotpoolError):
    """The request can't be met as it is."""


class StaleLease(BotpoolError):
    """The assignment is over: its lease is not the slot's current one."""


class TransitionRefused(BotpoolError):
    """The state machine has no such transition."""
