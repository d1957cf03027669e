"""Where the API is, and with which key: what `BOTPOOL_URL` and `BOTPOOL_API_KEY` say.

Without them, the botpool that runs on this machine with the same data folder, as its admin. The
admin's key of this machine is never sent to another.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from botpool.access.admin_key import ADMIN_KEY
from botpool.cli.exits import CommandFailed, Exit
from botpool.serving_note import ServingNote, database_of, serving_notes
from botpool.settings import API_KEY, API_URL, KEY_FORM, is_key

if TYPE_CHECKING:
    from botpool.settings import Settings

_ELSEWHERE = f"for a botpool elsewhere, set {API_URL} and {API_KEY}"
_PREFIX = "/api/v1"


@dataclass(frozen=True, slots=True)
class Place:
    """Where the API is, a key for it, and what told us, to name it when it is wrong."""

    url: str
    key: str
    told_by: str
    key_told_by: str
    is_here: bool
    """Whether it is a botpool of this machine: no proxy leads there."""


def find_place(settings: Settings) -> Place:
    """Where the API is. Raises `CommandFailed`, whose sentence says what to do."""
    given = os.environ.get(API_URL)
    running, dead = serving_notes(settings.data_dir)
    ours = [note for note in running if _fits(note, settings)]
    if given:
        url = _read(given)
        is_here = url in {note.url for note in ours} | {settings.local_url}
        key, key_told_by = _key(settings, url, is_here=is_here)
        return Place(url, key, API_URL, key_told_by, is_here)
    if ours:
        url = ours[0].url
        key, key_told_by = _key(settings, url, is_here=True)
        return Place(url, key, f"process {ours[0].pid}", key_told_by, is_here=True)
    if os.environ.get(API_KEY):
        key, key_told_by = _key(settings, settings.local_url, is_here=False)
        return Place(settings.local_url, key, "the settings", key_told_by, is_here=True)
    raise CommandFailed(_nothing_runs(settings, running, dead), Exit.NO_ANSWER)


def _fits(note: ServingNote, settings: Settings) -> bool:
    """Whether it serves the database that the settings name, if they name one."""
    return settings.database_url is None or note.database == database_of(settings)


def _nothing_runs(settings: Settings, running: list[ServingNote], dead: list[ServingNote]) -> str:
    folder = settings.data_dir
    if running:
        return (
            f"The botpool that runs in {folder} uses another database than BOTPOOL_DATABASE_URL"
            f" names: run `botpool serve`; {_ELSEWHERE}."
        )
    if dead:
        return (
            f"No botpool runs in {folder} any more: process {dead[0].pid}, which listened on"
            f" {dead[0].url}, was killed. Run `botpool serve`; {_ELSEWHERE}."
        )
    return (
        f"No botpool runs in {folder}: run `botpool serve`. If it runs with another folder, set"
        f" BOTPOOL_DATA_DIR; {_ELSEWHERE}."
    )


def _read(text: str) -> str:
    try:
        url = urlsplit(text)
        fits = url.scheme in {"http", "https"} and bool(url.hostname) and (url.port or 1) > 0
    except ValueError:
        fits = False
    if not fits:
        raise CommandFailed(
            f"{API_URL} must be an http(s) URL, such as https://botpool.example.", Exit.SETUP
        )
    return (
        text.split("?", maxsplit=1)[0]
        .split("#", maxsplit=1)[0]
        .rstrip("/")
        .removesuffix(_PREFIX)
        .rstrip("/")
    )


def _key(settings: Settings, url: str, *, is_here: bool) -> tuple[str, str]:
    """A key, and what told us of it."""
    if key := os.environ.get(API_KEY):
        if not is_key(key):
            raise CommandFailed(f"{API_KEY} is not a key: it must be {KEY_FORM}.", Exit.KEY)
        return key, API_KEY
    if not is_here:
        raise CommandFailed(f"{API_KEY} must be set: a key for the botpool at {url}.", Exit.KEY)
    if settings.admin_key is not None:
        return settings.admin_key.get_secret_value(), "BOTPOOL_ADMIN_KEY"
    path = settings.data_dir / ADMIN_KEY
    try:
        key = path.read_text("ascii").strip()
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "it is no text"
        raise CommandFailed(
            f"The admin's key in {path} can't be read: {why}; run this as the user who runs"
            f" botpool, or set {API_KEY}.",
            Exit.KEY,
        ) from error
    if not is_key(key):
        raise CommandFailed(f"{path} doesn't contain a key ({KEY_FORM}).", Exit.KEY)
    return key, str(path)
