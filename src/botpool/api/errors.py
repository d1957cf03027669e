"""Errors as a caller gets them: RFC 9457 problem details, each with a stable `code`.

A caller acts on `code`; `detail` is a sentence for people. Of an error inside botpool the caller
gets only the code; the log has the rest.
"""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple

from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.routing import Match

from botpool.api.wire import Problem
from botpool.errors import (
    BotNotFound,
    BotpoolError,
    DatabaseBusy,
    DatabaseUnreachable,
    DuplicateBot,
    Forbidden,
    HostNotFound,
    IdempotencyMismatch,
    InvalidPosition,
    InvalidRequest,
    PositionGone,
    SchemaUnfit,
    SlotNotFound,
    StaleLease,
    TooManyRequests,
    Unauthorized,
)
from botpool.logs import log_failure

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fastapi import FastAPI, Request

_MEDIA_TYPE = "application/problem+json"


class _Kind(NamedTuple):
    status: HTTPStatus
    code: str
    members: Mapping[str, str | int] = {}
    headers: Mapping[str, str] = {}


_KINDS: Mapping[type[BotpoolError], _Kind] = {
    Unauthorized: _Kind(
        HTTPStatus.UNAUTHORIZED, "unauthorized", headers={"WWW-Authenticate": "Bearer"}
    ),
    Forbidden: _Kind(HTTPStatus.FORBIDDEN, "forbidden"),
    TooManyRequests: _Kind(HTTPStatus.TOO_MANY_REQUESTS, "too_many_requests"),
    StaleLease: _Kind(HTTPStatus.GONE, "assignment_ended", members={"action": "exit"}),
    BotNotFound: _Kind(HTTPStatus.NOT_FOUND, "bot_not_found"),
    SlotNotFound: _Kind(HTTPStatus.NOT_FOUND, "slot_not_found"),
    HostNotFound: _Kind(HTTPStatus.NOT_FOUND, "host_not_found"),
    DuplicateBot: _Kind(HTTPStatus.CONFLICT, "duplicate_bot"),
    IdempotencyMismatch: _Kind(HTTPStatus.UNPROCESSABLE_ENTITY, "idempotency_mismatch"),
    InvalidRequest: _Kind(HTTPStatus.UNPROCESSABLE_ENTITY, "invalid_request"),
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
_UNEXPECTED = _Kind(HTTPStatus.INTERNAL_SERVER_ERROR, "internal_error")

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
    content = {_MEDIA_TYPE: {"schema": Problem.model_json_schema()}}
    return {
        kind.status.value: {"description": f"`{kind.code}`: {error.__doc__}", "content": content}
        for error, kind in ((error, _KINDS[error]) for error in errors)
    }


def documented_everywhere() -> dict[int | str, dict[str, Any]]:
    """The OpenAPI descriptions of the errors that every route may answer with."""
    content = {_MEDIA_TYPE: {"schema": Problem.model_json_schema()}}
    bodies = {
        HTTPStatus.BAD_REQUEST.value: "`bad_request`: The body is not JSON.",
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE.value: "`request_too_large`: The body is too large.",
    }
    return {
        **{status: {"description": text, "content": content} for status, text in bodies.items()},
        **documented(InvalidRequest, DatabaseUnreachable),
    }


async def _answer_ours(request: Request, error: BotpoolError) -> JSONResponse:
    kind = next((_KINDS[each] for each in type(error).__mro__ if each in _KINDS), _UNEXPECTED)
    if kind.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        log_failure("request failed", error, logging.ERROR, path=request.url.path, code=kind.code)
        return _problem(kind, str(type(error)()))
    if isinstance(error, DuplicateBot):
        kind = kind._replace(members={"botId": error.bot_id})
    if isinstance(error, TooManyRequests):
        kind = kind._replace(headers={"Retry-After": str(error.retry_after_seconds)})
    return _problem(kind, str(error))


async def _answer_invalid(_: Request, error: RequestValidationError) -> JSONResponse:
    """Name every invalid field, without its value: it may be a secret."""
    for each in error.errors():
        if each["type"] == "json_invalid":
            why = each["ctx"]["error"]
            detail = f"The body is not JSON: {why}, at character {each['loc'][-1] + 1}."
            return _problem(_NOT_JSON, detail)
    wrong = [
        _NO_CONTENT_TYPE
        if each["loc"] == ("body",) and isinstance(error.body, bytes)
        else f"{_place(each['loc'])}: {each['msg'].removeprefix('Value error, ')}"
        for each in error.errors()
    ]
    return _problem(_KINDS[InvalidRequest], f"{'; '.join(wrong)}.")


def _place(location: Sequence[str | int]) -> str:
    """The place in the request: a field, or a part of the request such as its body."""
    part, *field = map(str, location)
    return ".".join(field) or part


async def _answer_http(request: Request, error: HTTPException) -> JSONResponse:
    status = error.status_code
    code = _CODES.get(status, f"http_{status}")
    headers = dict(error.headers or {})
    if status == HTTPStatus.METHOD_NOT_ALLOWED:
        headers["Allow"] = ", ".join(sorted(_methods(request)))
    detail = _UNREADABLE if status == HTTPStatus.BAD_REQUEST else error.detail
    return _problem(_Kind(HTTPStatus(status), code, headers=headers), detail)


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
    return _problem(_UNEXPECTED, str(BotpoolError()))


def _problem(kind: _Kind, detail: str) -> JSONResponse:
    problem = Problem(
        type="about:blank",
        title=kind.status.phrase,
        status=kind.status,
        code=kind.code,
        detail=detail,
    )
    return JSONResponse(
        {**problem.model_dump(), **kind.members},
        kind.status,
        media_type=_MEDIA_TYPE,
        headers=dict(kind.headers),
    )
