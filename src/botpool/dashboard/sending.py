"""The form that sends bots: what was typed, and the requests that it asks for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson
from pydantic import ValidationError

from botpool.api.shapes import CreateBot
from botpool.errors import InvalidRequest
from botpool.meetings import platform_of

if TYPE_CHECKING:
    from botpool.dashboard.page import Form
    from botpool.models.bots import Bot

MOST = 100
"""How many bots one form may send."""


@dataclass(frozen=True, kw_only=True)
class Sending:
    """What was typed into the form, and what is wrong with it."""

    urls: str = ""
    count: str = "1"
    name: str = ""
    priority: str = ""
    wait_seconds: str = ""
    config: str = ""
    project: str = ""
    error: str = ""

    @classmethod
    def of(cls, form: Form, error: str) -> Sending:
        """The form as it was typed, to be shown again."""
        return cls(
            urls=form.text("meetingUrl"),
            count=form.text("count", "1"),
            name=form.text("name"),
            priority=form.text("priority"),
            wait_seconds=form.text("wait"),
            config=form.text("config"),
            project=form.text("project"),
            error=error,
        )


def asked(form: Form) -> list[CreateBot]:
    """The requests of a form. Raises `InvalidRequest`, and then none is to be sent."""
    urls = form.text("meetingUrl").split()
    if not urls:
        raise InvalidRequest("Paste the URL of a meeting first.")
    count = form.number("count", 1)
    if not 1 <= count * len(urls) <= MOST:
        raise InvalidRequest(f"Send between 1 and {MOST} bots at a time.")
    fields: dict[str, Any] = {}
    if form.text("name"):
        fields["bot_display_name"] = form.text("name")
    if form.text("priority"):
        fields["priority"] = form.number("priority", 0)
    if form.text("wait"):
        fields["queue_timeout_ms"] = form.number("wait", 0) * 1000
    if form.text("project"):
        fields["project_id"] = form.number("project", 0)
    fields["config"] = _config(form.text("config"))
    requests = []
    for url in urls:
        try:
            platform_of(url)
            requests += [CreateBot(meeting_url=url, **fields)] * count
        except InvalidRequest as error:
            raise InvalidRequest(f"{url}: {error}") from None
        except ValidationError as error:
            first = error.errors()[0]
            raise InvalidRequest(f"{first['loc'][-1]}: {first['msg']}.") from None
    return requests


def again(bot: Bot) -> CreateBot:
    """The request for a bot like another one. It has no deduplication key: that is the other's."""
    return CreateBot(
        project_id=bot.project_id,
        meeting_url=bot.meeting_url,
        bot_display_name=bot.bot_display_name,
        queue_timeout_ms=bot.queue_timeout_ms,
        priority=bot.priority,
        max_launch_attempts=bot.max_launch_attempts,
        relaunch_in_call=bot.relaunch_in_call,
        callback_url=bot.callback_url,
        metadata=bot.metadata,
        config=bot.config,
    )


def _config(text: str) -> dict[str, Any]:
    if not text:
        return {}
    try:
        config = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"The configuration is not JSON: {error}.") from None
    if not isinstance(config, dict):
        raise InvalidRequest("The configuration must be a JSON object.")
    return config
