"""/trace: the events of a session's or an upload's traces on a timeline, alone or beside another's."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, NamedTuple
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Response
from fastapi.responses import FileResponse

from service.errors import NotFoundError
from service.http.problems import ApiError
from service.render.view import find_view
from service.sessions.pages.figures import analyse_once, analysis_of
from service.sessions.pages.view import SessionView
from service.sessions.store import get_session
from service.sessions.usecases import Sessions
from service.traces.store import get_trace
from service.traces.uploads import find_reference
from service.traces.usecases import Traces
from service.web.errors import PageRoute
from service.web.rendering import Page, ReaderPage
from tools.errors import InputError
from tools.trace.compare import ChangeCause, PartChange, compare_parts
from tools.trace.folder import find_trace_files, read_timeline
from tools.trace.record import UnreadableTraceError
from tools.trace.report import DrawnReport
from tools.trace.roofline import RoofReport

MAX_CACHED = 16
OPENS_POPUPS = {"Cross-Origin-Opener-Policy": "same-origin-allow-popups"}
"""Perfetto's page is handed the trace through the window that was opened."""

router = APIRouter(route_class=PageRoute, prefix="/trace")

Of = Annotated[str, Query(max_length=200, description="a session's id, or trace:ID for an upload")]
FileName = Annotated[str, Query(max_length=300)]


class RankFile(NamedTuple):
    rank: int
    name: str
    of: str

    @property
    def query(self) -> str:
        return urlencode({"of": self.of, "file": self.name})


@dataclass(frozen=True)
class TraceOrigin:
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

    def file(self, name: str) -> Path:
        path = self.files().get(name)
        if path is None:
            raise NotFoundError("trace file", name)
        return path


@dataclass(frozen=True)
class Side:
    source: TraceOrigin
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
        last = {(point.op, point.shape, point.precision): point for point in reversed(points)}
        return list(last.values())[::-1]


@router.get("")
def show(page: ReaderPage, a: Of, b: Of | None = None) -> Response:
    sides = [_side(page, of) for of in (a, b) if of]
    session = None
    if len(sides) == 1 and sides[0].source.session:  # traces of one session stand under its head
        row = page.app.get(Sessions).get(page.caller, sides[0].source.session)
        session = SessionView(row, find_view(row))
    response = page(
        "trace",
        session=session,
        tab="traces",
        sides=sides,
        change=_change(sides),
    )
    response.headers.update(OPENS_POPUPS)
    return response


def _change(sides: Sequence[Side]) -> tuple[list[PartChange], list[ChangeCause]] | None:
    """From A to B, once both are analysed; reports of release 0.2 have no parts."""
    parts = [side.report.drawing.parts for side in sides if side.report and side.report.drawing.parts]
    return compare_parts(*parts) if len(parts) == 2 else None


@router.get("/overview")
def get_overview(page: ReaderPage, of: Of) -> Response:
    """All ranks at a glance, as tools/trace/overview.py packs them, once the traces are analysed."""
    source, traces = _origin(page, of), page.app.get(Traces)
    if source.upload:
        analysis_of(page.app, page.caller.tenant, source.traces)
        packed = traces.uploads.find_overview(source.upload)
    else:
        packed = page.app.run_search(lambda _: analyse_once(source.folder)[1])
    if packed is None:
        raise NotFoundError("overview of trace", of)
    return page.packed(packed)


@router.get("/events")
async def get_events(page: ReaderPage, of: Of, file: FileName) -> Response:
    """The events of one rank, as tools/trace/timeline.py packs them."""
    app, tenant, traces = page.app, page.caller.tenant, page.app.get(Traces)

    def find() -> tuple[TraceOrigin, Path]:
        source = _origin(page, of)
        return source, source.file(file)

    source, path = await app.in_turn(tenant, find)

    def pack() -> bytes:
        if source.upload:
            return traces.read_timeline(source.upload, path.name)
        return _packed_of_folder(path, path.stat().st_mtime_ns)

    kept = None
    if source.upload:
        async with app.waits[tenant]:
            kept = await traces.await_timeline(source.upload, path.name)
    try:
        return await app.in_turn(tenant, lambda: page.packed(kept or app.run_search(lambda _: pack())))
    except UnreadableTraceError as error:
        raise InputError("file", file, str(error)) from None


@lru_cache(maxsize=MAX_CACHED)
def _packed_of_folder(path: Path, _written_ns: int) -> bytes:
    return read_timeline(path)


@router.get("/file")
def download(page: ReaderPage, of: Of, file: FileName) -> Response:
    """A file as it was uploaded; a folder on the server is not handed out."""
    source = _origin(page, of)
    if source.upload is None:
        raise NotFoundError("upload", of)
    path = source.file(file)
    return FileResponse(path, filename=path.name, media_type="application/octet-stream")


def _origin(page: Page, of: str) -> TraceOrigin:
    id = find_reference(of)
    title, traces, session = "", of, None
    with page.app.database.read() as conn:
        if id is None:
            row = get_session(conn, page.caller.tenant, of, report=False)
            traces, title, session = str(row.request.get("traces") or ""), row.model or "", row.id
            id = find_reference(traces)
            if not traces:
                raise NotFoundError("trace of session", of)
        if id is None:
            return TraceOrigin(of, title or Path(traces).name, Path(traces), traces, None, session)
        upload = get_trace(conn, page.caller.tenant, id)
    folder = page.app.get(Traces).uploads.folder(id)
    return TraceOrigin(of, title or upload.name or "upload", folder, traces, id, session)


def _side(page: Page, of: str) -> Side:
    source = _origin(page, of)
    files, report, problem = source.files(), None, ""
    try:
        report = analysis_of(page.app, page.caller.tenant, source.traces)
    except ApiError:  # not yet
        pass
    except (NotFoundError, InputError) as error:
        problem = str(error)
    known = {rank.file: rank.rank for rank in report.ranks} if report else {}
    ranks = [RankFile(known.get(name, place), name, of) for place, name in enumerate(files)]
    return Side(source, sorted(ranks, key=lambda rank: rank.rank), report, problem)
