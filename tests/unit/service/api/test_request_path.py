"""How many files of the service one request passes through: a reader must be able to follow it."""

import threading
from pathlib import Path
from types import FrameType

import service
from tests.unit.service.served import Serve

ROOT = Path(service.__file__).parent
MAX_FILES = 13


def test_submitting_a_session_passes_few_files(serve: Serve) -> None:
    seen: set[str] = set()

    def note(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call":
            seen.add(frame.f_code.co_filename)

    threading.setprofile(note)  # of the threads that the server starts from here on
    try:
        served = serve()
        served.submit()
        seen.clear()  # what is imported or opened at the first request counts for nothing
        served.submit()
    finally:
        threading.setprofile(None)
    files = sorted(str(Path(name).relative_to(ROOT)) for name in seen if name.startswith(str(ROOT)))
    assert len(files) <= MAX_FILES, " ".join(files)
