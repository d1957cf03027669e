"""Errors as a caller gets them: RFC 9457 problem details, each with a stable `code`.

A caller acts on `code`; `detail` is a sentence for people. What is wrong with the fields of a
request is in `errors`, one by one. Of an error inside botpool the caller gets only the code; the
log has the rest.
"""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple

from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from pydantic.alias_generators import to_camel
from starlette.exceptions import HTTPException
from starlette.routing import Match

from botpool.api.wire import FieldProblem, Problem
from botpool.errors import (
    BotLive,
    BotNotFound,
    BotpoolError,
    CallbackInvalid,
    CallbackPrivate,
    DatabaseBusy,
    DatabaseUnreachable,
    DeliveryNotFound,
    DuplicateBot,
    DurationTooLong,
    Forbidden,
    HostNotFound,
    IdempotencyMismatch,
    InvalidCursor,
    InvalidPosition,
    InvalidRequest,
    KeyNotFound,
    MeetingUrlUnknown,
    PlatformMismatch,
    PositionGone,
    ProjectInUse,
    ProjectNameTaken,
    ProjectNotFound,
    QueueTimeoutOutOfBounds,
    SchemaUnfit,
    SessionNotFound,
    SlotHasBot,
    SlotNotFound,
    StaleLease,
    TooManyBots,
    TooManyCreations,
    TooManyRequests,
    TooManyWrongKeys,
    Unauthorized,
    WebhookNotFound,
    WebhookPaused,
)
from botpool.logs import log_failure

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fastapi import FastAPI, Request

_MEDIA_TYPE = "application/problem+json"


class _Kind(NamedTuple):
    status: HTTPStatus
    code: str
    headers: Mapping[str, str] = {}


