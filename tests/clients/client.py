"""A caller with what openapi-python-client made: it creates a bot, and reads an error."""

import json
import sys

from made import AuthenticatedClient  # type: ignore[import-not-found]
from made.api.bots import create_bot, get_bot  # type: ignore[import-not-found]
from made.models import (  # type: ignore[import-not-found]
    CreateBot,
    CreateBotMetadata,
    CreatedBot,
    Problem,
)

client = AuthenticatedClient(base_url=sys.argv[1], token=sys.argv[2])
metadata = CreateBotMetadata.from_dict({"team": "sales"})
wanted = CreateBot(meeting_url="https://meet.google.com/abc-defg-hij", metadata=metadata)
created = create_bot.sync(client=client, body=wanted, idempotency_key="python")
assert isinstance(created, CreatedBot)
found = get_bot.sync(created.bot.id, client=client)
refused = create_bot.sync(client=client, body=CreateBot(meeting_url="https://example.com/"))
assert isinstance(refused, Problem)
print(
    json.dumps(
        {
            "meetingUrl": created.bot.meeting_url,
            "known": found.status is not None,
            "code": refused.code,
            "pointer": refused.errors[0].pointer,
        }
    )
)
