"""The files that pages load: our style, our modules, our icon.

Their address has a digest of all of them. So a browser keeps them for good, and gets new ones
together with the page that needs them.
"""

import hashlib
from importlib.resources import files

from fastapi import APIRouter
from fastapi.responses import Response
from starlette.exceptions import HTTPException

router = APIRouter(include_in_schema=False)

_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_FILES = {
    file.name: file.read_bytes()
    for file in sorted(files("botpool.dashboard").joinpath("static").iterdir(), key=str)
    if file.name.endswith(tuple(_TYPES))
}
_DIGEST = hashlib.sha256(b"".join(_FILES.values())).hexdigest()[:16]
_FOR_GOOD = {"Cache-Control": "public, max-age=31536000, immutable"}


def asset(name: str) -> str:
    """The address of a file."""
    return f"/assets/{_DIGEST}/{name}"


@router.get("/assets/{digest}/{name}")
async def get(digest: str, name: str) -> Response:
    """One file. Only the present ones are kept for good: an old page may ask for another's."""
    content = _FILES.get(name)
    if content is None:
        raise HTTPException(404)
    headers = _FOR_GOOD if digest == _DIGEST else {"Cache-Control": "no-store"}
    return Response(content, media_type=_TYPES[name[name.rindex(".") :]], headers=headers)