_KINDS: Mapping[type[BotpoolError], _Kind] = {
    Unauthorized: _Kind(
        HTTPStatus.UNAUTHORIZED, "unauthorized", headers={"WWW-Authenticate": "Bearer"}
    ),
    Forbidden: _Kind(HTTPStatus.FORBIDDEN, "forbidden"),
    TooManyRequests: _Kind(
        HTTPStatus.TOO_MANY_REQUESTS, "too_many_requests", headers={"Retry-After": "1"}
    ),
    TooManyWrongKeys: _Kind(
        HTTPStatus.TOO_MANY_REQUESTS, "too_many_wrong_keys", headers={"Retry-After": "1"}
    ),
    StaleLease: _Kind(HTTPStatus.GONE, "assignment_ended"),
    BotNotFound: _Kind(HTTPStatus.NOT_FOUND, "bot_not_found"),
    SlotNotFound: _Kind(HTTPStatus.NOT_FOUND, "slot_not_found"),
    HostNotFound: _Kind(HTTPStatus.NOT_FOUND, "host_not_found"),
    KeyNotFound: _Kind(HTTPStatus.NOT_FOUND, "key_not_found"),
    ProjectNotFound: _Kind(HTTPStatus.NOT_FOUND, "project_not_found"),
    WebhookNotFound: _Kind(HTTPStatus.NOT_FOUND, "webhook_not_found"),
    DeliveryNotFound: _Kind(HTTPStatus.NOT_FOUND, "delivery_not_found"),
    SessionNotFound: _Kind(HTTPStatus.NOT_FOUND, "session_not_found"),
    WebhookPaused: _Kind(HTTPStatus.CONFLICT, "webhook_paused"),
    ProjectNameTaken: _Kind(HTTPStatus.CONFLICT, "project_name_taken"),
    ProjectInUse: _Kind(HTTPStatus.CONFLICT, "project_in_use"),
    TooManyBots: _Kind(
        HTTPStatus.TOO_MANY_REQUESTS, "too_many_bots", headers={"Retry-After": "10"}
    ),
    TooManyCreations: _Kind(
        HTTPStatus.TOO_MANY_REQUESTS, "too_many_creations", headers={"Retry-After": "1"}
    ),
    DurationTooLong: _Kind(HTTPStatus.UNPROCESSABLE_ENTITY, "max_duration_out_of_bounds"),
    DuplicateBot: _Kind(HTTPStatus.CONFLICT, "duplicate_bot"),
    BotLive: _Kind(HTTPStatus.CONFLICT, "bot_live"),
    SlotHasBot: _Kind(HTTPStatus.CONFLICT, "slot_has_bot"),
    IdempotencyMismatch: _Kind(HTTPStatus.UNPROCESSABLE_ENTITY, "idempotency_mismatch"),
    InvalidRequest: _Kind(HTTPStatus.UNPROCESSABLE_ENTITY, "invalid_request"),
    InvalidCursor: _Kind(HTTPStatus.UNPROCESSABLE_ENTITY, "invalid_cursor"),
    MeetingUrlUnknown: _Kind(HTTPStatus.UNPROCESSABLE_ENTITY, "meeting_url_unknown"),
    PlatformMismatch: _Kind(HTTPStatus.UNPROCESSABLE_ENTITY, "platform_mismatch"),
    QueueTimeoutOutOfBounds: _Kind(HTTPStatus.UNPROCESSABLE_ENTITY, "queue_timeout_out_of_bounds"),
    CallbackInvalid: _Kind(HTTPStatus.UNPROCESSABLE_ENTITY, "callback_address_invalid"),
    CallbackPrivate: _Kind(HTTPStatus.UNPROCESSABLE_ENTITY, "callback_address_private"),
    InvalidPosition: _Kind(HTTPStatus.BAD_REQUEST, "invalid_position"),
    PositionGone: _Kind(HTTPStatus.GONE, "position_gone"),
    SchemaUnfit: _Kind(HTTPStatus.SERVICE_UNAVAILABLE, "schema_unfit"),
    DatabaseBusy: _Kind(
        HTTPStatus.SERVICE_UNAVAILABLE, "database_busy", headers={"Retry-After": "1"}
    ),
    DatabaseUnreachable: _Kind(
        HTTPStatus.SERVICE_UNAVAILABLE, "database_unreachable", headers={"Retry-After": "1"}
    ),
}
_NOT_JSON = _Kind(HTTPStatus.BAD_REQUEST, "bad_request")
_NO_CONTENT_TYPE = "body: must be JSON, with the header `Content-Type: application/json`"
_UNREADABLE = "The body is not UTF-8 JSON, or it is nested too deeply."
_MOST_WRONG = 20
_LONGEST_NAME = 100
_UNEXPECTED = _Kind(HTTPStatus.INTERNAL_SERVER_ERROR, "internal_error")
_TOO_LARGE = _Kind(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "request_too_large")

PROBLEM = "#/components/schemas/Problem"
"""Where the OpenAPI document has the schema of every error."""

_HEADERS = {
    "Retry-After": {
        "description": "In how many seconds to try again.",
        "schema": {"type": "integer", "minimum": 1},
    },
    "WWW-Authenticate": {"description": "Always `Bearer`.", "schema": {"type": "string"}},
}

_FIELD_CODES = {
    "missing": "required",
    "extra_forbidden": "unknown_field",
    "enum": "not_allowed",
    "literal_error": "not_allowed",
    "string_pattern_mismatch": "wrong_form",
    **dict.fromkeys(("string_too_long", "too_long"), "too_long"),
    **dict.fromkeys(("string_too_short", "too_short"), "too_short"),
    **dict.fromkeys(("greater_than_equal", "less_than_equal", "int_parsing_size"), "out_of_bounds"),
}
"""What is wrong with a field, by what pydantic calls it. Types of its own end as below."""

# By status: the errors that the framework raises before a route is reached.
_CODES = {400: "bad_request", 404: "not_found", 405: "method_not_allowed", 413: "request_too_large"}


def add_error_handlers(app: FastAPI) -> None:
    """Answer every error with problem details, also when no route is reached."""
    app.exception_handler(BotpoolError)(_answer_ours)
    app.exception_handler(RequestValidationError)(_answer_invalid)
    app.exception_handler(HTTPException)(_answer_http)
    app.exception_handler(Exception)(_answer_unexpected)


