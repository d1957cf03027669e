"""How a command ends: its exit codes, and the errors that lead to them."""

from __future__ import annotations

from enum import IntEnum

from botpool.errors import BotpoolError


class Exit(IntEnum):
    """The exit codes. Their numbers never change."""

    DONE = 0
    FAILED = 1
    SETUP = 2
    DATABASE_AWAY = 3
    NO_ANSWER = 4
    NOT_BOTPOOL = 5
    KEY = 6
    NOT_FOUND = 7
    TOO_MANY = 8
    UNAVAILABLE = 9
    BOT_FAILED = 10
    BOT_CANCELLED = 11
    TOO_LATE = 12
    INTERRUPTED = 130
    PIPE_CLOSED = 141


MEANINGS = {
    Exit.DONE: "it is done; `serve` after Ctrl-C or SIGTERM, too",
    Exit.FAILED: "botpool refused it, or `doctor` found a problem",
    Exit.SETUP: "something must be set up differently, or the command line is wrong",
    Exit.DATABASE_AWAY: "the database is away, or takes no writes; trying again may help",
    Exit.NO_ANSWER: "no botpool answers: none runs here, or nothing is at `BOTPOOL_URL`",
    Exit.NOT_BOTPOOL: "what answers at `BOTPOOL_URL` is not botpool, or an older one",
    Exit.KEY: "there is no key, it is not valid, or it doesn't allow this",
    Exit.NOT_FOUND: "there is no such bot, slot, host, project, key, webhook or delivery",
    Exit.TOO_MANY: "too many requests, bots or wrong keys (429); try again later",
    Exit.UNAVAILABLE: "botpool answers, but can't do its work now (503); try again later",
    Exit.BOT_FAILED: "`bots create --wait`: the bot is `FATAL`",
    Exit.BOT_CANCELLED: "`bots create --wait`: the bot was stopped before it was in its call",
    Exit.TOO_LATE: "`bots create --wait --timeout`: the time was over first",
    Exit.INTERRUPTED: "ended by Ctrl-C",
    Exit.PIPE_CLOSED: "what read the output, such as `head`, has ended",
}


class CommandFailed(BotpoolError):
    """The command failed.

    Its message is a sentence for the user; `code` is the exit code.
    """

    def __init__(self, message: str, code: Exit = Exit.FAILED) -> None:
        super().__init__(message)
        self.code = code

    @property
    def may_pass(self) -> bool:
        """Whether it may pass by itself: whoever watches tries again."""
        return self.code in {Exit.NO_ANSWER, Exit.TOO_MANY, Exit.UNAVAILABLE}
