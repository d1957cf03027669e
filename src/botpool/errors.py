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
    ├── EngineError
    │   ├── EngineUnavailable     no answer: what was asked may have happened or not
    │   └── EngineRefused         it answered, and won't
    │       ├── ContainerMissing
    │       └── ImageMissing
    └── Refused                   the database did nothing of what was asked
        ├── InvalidRequest        the caller asks for what can't be
        ├── StaleLease            the writer's assignment is over
        ├── TransitionRefused     the state machine knows no such step
        ├── ConstraintViolated    a row would break a promise
        └── DatabaseBusy          others hold what it needs; it may be tried again
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


class EngineError(BotpoolError):
    """An engine did not do what was asked."""


class EngineUnavailable(EngineError):
    """The engine does not answer.

    What was asked may have happened or not. It can be asked again.
    """


class EngineRefused(EngineError):
    """The engine refuses.

    To ask again is of no use.
    """


class ContainerMissing(EngineRefused):
    """There is no such container."""


class ImageMissing(EngineRefused):
    """The image is not on the host."""


class Refused(BotpoolError):
    """The database did nothing of what was asked.

    Whatever raises it has left no trace, so it is safe to ask again.
    """


class InvalidRequest(Refused):
    """The request can't be met as it is."""


class StaleLease(Refused):
    """The assignment is over: its lease is not the slot's current one."""


class TransitionRefused(Refused):
    """The state machine has no such transition."""


class ConstraintViolated(Refused):
    """A row would break a promise of the database."""


class DatabaseBusy(Refused):
    """Others hold what this needs."""
