"""/trace: the events of a session's or an upload's traces on a timeline, alone or beside another's."""

import gzip
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import FileResponse

from service.api.deps import AppDep, Reader, run_bounded_search
from service.api.errors import ApiError
from service.api.state import AppState
from service.auth import Caller
from service.db.sessions import get_session
from service.db.traces import get_trace
from service.errors import NotFoundError
from service.render.view import find_view
from service.uploads import find_reference
from service.web.rendering import PageRoute, page
from service.web.session_figures import analysis_of
from service.web.session_view import SessionPage
from tools.errors import InputError
from tools.trace.folder import find_trace_files, read_timeline
from tools.trace.record import UnreadableTraceError
from tools.trace.report import DrawnReport
from tools.trace.roofline import RoofReport

MAX_RANKS = 16
"""On one page."""
MAX_CACHED = 16
OPENS_POPUPS = {"Cross-Origin-Opener-Policy": "same-origin-allow-popups"}
"""Perfetto's page is handed the trace through the window that was opened."""

router = APIRouter(route_class=PageRoute, prefix="/trace")

Of = Annotated[str, Query(max_length=200, description="a session's id, or trace:ID for an upload")]
FileName = Annotated[str, Query(max_length=300)]


@dataclass(frozen=True)
class RankFile:
    rank: int
    name: str
    of: str

    @property
    def query(self) -> str:
        return urlencode({"of": self.of, "file": self.name})


@dataclass(frozen=True)
class Source:
    """Where the traces of a session or an upload are."""

    of: str
    title: str
    folder: Path
    traces: str
    upload: str | None
    """The id of the upload; None for a folder on the server."""
    session: str | None

    def files(self) -> dict[str, Path]:
        try:
            return {file.name: file for file in find_trace_files(self.folder)}
        except (InputError, OSError):
            raise NotFoundError("trace of", self.of) from None


@dataclass(frozen=True)
class Side:
    source: Source
    ranks: list[RankFile]
    report: DrawnReport | None
    """None while the analysis runs, or if it failed."""
    problem: str = ""
    """Why there will be no report."""

    @property
    def has_roof(self) -> bool:
        return any(point.roof_tflops for point in self.points)

    @property
    def points(self) -> list[RoofReport]:
        """Each op and shape once: of the rank where it took longest."""
        points = self.report.drawing.points if self.report else []
        return list({(point.op, point.shape, point.precision): point for point in reversed(points)}.values())[
            ::-1
        ]


@router.get("")
def show(
    request: Request,
    app: AppDep,
    caller: Reader,
    a: Of,
    b: Of | None = None,
    first: Annotated[int, Query(ge=0)] = 0,
) -> Response:
    sides = [_side(app, caller, of) for of in (a, b) if of]
    most = max(len(side.ranks) for side in sides)
    response = page(
        request,
        "trace",
        caller,
        session=_session_page(app, caller, sides),
        tab="traces",
        sides=sides,
        first=first,
        last=first + MAX_RANKS // len(sides),
        most=most,
    )
    response.headers.update(OPENS_POPUPS)
    return response


def _session_page(app: AppState, caller: Caller, sides: list[Side]) -> SessionPage | None:
    """Traces of one session stand under its head."""
    if len(sides) > 1 or not sides[0].source.session:
        return None
    row = app.sessions.get(caller, sides[0].source.session)
    return SessionPage(row, find_view(row))


@router.get("/events")
def get_events(request: Request, app: AppDep, caller: Reader, of: Of, file: FileName) -> Response:
    """The events of one rank, as tools/trace/timeline.py packs them."""
    source = _source(app, caller, of)
    path = _file(source, file)
    try:
        kept = app.traces.await_timeline(source.upload, path.name) if source.upload else None
        packed = kept or run_bounded_search(app, lambda _: _packed(app, source, path))
    except UnreadableTraceError as error:
        raise InputError("file", file, str(error)) from None
    if "gzip" not in request.headers.get("accept-encoding", ""):
        return Response(gzip.decompress(packed), media_type="application/octet-stream")
    headers = {"Content-Encoding": "gzip", "Vary": "Accept-Encoding"}
    return Response(packed, media_type="application/octet-stream", headers=headers)


@router.get("/file")
def download(app: AppDep, caller: Reader, of: Of, file: FileName) -> Response:
    """A file as it was uploaded; a folder on the server is not handed out."""
    source = _source(app, caller, of)
    if source.upload is None:
        raise NotFoundError("upload", of)
    path = _file(source, file)
    return FileResponse(path, filename=path.name, media_type="application/octet-stream")


def _packed(app: AppState, source: Source, path: Path) -> bytes:
    if source.upload:
        return app.traces.read_timeline(source.upload, path.name)
    return _packed_of_folder(path, path.stat().st_mtime_ns)


@lru_cache(maxsize=MAX_CACHED)
def _packed_of_folder(path: Path, _written_ns: int) -> bytes:
    return read_timeline(path)


def _file(source: Source, name: str) -> Path:
    path = source.files().get(name)
    if path is None:
        raise NotFoundError("trace file", name)
    return path


def _source(app: AppState, caller: Caller, of: str) -> Source:
    id = find_reference(of)
    title, traces, session = "", of, None
    with app.database.read() as conn:
        if id is None:
            row = get_session(conn, caller.tenant, of, report=False)
            traces, title, session = str((row.request or {}).get("traces") or ""), row.model or "", row.id
            id = find_reference(traces)
            if not traces:
                raise NotFoundError("trace of session", of)
        if id is None:
            return Source(of, title or Path(traces).name, Path(traces), traces, None, session)
        upload = get_trace(conn, caller.tenant, id)
    return Source(of, title or upload.name or "upload", app.traces.uploads.folder(id), traces, id, session)


def _side(app: AppState, caller: Caller, of: str) -> Side:
    source = _source(app, caller, of)
    files = source.files()
    report: DrawnReport | None = None
    problem = ""
    try:
        report = analysis_of(app, caller.tenant, source.traces)
    except ApiError:  # not yet
        pass
    except (NotFoundError, InputError) as error:
        problem = str(error)
    known = {rank.file: rank.rank for rank in report.ranks} if report else {}
    ranks = [RankFile(known.get(name, place), name, of) for place, name in enumerate(files)]
    return Side(source, sorted(ranks, key=lambda rank: rank.rank), report, problem)
