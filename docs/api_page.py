"""The reference of the API, made from its OpenAPI document."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Any, cast

from botpool.access.keys import Keys
from botpool.api import create_app
from botpool.feed.stream import Feed
from botpool.pool import Pool
from botpool.settings import Settings
from botpool.store import Store
from docs import MADE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from botpool.store.postgres.database import Database

Json = dict[str, Any]

_INTRO = f"""\
{MADE}
# API

Every call of botpool, made from its OpenAPI document. A running botpool serves the document at
`/openapi.json`, and at `/docs` a page on which you can try each call. The document's
`operationId`s are the names in generated clients.

- JSON in camelCase; snake_case is accepted, too. Unknown fields are refused. Times are RFC 3339,
  in UTC.
- Send a key as `Authorization: Bearer …`. [Keys and limits](../how-to/access.md) tells of keys, and
  [projects](../how-to/projects.md) what each role may do. Containers send their slot's token.
- Lists come in pages: send `nextCursor` of one page as `cursor` for the next.
- Whatever goes wrong is answered as a [Problem](#problem) whose `code` is
  [in this table](#errors). Its meaning never changes.
"""


def document() -> Json:
    """The OpenAPI document. Nothing is asked of a database for it, so there is none."""
    store, settings = Store(cast("Database", None)), Settings()
    app = create_app(store, Pool(store, settings), settings, Keys(store, settings), Feed(store))
    return app.openapi()


def api() -> str:
    """The page."""
    found = document()
    everywhere = _everywhere(found)
    parts = [_INTRO]
    for tag in found["tags"]:
        parts.append(f"## Calls: {tag['name']}\n\n{tag['description']}\n")
        parts += [
            _call(method, path, call, everywhere)
            for path, method, call in _calls(found)
            if tag["name"] in call["tags"]
        ]
    parts.append(_errors(found))
    parts.append("## Shapes\n\nFields that always are there are **bold**.\n")
    parts += [_shape(name, shape) for name, shape in sorted(found["components"]["schemas"].items())]
    return "\n".join(parts)


def _calls(found: Json) -> Iterator[tuple[str, str, Json]]:
    for path, methods in found["paths"].items():
        for method, call in methods.items():
            yield path, method.upper(), call
    for name, methods in found["webhooks"].items():
        for call in methods.values():
            yield f"to your endpoint: {name}", "POST", call


def _codes(answer: Json) -> dict[str, str]:
    """The codes that an answer may have, with what they mean."""
    return dict(re.findall(r"`(\w+)`: (.+)", answer.get("description", "")))


def _everywhere(found: Json) -> set[str]:
    """The codes that nearly every call may answer."""
    counts = Counter(
        code
        for _, _, call in _calls(found)
        for code in {code for answer in call["responses"].values() for code in _codes(answer)}
    )
    return {code for code, count in counts.items() if count > len(found["paths"]) / 2}


def _call(method: str, path: str, call: Json, everywhere: set[str]) -> str:
    lines = [f"### {method} {path}", "", _text(call["description"]), ""]
    if parameters := call.get("parameters"):
        lines += ["| parameter | in | type | |", "|---|---|---|---|"]
        lines += [
            f"| {_name(each['name'], each.get('required', False))} | {each['in']}"
            f" | {_type(each['schema'])} | {_cell(each.get('description', ''))} |"
            for each in parameters
        ]
        lines.append("")
    if body := call.get("requestBody"):
        lines += [f"Body: {_content(body)}.", ""]
    lines += [f"Answer: {_answers(call['responses'])}.", ""]
    codes = [
        f"[`{code}`](#errors)"
        for answer in call["responses"].values()
        for code in _codes(answer)
        if code not in everywhere
    ]
    if codes:
        lines += [f"Errors of its own: {', '.join(dict.fromkeys(codes))}.", ""]
    return "\n".join(lines)


def _answers(responses: Json) -> str:
    good = {status: answer for status, answer in responses.items() if status.startswith("2")}
    return " or ".join(
        " ".join(filter(None, (status, _content(answer)))) for status, answer in good.items()
    )


def _content(holder: Json) -> str:
    shown = []
    for media, content in holder.get("content", {}).items():
        shape = _type(content.get("schema", {}))
        shown.append(shape if media == "application/json" else f"`{media}`")
    return " or ".join(dict.fromkeys(shown))


def _errors(found: Json) -> str:
    rows: dict[tuple[str, str], str] = {}
    for _, _, call in _calls(found):
        for status, answer in call["responses"].items():
            for code, meaning in _codes(answer).items():
                rows[status, code] = meaning
    lines = ["## Errors", "", "| status | code | meaning |", "|---|---|---|"]
    lines += [
        f"| {status} | `{code}` | {_cell(text)} |" for (status, code), text in sorted(rows.items())
    ]
    return "\n".join([*lines, ""])


def _shape(name: str, shape: Json) -> str:
    lines = [f"### {name}", "", _text(shape.get("description", "")), ""]
    if "enum" in shape:
        lines += [_type(shape), ""]
    elif options := shape.get("oneOf") or shape.get("anyOf"):
        lines += [" or ".join(_type(each) for each in options), ""]
    if properties := shape.get("properties"):
        lines += ["| field | type | |", "|---|---|---|"]
        required = shape.get("required", ())
        lines += [
            f"| {_name(field, field in required)} | {_type(each)}"
            f" | {_cell(each.get('description', ''))} |"
            for field, each in properties.items()
        ]
        lines.append("")
    return "\n".join(lines)


def _name(name: str, required: bool) -> str:
    return f"**`{name}`**" if required else f"`{name}`"


def _type(schema: Json) -> str:  # noqa: PLR0911 - a case each
    """A schema in a few words, with links to the shapes it is made of."""
    match schema:
        case {"$ref": str(ref)}:
            name = ref.rpartition("/")[2]
            return f"[{name}](#{name.lower()})"
        case {"enum": list(values)}:
            return ", ".join(f"`{value}`" for value in values)
        case {"const": value}:
            return f"`{value}`"
        case {"anyOf": list(options)} | {"oneOf": list(options)} | {"allOf": list(options)}:
            return " or ".join(dict.fromkeys(_type(each) for each in options))
        case {"type": "array", "items": items}:
            return f"list of {_type(items)}"
        case {"type": "object", "additionalProperties": dict(values)} if values:
            return f"object of {_type(values)}"
        case {"type": "string", "format": "date-time"}:
            return "time"
        case {"type": str(kind)}:
            return kind
        case _:
            return "anything"


def _text(text: str) -> str:
    """A description as its own paragraphs; lines of source are no lines of text."""
    paragraphs = re.split(r"\n\s*\n", text.strip())
    return "\n\n".join(
        each if each.startswith(("-", "|")) else " ".join(each.split()) for each in paragraphs
    )


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
