"""Uploaded traces on disk: a folder for each upload, files written from an offset on, digests at the end.

Not here: who may upload and what is kept about it (service/api/routes, service/store/traces.py). With several
replicas the folder is a shared one; what it holds of a file is the truth about how much has arrived.
"""

import fcntl
import hashlib
import os
import re
import shutil
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from anyio.to_thread import run_sync

from service.errors import ConflictError
from service.settings import Settings
from tools.errors import InputError
from tools.trace.formats import is_trace_name

FOLDER = "traces"
REFERENCE = "trace:"
"""`"traces": "trace:<id>"` in a request means an upload, anything else a folder of the server."""
MOST_FILES = 20_000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@=+-]{0,199}")
_CHUNK_BYTES = 1 << 20


class NoRoomError(Exception):
    """More came than there is room for."""


def find_reference(traces: str) -> str | None:
    """The id of the upload that a request names; None where it names a folder."""
    return traces.removeprefix(REFERENCE) if traces.startswith(REFERENCE) else None


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

    def others_bytes(self, id: str, name: str) -> int:
        """What the other files of the upload take."""
        folder = self.folder(id)
        files = folder.iterdir() if folder.is_dir() else ()
        return sum(file.stat().st_size for file in files if file.name != name)

    async def write(
        self, id: str, name: str, offset: int, chunks: AsyncIterator[bytes], most_bytes: int
    ) -> None:
        """From the offset on: the same part sent again changes nothing. What came before a break stays."""
        file = await run_sync(self._open, id, name, offset)
        end = offset
        try:
            async for chunk in chunks:
                end += len(chunk)
                if end > most_bytes:
                    raise NoRoomError
                await run_sync(file.write, chunk)
        finally:
            file.close()

    def digest(self, id: str, name: str) -> str:
        found = hashlib.sha256()
        with (self.folder(id) / check_name(name)).open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                found.update(chunk)
        return found.hexdigest()

    def discard(self, id: str) -> None:
        """Renamed first: a folder that is half deleted must not be read as whole.

        Once more does the rest, where a process died over it.
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
            _check_offset(file, offset)
            file.truncate(offset)
            file.seek(offset)
        except BlockingIOError:
            file.close()
            raise ConflictError(f"{name} is being uploaded by somebody else", field="name") from None
        except BaseException:
            file.close()
            raise
        return file


def _check_offset(file: BinaryIO, offset: int) -> None:
    received = os.fstat(file.fileno()).st_size
    if offset > received:
        raise ConflictError(f"{received} bytes have arrived; go on from there, not from {offset}", "offset")
