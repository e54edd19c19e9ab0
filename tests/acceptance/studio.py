"""`langgraph dev`, LangGraph's own server, with the graph that langgraph.json names."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.acceptance.product import wait_for
from tests.integration.service.api_process import REPO, environment
from tests.servers import free_port

STUDIO = REPO / ".venv-studio/bin/langgraph"


@contextmanager
def studio(folder: Path, **settings: object) -> Iterator[httpx.Client]:
    """Started in a copy of the little it reads, since it writes beside langgraph.json."""
    (folder / "langgraph.json").write_text((REPO / "langgraph.json").read_text())
    (folder / "service").symlink_to(REPO / "service")
    port = free_port()
    words = ["dev", "--no-browser", "--no-reload", "--port", str(port)]
    with (folder / "studio.log").open("w") as log:
        process = subprocess.Popen(
            [STUDIO, *words], cwd=folder, env=environment(folder, **settings), stdout=log, stderr=log
        )
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60.0) as http:
            wait_for(lambda: _answers(http, process))
            yield http
    finally:
        process.terminate()
        process.wait(30.0)


def _answers(http: httpx.Client, process: "subprocess.Popen[bytes]") -> bool:
    assert process.poll() is None, "langgraph dev ended; its log is studio.log"
    try:
        return http.get("/ok").is_success
    except httpx.TransportError:
        return False
