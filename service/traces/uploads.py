"""Files of uploaded traces: where they lie, which names are allowed, how parts are written and deleted."""

import fcntl
import hashlib
import os
import re
import shutil
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from threading import get_ident
from typing import BinaryIO

from anyio.to_thread import run_sync

from service.access.auth import Caller
from service.errors import ConflictError
from service.settings import Settings
from service.traces.model import REFERENCE
from tools.errors import InputError
from tools.trace.files import is_trace_name

FOLDER = "traces"
Reserve = Callable[[int], int]
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@=+-]{0,199}")
OVERVIEW = ".overview"


class NoRoomError(Exception):
    """More came than there is room for."""


def find_reference(traces: str) -> str | None:
    """The id of the upload that a request names; None if it names a folder of the server."""
    return traces.removeprefix(REFERENCE) if traces.startswith(REFERENCE) else None


def check_server_path(settings: Settings, caller: Caller, field: str, path: str) -> None:
    """Folders of the server hold what other tenants and the installation keep there."""
    if not caller.may("operator"):
        raise InputError(field, path, "give an upload (POST /v1/traces); a path needs the scope operator")
    roots = settings.trace_roots
    if not (caller.is_local and roots is None) and not is_below(roots, path):
        raise InputError(field, path, f"must be below ASAP_TRACE_ROOTS ({', '.join(map(str, roots or ()))})")


def is_below(roots: Sequence[Path] | None, path: str | Path) -> bool:
    """Where links lead counts; of a pattern, the folder before its first wildcard."""
    literal = Path(re.split(r"[*?\[]", str(path))[0] or ".")
    real = Path(path).resolve() if literal == Path(path) else literal.resolve()
    return ".." not in Path(path).parts and any(real.is_relative_to(root.resolve()) for root in roots or ())


def check_name(name: str) -> str:
    """A plain file name of a trace: no folder, nothing hidden, nothing that a shell could misread."""
    if not _NAME.fullmatch(name) or ".." in name:
        allowed = "must be a file name of at most 200 letters, digits and . _ - @ = +, without folders"
        raise InputError("name", name, allowed)
    if not is_trace_name(name):
        raise InputError("name", name, "must end like a trace: .json, .json.gz, .sqlite or .xplane.pb")
    return name


class Uploads:
    def __init__(self, settings: Settings) -> None:
        self._root = (settings.traces_dir or settings.data_dir / FOLDER).absolute()

    def folder(self, id: str) -> Path:
        return self._root / id

    def received(self, id: str, name: str) -> int:
        """How much of a file has arrived."""
        try:
            return (self.folder(id) / check_name(name)).stat().st_size
        except FileNotFoundError:
            return 0

    async def write(
        self, id: str, name: str, offset: int, chunks: AsyncIterator[bytes], reach: int, reserve: Reserve
    ) -> None:
        """From the offset on: the same part sent again changes nothing. What came before a break stays. Up to
        `reach` its bytes are reserved; `reserve` asks for more."""
        file = await run_sync(self._open, id, name, offset)
        end = offset
        try:
            async for chunk in chunks:
                end += len(chunk)
                reach = reach if end <= reach else await run_sync(reserve, end)
                if end > reach:
                    raise NoRoomError
                await run_sync(file.write, chunk)
        finally:
            file.close()

    def digest(self, id: str, name: str) -> str:
        with (self.folder(id) / check_name(name)).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def find_timeline(self, id: str, name: str) -> bytes | None:
        """A file's events as tools/trace/timeline.py packs them, gzipped, if they are kept beside it."""
        with suppress(FileNotFoundError):
            return self._timeline(id, name).read_bytes()
        return None

    def keep_timeline(self, id: str, name: str, packed: bytes) -> None:
        _keep(self._timeline(id, name), packed)

    def find_overview(self, id: str) -> bytes | None:
        """All ranks at a glance, gzipped; None before the analysis, and of one that release 0.2 made."""
        with suppress(FileNotFoundError):
            return (self.folder(id) / OVERVIEW).read_bytes()
        return None

    def keep_overview(self, id: str, packed: bytes) -> None:
        _keep(self.folder(id) / OVERVIEW, packed)

    def _timeline(self, id: str, name: str) -> Path:
        return self.folder(id) / f".{check_name(name)}.timeline"

    def discard(self, id: str) -> None:
        """Renamed first: a folder that is half deleted must not be read as whole.

        Idempotent: a repeated call finishes what a process that died left.
        """
        folder = self.folder(id)
        doomed = folder.with_name(f".{id}.deleted")
        shutil.rmtree(doomed, ignore_errors=True)
        with suppress(FileNotFoundError):
            os.replace(folder, doomed)
        shutil.rmtree(doomed, ignore_errors=True)

    def _open(self, id: str, name: str, offset: int) -> BinaryIO:
        """Locked: two senders of one file would mix it up."""
        folder = self.folder(id)
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / check_name(name), os.O_RDWR | os.O_CREAT, 0o640)
        file = os.fdopen(descriptor, "r+b")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            received = os.fstat(file.fileno()).st_size
            if offset > received:
                raise ConflictError(f"{received} bytes have arrived; go on from there", "offset")
            file.truncate(offset)
            file.seek(offset)
        except BlockingIOError:
            file.close()
            raise ConflictError(f"{name} is being uploaded by another client", path="name") from None
        except BaseException:
            file.close()
            raise
        return file


def _keep(file: Path, packed: bytes) -> None:
    part = file.with_name(f".{file.name}.{get_ident()}.part")
    try:
        with suppress(FileNotFoundError):  # the upload was deleted
            part.write_bytes(packed)
            os.replace(part, file)
    finally:
        part.unlink(missing_ok=True)  # half of it, if the disk is full
