"""`/docs`: the API to read and to try, in Swagger UI.

It is served from here, and may load nothing from elsewhere: the page works without the internet,
and no foreign script runs where an admin's cookie is.
"""

from importlib.resources import files

from fastapi import APIRouter, FastAPI
from fastapi.responses import HTMLResponse, Response
from starlette.staticfiles import StaticFiles

from botpool.api.policy import policy

router = APIRouter(include_in_schema=False)

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

# A browser that has signed in needs no key here: what it sends shows that it comes from us.
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
    """What begins it. In a file, for a page that may run no script of its own is safer."""
    return Response(_START, media_type="text/javascript")


def add_docs(app: FastAPI) -> None:
    """Serve the page and what it is made of."""
    app.include_router(router)
    # A package that brings the files of each release of Swagger UI, of which we use no code.
    folder = files("fastapi_swagger").joinpath("resources")
    app.mount(_ASSETS, StaticFiles(directory=str(folder)), name="docs assets")
