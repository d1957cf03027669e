"""Every error that botpool raises on purpose.

The first line of a class's docstring is its default message.

    BotpoolError
    ├── SetupError                botpool can't start; one sentence says what to fix
    │   ├── SettingsInvalid
    │   ├── EmbeddedPostgresFailed
    │   ├── DatabaseUnreachable   it may pass by itself
    │   ├── DatabaseUnfit         it must be set up differently
    │   │   └── DatabaseTooOld
    │   ├── SchemaTooNew
    │   └── SchemaUnfit
    ├── NotFound
    │   ├── BotNotFound
    │   ├── SlotNotFound
    │   ├── HostNotFound
    │   ├── KeyNotFound
    │   ├── ProjectNotFound
    │   ├── WebhookNotFound
    │   ├── DeliveryNotFound
    │   └── SessionNotFound
    ├── Unauthorized              the request has no valid key or token
    ├── Forbidden                 the key is valid, but not for this
    ├── TooManyRequests           the key is used too fast
    │   └── TooManyWrongKeys      of one address
    ├── EngineError
    │   ├── EngineUnavailable     no answer: the call may or may not have taken effect
    │   │   └── HostUnreachable   its host did not answer at all
    │   └── EngineRefused         the engine answered no
    │       ├── ContainerMissing
    │       ├── ImageMissing      a pull brings it
    │       └── NoImage           no image is set for the platform
    ├── AddressRefused            a callback's host is not public
    └── Refused                   the database changed nothing
        ├── InvalidRequest        the request can't be carried out
        │   ├── InvalidPosition
        │   ├── InvalidCursor
        │   ├── MeetingUrlUnknown
        │   ├── PlatformMismatch
        │   ├── QueueTimeoutOutOfBounds
        │   ├── CallbackInvalid
        │   ├── CallbackPrivate
        │   └── DurationTooLong   longer than the project's bots may stay
        ├── PositionGone          some events after this position are deleted
        ├── StaleLease            the writer's assignment is over
        │   └── ReservationLost   another replica has the slot now
        ├── TransitionRefused     the state machine has no such step
        ├── ConstraintViolated    a row would break a constraint
        ├── SlotHasBot            its bot has to end first
        ├── DuplicateBot          a live bot has this deduplication key
        ├── TooManyBots           the project has as many live bots as it may
        ├── TooManyCreations      the project has created as many bots in a minute as it may
        ├── ProjectNameTaken
        ├── ProjectInUse          it has a live bot, or is the default project
        ├── WebhookPaused
        ├── BotLive               the bot has not ended, or its slot still has it
        ├── IdempotencyMismatch   another request used this idempotency key
        └── DatabaseBusy          the rows are locked; trying again is safe
"""

from __future__ import annotations

from botpool.models.storable import storable


class BotpoolError(Exception):
    """Something went wrong in botpool."""

    def __init__(self, message: str | None = None) -> None:
        doc = type(self).__doc__ or ""
        super().__init__(message or doc.partition("\n")[0])


class SetupError(BotpoolError):
    """botpool can't start as it is set up.

    Its message is one sentence for the operator; the command line prints it and exits with 2, or
    with 3 if the database is unreachable.
    """


class SettingsInvalid(SetupError):
    """A setting has a value that can't be used."""


class EmbeddedPostgresFailed(SetupError):
    """The embedded PostgreSQL could not be started."""


class DatabaseUnreachable(SetupError):
    """The database doesn't answer.

    Or it takes no writes now. It may be back without anybody's doing: trying again is safe.
    """


class DatabaseUnfit(SetupError):
    """The database can't be used as it is set up."""


class DatabaseTooOld(DatabaseUnfit):
    """The database server is older than PostgreSQL 14."""


class SchemaTooNew(SetupError):
    """The database was migrated by a newer botpool."""


class SchemaUnfit(SetupError):
    """The database's schema doesn't match this botpool."""


class NotFound(BotpoolError):
    """Not found."""


class BotNotFound(NotFound):
    """There is no such bot."""


class SlotNotFound(NotFound):
    """There is no such slot."""


class HostNotFound(NotFound):
    """There is no such host."""


class KeyNotFound(NotFound):
    """There is no such key."""


class ProjectNotFound(NotFound):
    """There is no such project."""


class WebhookNotFound(NotFound):
    """There is no such webhook."""


class DeliveryNotFound(NotFound):
    """There is no such delivery."""


class SessionNotFound(NotFound):
    """There is no such session."""


class Unauthorized(BotpoolError):
    """The request has no valid key or token."""