def documented(*errors: type[BotpoolError]) -> dict[int | str, dict[str, Any]]:
    """The OpenAPI descriptions of the errors that a route may answer with."""
    found: dict[int | str, dict[str, Any]] = {}
    # Whoever may have a wrong key may have had too many.
    also = (TooManyWrongKeys,) if Unauthorized in errors else ()
    for error in (*errors, *also):
        # The first line is the error's message; what follows is for those who raise it.
        _document(found, _KINDS[error], (error.__doc__ or "").partition("\n")[0])
    return found


def documented_everywhere() -> dict[int | str, dict[str, Any]]:
    """The OpenAPI descriptions of the errors that every route may answer with."""
    return documented(InvalidRequest, DatabaseUnreachable, DatabaseBusy) | errors_of_bodies()


def errors_of_bodies() -> dict[int | str, dict[str, Any]]:
    """The OpenAPI descriptions of the errors that every route with a body may answer with."""
    found: dict[int | str, dict[str, Any]] = {}
    _document(found, _NOT_JSON, "The body is not JSON.")
    _document(found, _TOO_LARGE, "The body is too large.")
    return found


def _document(found: dict[int | str, dict[str, Any]], kind: _Kind, detail: str) -> None:
    """Add an error to the answers that have its status."""
    answer = found.setdefault(
        kind.status.value,
        {
            "description": "",
            "headers": {name: _HEADERS[name] for name in kind.headers},
            "content": {_MEDIA_TYPE: {"schema": {"$ref": PROBLEM}, "examples": {}}},
        },
    )
    answer["description"] += f"- `{kind.code}`: {detail}\n"
    example = _problem(kind, detail).model_dump(by_alias=True, exclude_defaults=True)
    answer["content"][_MEDIA_TYPE]["examples"][kind.code] = {"value": example}


async def _answer_ours(request: Request, error: BotpoolError) -> JSONResponse:
    kind = _kind_of(error)
    if kind.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        log_failure("request failed", error, logging.ERROR, path=request.url.path, code=kind.code)
    if isinstance(error, (TooManyRequests, TooManyCreations)):
        kind = kind._replace(headers={"Retry-After": str(error.retry_after_seconds)})
    return _answer(kind, problem_of(error))


def problem_of(error: BotpoolError) -> Problem:
    """An error that a caller can act on, as problem details."""
    kind = _kind_of(error)
    inside = kind.status >= HTTPStatus.INTERNAL_SERVER_ERROR
    problem = _problem(kind, str(type(error)() if inside else error))
    if isinstance(error, DuplicateBot | SlotHasBot):
        return problem.model_copy(update={"bot_id": error.bot_id})
    if isinstance(error, StaleLease):
        return problem.model_copy(update={"action": "exit"})
    if isinstance(error, InvalidRequest) and error.field is not None:
        part = "query" if isinstance(error, InvalidCursor) else "body"
        place = _pointer((part, to_camel(error.field)))
        field = FieldProblem(pointer=place, code=kind.code, detail=str(error))
        return problem.model_copy(update={"errors": [field]})
    return problem


async def _answer_invalid(_: Request, error: RequestValidationError) -> JSONResponse:
    """Name every invalid field, without its value: it may be a secret."""
    for each in error.errors():
        if each["type"] == "json_invalid":
            why = each["ctx"]["error"]
            detail = f"The body is not JSON: {why}, at character {each['loc'][-1] + 1}."
            return _answer(_NOT_JSON, _problem(_NOT_JSON, detail))
    kind = _KINDS[InvalidRequest]
    if isinstance(error.body, bytes) and any(each["loc"] == ("body",) for each in error.errors()):
        return _answer(kind, _problem(kind, f"{_NO_CONTENT_TYPE}."))
    return _answer(kind, invalid_fields(error.errors()))


