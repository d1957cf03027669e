"""The API documentation: the OpenAPI document, and `/docs`, which shows it in Swagger UI.

botpool serves all of its files, and the page may load nothing from elsewhere. So it works without
the internet, and no foreign script runs where an admin's cookie is.
"""

import json
import re
from functools import cache
from importlib.resources import files
from typing import Annotated, Any

from fastapi import APIRouter, FastAPI, Header
from fastapi.responses import HTMLResponse, Response
from fastapi.routing import APIRoute
from pydantic.alias_generators import to_camel
from starlette.staticfiles import StaticFiles

from botpool.api.errors import errors_of_bodies
from botpool.api.events import BotChange, BotReport
from botpool.api.policy import policy
from botpool.api.wire import Problem

router = APIRouter(include_in_schema=False)

TAGS = {
    "bots": "Create bots, look at them, stop them.",
    "projects": "Who owns bots, keys and webhooks, and the limits of each.",
    "keys": "Make, list, rotate and revoke API keys.",
    "pool": "Slots, hosts, replicas and the queue, for operators.",
    "insights": "What happened in a time: launch times, load, failures, waits, costs.",
    "stream": "Events as they happen.",
    "sessions": "Browsers that are signed in, and links that sign one in.",
    "runtime": "What a bot's container calls, with its slot's token.",
    "health": "Whether botpool is alive and ready, for probes. These need no key.",
    "webhooks": "What botpool posts to you, where to, and what became of it.",
}
"""What each group of calls is for."""

_METHODS = {"get", "put", "post", "delete", "patch"}
_SCHEMAS = "#/components/schemas/"

_ASSETS = "/docs/assets"

_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>botpool: the API</title>
<link rel="icon" href="docs/assets/favicon-32x32.png">
<link rel="stylesheet" href="docs/assets/swagger-ui.css">
<div id="docs"></div>
<script src="docs/assets/swagger-ui-bundle.js"></script>
<script src="docs/start.js"></script>
"""

# A signed-in browser needs no key here: the header shows that the request comes from our page.
_START = """SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#docs",
  deepLinking: true,
  displayRequestDuration: true,
  validatorUrl: null,
  requestInterceptor: (request) => {
    request.headers["X-Botpool"] = "1";
    return request;
  },
});
"""

_POLICY = policy(
    script="'self'",
    style="'self'",
    img="'self' data:",  # its icons
    connect="'self'",
)


@router.get("/docs", response_class=HTMLResponse)
async def docs(response: Response) -> str:
    """The page."""
    response.headers["Content-Security-Policy"] = _POLICY
    return _PAGE


@router.get("/docs/start.js")
async def start() -> Response:
    """The script that starts it. A separate file, so that the page needs no inline script."""
    return Response(_START, media_type="text/javascript")


def operation_id(route: APIRoute) -> str:
    """The name of a call in generated clients: the name of its function, such as `createBot`."""
    return to_camel(route.name)


def add_docs(app: FastAPI) -> None:
    """Serve the document, and the page and its files."""
    framework = app.openapi

    @cache
    def openapi() -> dict[str, Any]:
        return _completed(framework())

    app.openapi_tags = [{"name": name, "description": text} for name, text in TAGS.items()]
    app.openapi = openapi  # type: ignore[method-assign]
    app.webhooks.include_router(_webhooks)
    app.include_router(router)
    # This package brings Swagger UI's files with each of its releases. We use none of its code.
    folder = files("fastapi_swagger").joinpath("resources")
    app.mount(_ASSETS, StaticFiles(directory=str(folder)), name="docs assets")


# The document

_webhooks = APIRouter(tags=["webhooks"], generate_unique_id_function=operation_id)

_WebhookId = Annotated[
    str, Header(alias="webhook-id", description="The same for each attempt of a delivery.")
]
_WebhookTimestamp = Annotated[
    int, Header(alias="webhook-timestamp", description="Seconds since 1970, of this attempt.")
]
_WebhookSignature = Annotated[
    str, Header(alias="webhook-signature", description="As Standard Webhooks defines it.")
]


@_webhooks.post("bot.status_changed", status_code=204)
async def bot_status_changed(
    event: BotChange, _: _WebhookId, __: _WebhookTimestamp, ___: _WebhookSignature
) -> None:
    """Learn that a bot has a new status. Answer with any 2xx; it is posted at least once."""


@_webhooks.post("bot.event", status_code=204)
async def bot_event(
    event: BotReport, _: _WebhookId, __: _WebhookTimestamp, ___: _WebhookSignature
) -> None:
    """Learn what a bot reports about its call. Answer with any 2xx; it is posted at least once."""


def _completed(document: dict[str, Any]) -> dict[str, Any]:
    """The document of the framework, and what generators of clients need beside it."""
    for calls in [*document["paths"].values(), *document["webhooks"].values()]:
        for call in (calls[method] for method in calls.keys() & _METHODS):
            call["summary"] = re.split(r"(?<=\.)\s", call.get("description", ""))[0]
            if "requestBody" not in call:
                _leave_out_errors_of_bodies(call["responses"])
    for calls in document["webhooks"].values():
        for call in calls.values():
            call["responses"].pop("422")
            call["security"] = []
    schemas = document["components"]["schemas"]
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    problem = Problem.model_json_schema(ref_template=f"{_SCHEMAS}{{model}}", mode="serialization")
    schemas.update(problem.pop("$defs"), Problem=problem)
    for schema in schemas.values():
        _say_defaults(schema)
    return _renamed(document, {f"{name}Out": name for name in _shown_names(schemas)})


def _say_defaults(schema: dict[str, Any]) -> None:
    """Say the defaults of fields in their descriptions.

    Generators for TypeScript take a field that has a default for one that is always there.
    """
    for field in schema.get("properties", {}).values():
        default = field.pop("default", None)
        if default not in (None, [], {}):
            said = f"By default `{json.dumps(default)}`."
            field["description"] = f"{field.get('description', '')} {said}".strip()


def _leave_out_errors_of_bodies(responses: dict[str, Any]) -> None:
    for status, answer in errors_of_bodies().items():
        if responses.get(str(status), {}).get("description") == answer["description"]:
            del responses[str(status)]


def _shown_names(schemas: dict[str, Any]) -> list[str]:
    """The names that answers have outside: those of our classes, without what tells them apart."""
    return [name.removesuffix("Out") for name in schemas if name.endswith("Out")]


def _renamed(document: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    """The document, with schemas under other names."""

    def walk(node: Any) -> Any:
        if isinstance(node, dict):
            return {key: walk(value) for key, value in node.items()}
        if isinstance(node, list):
            return [walk(each) for each in node]
        if isinstance(node, str) and node.startswith(_SCHEMAS):
            name = node.removeprefix(_SCHEMAS)
            return f"{_SCHEMAS}{names.get(name, name)}"
        return node

    renamed: dict[str, Any] = walk(document)
    schemas = renamed["components"]["schemas"]
    renamed["components"]["schemas"] = {
        names.get(name, name): {**schema, "title": names.get(name, name)}
        for name, schema in sorted(schemas.items())
    }
    return renamed
