"""Every error that botpool raises on purpose.

The first line of a class's docstring is its default message.

    BotpoolError
    ├── SetupError                the program can't start; one sentence says what to mend
    │   ├── SettingsInvalid
    │   ├── EmbeddedPostgresFailed
    │   ├── DatabaseUnreachable
    │   ├── DatabaseTooOld
    │   ├── SchemaTooNew
    │   └── SchemaUnfit
    ├── NotFound
    │   ├── BotNotFound
    │   ├── SlotNotFound
    │   └── KeyNotFound
    ├── Unauthorized              no key, or none that opens this
    ├── Forbidden                 a key that opens other things
    ├── TooManyRequests           a key that is used too fast
    ├── EngineError
    │   ├── EngineUnavailable     no answer: what was asked may have happened or not
    │   └── EngineRefused         it answered, and won't
    │       ├── ContainerMissing
    │       ├── ImageMissing      a pull brings it
    │       └── NoImage           none is set
    ├── AddressRefused            a callback's host is not public
    └── Refused                   the database did nothing of what was asked
        ├── InvalidRequest        the caller asks for what can't be
        │   └── InvalidPosition
        ├── PositionGone          what came after it is not all there any more
        ├── StaleLease            the writer's assignment is over
        │   └── ClaimLost         somebody else works on the slot by now
        ├── TransitionRefused     the state machine knows no such step
        ├── ConstraintViolated    a row would break a promise
        ├── DuplicateBot          a live bot has its deduplication key
        ├── IdempotencyMismatch   another request had its idempotency key
        └── DatabaseBusy          others hold what it needs; it may be tried again
"""

from __future__ import annotations

from botpool.texts import storable

_LONGEST_MESSAGE = 4000


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


class SchemaUnfit(SetupError):
    """The database's schema is not the one of this botpool."""


class NotFound(BotpoolError):
    """There is no such thing."""


class BotNotFound(NotFound):
    """There is no such bot."""


class SlotNotFound(NotFound):
    """There is no such slot."""


class KeyNotFound(NotFound):
    """There is no such key."""


class Unauthorized(BotpoolError):
    """The request has no key or token that opens this."""


class Forbidden(BotpoolError):
    """The key of the request does not open this."""


class TooManyRequests(BotpoolError):
    """The key of the request is used too fast.

    In `retry_after_seconds` it may be used again.
    """

    def __init__(self, retry_after_seconds: int = 1) -> None:
        super().__init__()
        self.retry_after_seconds = retry_after_seconds


class EngineError(BotpoolError):
    """An engine did not do what was asked.

    Whatever it says, the message can be stored.
    """

    def __init__(self, message: str | None = None) -> None:
        if message is not None:
            message = storable(message, _LONGEST_MESSAGE)
        super().__init__(message)


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


class NoImage(EngineRefused):
    """No image is set for the platform."""


class AddressRefused(BotpoolError):
    """The address is not public."""


class Refused(BotpoolError):
    """The database did nothing of what was asked.

    Whatever raises it has left no trace, so it is safe to ask again.
    """


class InvalidRequest(Refused):
    """The request can't be met as it is."""


class InvalidPosition(InvalidRequest):
    """There is no such position in the record."""


class PositionGone(Refused):
    """The record does not go back to this position.

    Begin without one.
    """


class StaleLease(Refused):
    """The assignment is over: its lease is not the slot's current one."""


class ClaimLost(StaleLease):
    """Somebody else works on the slot by now."""


class TransitionRefused(Refused):
    """The state machine has no such transition."""


class ConstraintViolated(Refused):
    """A row would break a promise of the database.

    `constraint` is the promise's name.
    """

    def __init__(self, message: str | None = None, constraint: str | None = None) -> None:
        super().__init__(message)
        self.constraint = constraint


class DuplicateBot(Refused):
    """A live bot has this deduplication key.

    `bot_id` is that bot's.
    """

    def __init__(self, bot_id: int) -> None:
        super().__init__(f"Bot {bot_id} is live and has this deduplication key.")
        self.bot_id = bot_id


class IdempotencyMismatch(Refused):
    """Another request had this idempotency key."""


class DatabaseBusy(Refused):
    """Others hold what this needs."""
