"""What every route of the API does before it reads a body: know its caller, and its parameters."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from fastapi import params
from fastapi.dependencies.utils import get_flat_params
from fastapi.routing import APIRoute

from botpool.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from fastapi import Request, Response

_MOST_NAMED = 3
_LONGEST_NAME = 50


class GuardedRoute(APIRoute):
    """A route that identifies its caller first, and refuses query parameters that it doesn't have.

    So a stranger's body costs nothing, and a filter with a typing error doesn't pass everything.
    """

    async def identify(self, request: Request) -> None:
        """Raise an error unless the caller is known."""
        raise NotImplementedError

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Answer a request, after these checks."""
        answer = super().get_route_handler()
        known = {
            field.alias
            for field in get_flat_params(self.dependant)
            if isinstance(field.field_info, params.Query)
        }

        deep = [
            re.compile(rf"{parameter['name']}(\..+|\[[^]]+\])", re.DOTALL)
            for parameter in (self.openapi_extra or {}).get("parameters", ())
            if parameter.get("style") == "deepObject"
        ]

        async def answer_known_caller(request: Request) -> Response:
            await self.identify(request)
            names = request.query_params.keys() - known
            unknown = {name for name in names if not any(each.fullmatch(name) for each in deep)}
            if unknown:
                raise InvalidRequest(_refusal(sorted(unknown)))
            return await answer(request)

        return answer_known_caller


def _refusal(unknown: list[str]) -> str:
    named = ", ".join(name[:_LONGEST_NAME] for name in unknown[:_MOST_NAMED])
    more = f" and {len(unknown) - _MOST_NAMED} more" if len(unknown) > _MOST_NAMED else ""
    return f"There is no such query parameter: {named}{more}."