def invalid_fields(errors: Sequence[Mapping[str, Any]], part: str | None = None) -> Problem:
    """What pydantic found wrong with a request, or with a part of it, as problem details."""
    places = [each["loc"] if part is None else (part, *each["loc"]) for each in errors]
    fields = [
        FieldProblem(
            pointer=_pointer(place),
            code=_field_code(each["type"]),
            detail=each["msg"].removeprefix("Value error, "),
        )
        for each, place in zip(errors[:_MOST_WRONG], places, strict=False)
    ]
    wrong = [
        f"{_place(place)}: {field.detail}" for place, field in zip(places, fields, strict=False)
    ]
    if len(errors) > _MOST_WRONG:
        wrong.append(f"and {len(errors) - _MOST_WRONG} more")
    problem = _problem(_KINDS[InvalidRequest], f"{'; '.join(wrong)}.")
    return problem.model_copy(update={"errors": fields})


def _field_code(found: str) -> str:
    if found in _FIELD_CODES:
        return _FIELD_CODES[found]
    return "wrong_type" if found.endswith(("_type", "_parsing", "_from_float")) else "invalid"


def _place(location: Sequence[str | int]) -> str:
    """The place in the request for people: a field, or a part such as its body."""
    part, *field = _names(location)
    return ".".join(field) or part


def _names(location: Sequence[str | int]) -> list[str]:
    """The parts of a place. A client's own names may be long: they are cut."""
    return [str(each)[:_LONGEST_NAME] for each in location]


def _pointer(location: Sequence[str | int]) -> str:
    """The place in the request for programs."""
    part, *field = _names(location)
    if part != "body":
        return ":".join((part, *field))
    return "#" + "".join(f"/{name.replace('~', '~0').replace('/', '~1')}" for name in field)


async def _answer_http(request: Request, error: HTTPException) -> JSONResponse:
    status = error.status_code
    code = _CODES.get(status, f"http_{status}")
    headers = dict(error.headers or {})
    if status == HTTPStatus.METHOD_NOT_ALLOWED:
        headers["Allow"] = ", ".join(sorted(_methods(request)))
    detail = _UNREADABLE if status == HTTPStatus.BAD_REQUEST else error.detail
    kind = _Kind(HTTPStatus(status), code, headers=headers)
    return _answer(kind, _problem(kind, detail))


def _methods(request: Request) -> set[str]:
    """Every method of a path; the framework only knows those of one route."""
    return {
        method
        for route in request.app.routes
        if isinstance(route, APIRoute) and route.matches(request.scope)[0] is not Match.NONE
        for method in route.methods or ()
    }


async def _answer_unexpected(_: Request, __: Exception) -> JSONResponse:
    # It is raised again, and the server that runs the app logs it.
    return _answer(_UNEXPECTED, _problem(_UNEXPECTED, str(BotpoolError())))


def _kind_of(error: BotpoolError) -> _Kind:
    return next((_KINDS[each] for each in type(error).__mro__ if each in _KINDS), _UNEXPECTED)


def raw_problem(status: HTTPStatus, code: str, detail: str) -> bytes:
    """A whole answer in bytes, after which the connection is closed, for one without a request."""
    kind = _Kind(status, code, headers={"Connection": "close"})
    answer = _answer(kind, _problem(kind, detail))
    head = b"".join(b"%b: %b\r\n" % header for header in answer.raw_headers)
    return b"HTTP/1.1 %d %b\r\n%b\r\n%b" % (
        status.value,
        status.phrase.encode(),
        head,
        bytes(answer.body),
    )


def _problem(kind: _Kind, detail: str) -> Problem:
    return Problem(
        type="about:blank",
        title=kind.status.phrase,
        status=kind.status,
        code=kind.code,
        detail=detail,
    )


def _answer(kind: _Kind, problem: Problem) -> JSONResponse:
    return JSONResponse(
        problem.model_dump(by_alias=True, exclude_defaults=True),
        kind.status,
        media_type=_MEDIA_TYPE,
        headers=dict(kind.headers),
    )
