"""Files that pages load: our own, and Plotly's script out of its package.

One digest over all of them stands in every address, so that a browser may keep them for ever and relative
imports between our scripts stay right.
"""

import gzip
import hashlib
import mimetypes
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from fastapi import APIRouter, Request, Response

from service.errors import NotFoundError

PREFIX = "/static"
PLOTLY = "plotly.min.js"
FOREVER = "public, max-age=31536000, immutable"
LEAST_GZIP_BYTES = 1000

router = APIRouter(prefix=PREFIX)


@dataclass(frozen=True)
class Asset:
    body: bytes
    media_type: str

    @property
    def is_long(self) -> bool:
        return len(self.body) >= LEAST_GZIP_BYTES


@cache
def all_assets() -> dict[str, Asset]:
    folder = files("service.web").joinpath("static")
    own = {file.name: file.read_bytes() for file in sorted(folder.iterdir(), key=lambda one: one.name)}
    plotly = files("plotly").joinpath("package_data", PLOTLY).read_bytes()
    return {name: Asset(body, _media_type(name)) for name, body in {**own, PLOTLY: plotly}.items()}


@cache
def digest() -> str:
    found = hashlib.sha256()
    for name, asset in all_assets().items():
        found.update(name.encode() + b"\0" + hashlib.sha256(asset.body).digest())
    return found.hexdigest()[:16]


def address_of(name: str) -> str:
    """Raises KeyError for a file that is not there: a template with a typing mistake must not be served."""
    all_assets()[name]
    return f"{PREFIX}/{digest()}/{name}"


@router.get("/{wanted}/{name}")
def get_asset(wanted: str, name: str, request: Request) -> Response:
    """Of another version, as while a server is replaced: what we have, and not to be kept."""
    asset = all_assets().get(name)
    if asset is None:
        raise NotFoundError("file", name)
    headers = {"Cache-Control": FOREVER if wanted == digest() else "no-cache", "Vary": "Accept-Encoding"}
    if asset.is_long and "gzip" in request.headers.get("accept-encoding", ""):
        return Response(
            _gzipped(name), media_type=asset.media_type, headers=headers | {"Content-Encoding": "gzip"}
        )
    return Response(asset.body, media_type=asset.media_type, headers=headers)


@cache
def _gzipped(name: str) -> bytes:
    return gzip.compress(all_assets()[name].body, 6, mtime=0)


def _media_type(name: str) -> str:
    if name.endswith(".js"):
        return "text/javascript"
    return mimetypes.guess_type(name)[0] or "application/octet-stream"