class Forbidden(BotpoolError):
    """The key doesn't allow this."""


class TooManyRequests(BotpoolError):
    """The key is used too often.

    It may be used again in `retry_after_seconds`.
    """

    def __init__(self, retry_after_seconds: int = 1) -> None:
        super().__init__()
        self.retry_after_seconds = retry_after_seconds


class TooManyWrongKeys(TooManyRequests):
    """Too many requests of this address have a key, a token or a code that is not valid."""


class EngineError(BotpoolError):
    """A call to an engine failed.

    The message is cut and cleaned so that the database can store it.
    """

    def __init__(self, message: str | None = None) -> None:
        if message is not None:
            message = storable(message)
        super().__init__(message)


class EngineUnavailable(EngineError):
    """The engine doesn't answer.

    The call may or may not have taken effect. Trying again is safe.
    """


class HostUnreachable(EngineUnavailable):
    """The host doesn't answer.

    Nothing of the call failed there. The host is healthy when it answers again.
    """


class EngineRefused(EngineError):
    """The engine refused the call.

    Trying again won't help.
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
    """The database refused the change.

    Nothing was written, so trying again is safe.
    """


class InvalidRequest(Refused):
    """The request is not valid.

    `field` is what is wrong in it, if it is one field.
    """

    field: str | None = None


class InvalidPosition(InvalidRequest):
    """There is no such position in the stream."""


class InvalidCursor(InvalidRequest):
    """The cursor is not the `nextCursor` of a previous page."""

    field = "cursor"


class MeetingUrlUnknown(InvalidRequest):
    """The URL is no link to a meeting of a platform that botpool knows."""

    field = "meeting_url"


class PlatformMismatch(InvalidRequest):
    """The URL belongs to another platform than the one that is asked for."""

    field = "platform"


class QueueTimeoutOutOfBounds(InvalidRequest):
    """The queue timeout is longer than `BOTPOOL_MAX_QUEUE_TIMEOUT_MS`."""

    field = "queue_timeout_ms"


class CallbackInvalid(InvalidRequest):
    """The callback URL is not an http or https URL that botpool can post to."""

    field = "callback_url"


class CallbackPrivate(InvalidRequest):
    """The callback URL leads to a private address."""

    field = "callback_url"


class DurationTooLong(InvalidRequest):
    """The project's bots may not stay that long."""

    field = "max_duration_ms"


class PositionGone(Refused):
    """The stream doesn't go back to this position.

    The reader has to begin without a position.
    """


class StaleLease(Refused):
    """The assignment is over: its lease is not the slot's current one."""


class ReservationLost(StaleLease):
    """Another replica has the slot now."""


class TransitionRefused(Refused):
    """The state machine has no such transition."""


class ConstraintViolated(Refused):
    """A row would break a constraint of the database.

    `constraint` is its name.
    """

    def __init__(self, message: str | None = None, constraint: str | None = None) -> None:
        super().__init__(message)
        self.constraint = constraint


class SlotHasBot(Refused):
    """The slot has a bot: stop the bot first, or drain the slot.

    `bot_id` is its id.
    """

    def __init__(self, slot_name: str, bot_id: int) -> None:
        super().__init__(
            f"{slot_name} has bot {bot_id}: stop the bot first, or drain the slot, and it is"
            " deleted when the bot has ended."
        )
        self.bot_id = bot_id


class DuplicateBot(Refused):
    """Another bot has this deduplication key and hasn't ended yet.

    `bot_id` is its id.
    """

    def __init__(self, bot_id: int) -> None:
        super().__init__(f"Bot {bot_id} has this deduplication key and hasn't ended yet.")
        self.bot_id = bot_id


class TooManyBots(Refused):
    """The project has as many bots at once as it may have."""


class TooManyCreations(Refused):
    """The project has created as many bots within a minute as it may.

    It may create another in `retry_after_seconds`.
    """

    def __init__(self, most: int = 0, retry_after_seconds: int = 1) -> None:
        super().__init__(
            f"The project may create {most} bots a minute, and has:"
            f" try again in {retry_after_seconds} s."
        )
        self.retry_after_seconds = retry_after_seconds


class ProjectNameTaken(Refused):
    """Another project has this name."""


class ProjectInUse(Refused):
    """The project can't be deleted."""


class WebhookPaused(Refused):
    """The webhook is paused."""


class BotLive(Refused):
    """The bot has not ended yet, or its container is still there."""


class IdempotencyMismatch(Refused):
    """Another request already used this idempotency key."""


class DatabaseBusy(Refused):
    """Other transactions hold the rows that this needs."""
