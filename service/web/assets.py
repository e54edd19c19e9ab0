"""/static: scripts and styles, uPlot among them, at addresses that change with their content."""

import gzip
import hashlib
import mimetypes
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from fastapi import APIRouter, Request, Response

from service.errors import NotFoundError
from service.render.charts import SCRIPTS, STYLES, chart_file

PREFIX = "/static"
IMMUTABLE = "public, max-age=31536000, immutable"
MIN_GZIP_BYTES = 1000

router = APIRouter(prefix=PREFIX)


@dataclass(frozen=True)
class Asset:
    body: bytes
    media_type: str


@cache
def all_assets() -> dict[str, Asset]:
    folder = files("service.web").joinpath("static")
    bodies = {file.name: file.read_bytes() for file in sorted(folder.iterdir(), key=lambda file: file.name)}
    trends = files("service.render").joinpath("templates", "nightly.css").read_bytes()
    bodies |= {name: chart_file(*path).encode() for name, path in (SCRIPTS | STYLES).items()}
    bodies |= {"trends.css": trends}
    types = {name: mimetypes.guess_type(name)[0] or "application/octet-stream" for name in bodies}
    types |= {name: "text/javascript" for name in bodies if name.endswith(".js")}
    return {name: Asset(body, types[name]) for name, body in bodies.items()}


@cache
def digest() -> str:
    whole = hashlib.sha256()
    for name, asset in all_assets().items():
        whole.update(name.encode() + b"\0" + hashlib.sha256(asset.body).digest())
    return whole.hexdigest()[:16]


def address_of(name: str) -> str:
    """Raises KeyError for a file that does not exist: a template with a typo must not be served."""
    all_assets()[name]
    return f"{PREFIX}/{digest()}/{name}"


@router.get("/{version}/{name}")
def get_asset(version: str, name: str, request: Request) -> Response:
    """An address of another version, as during an upgrade, gets the current file, uncached."""
    asset = all_assets().get(name)
    if asset is None:
        raise NotFoundError("file", name)
    body = asset.body
    headers = {"Cache-Control": IMMUTABLE if version == digest() else "no-cache", "Vary": "Accept-Encoding"}
    if len(body) >= MIN_GZIP_BYTES and takes_gzip(request):
        body, headers["Content-Encoding"] = _gzipped(name), "gzip"
    return Response(body, media_type=asset.media_type, headers=headers)


def takes_gzip(request: Request) -> bool:
    return "gzip" in request.headers.get("accept-encoding", "")


@cache
def _gzipped(name: str) -> bytes:
    return gzip.compress(all_assets()[name].body, 6, mtime=0)
