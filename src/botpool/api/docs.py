"""`/docs`: the API documentation, in Swagger UI.

botpool serves all of its files, and the page may load nothing from elsewhere. So it works without
the internet, and no foreign script runs where an admin's cookie is.
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


def add_docs(app: FastAPI) -> None:
    """Serve the page and its files."""
    app.include_router(router)
    # This package brings Swagger UI's files with each of its releases. We use none of its code.
    folder = files("fastapi_swagger").joinpath("resources")
    app.mount(_ASSETS, StaticFiles(directory=str(folder)), name="docs assets")
