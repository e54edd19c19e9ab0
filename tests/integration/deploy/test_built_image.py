"""The image, built and run as docker-compose.yml runs it: read-only, unprivileged, as a user of its own.

`make test-image` installs podman first; without it, or without the base image, these are skipped.
"""

import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from asap_client.client import Client

pytestmark = [pytest.mark.real, pytest.mark.slow]

REPO = Path(__file__).parents[3]
EXAMPLE = REPO / "examples" / "llama-3.1-70b-64xh100.json"
BASE = "docker.io/library/python:3.11-slim-bookworm"
IMAGE = "localhost/asap-sharding-test"
AS_COMPOSE = ["--read-only", "--cap-drop=ALL", "--security-opt=no-new-privileges", "--tmpfs=/scratch"]
IN_A_SANDBOX = ["--network=host", "--ulimit=nofile=4096:4096", "--ulimit=nproc=4096:4096"]
"""What a machine without a bridge, or a root without all rights, asks for besides."""
PORT = 8397
READY_S = 90.0

Run = Callable[..., subprocess.CompletedProcess[str]]


def podman(*words: str, given: str | None = None) -> subprocess.CompletedProcess[str]:
    runtime = ["--runtime=runc"] if shutil.which("runc") else []
    return subprocess.run(
        ["podman", *runtime, *words], input=given, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def image() -> str:
    if not shutil.which("podman"):
        pytest.skip("needs podman: make test-image installs it")
    if podman("image", "exists", BASE).returncode:
        pytest.skip(f"needs the image {BASE}: make test-image gets or makes it")
    built = podman(
        "build", "--isolation=chroot", "--pull=never", "--format=docker", f"--tag={IMAGE}", str(REPO)
    )
    assert built.returncode == 0, built.stderr[-4000:]
    return IMAGE


@pytest.fixture
def run(image: str) -> Run:
    def once(
        *words: str, given: str | None = None, also: tuple[str, ...] = ()
    ) -> subprocess.CompletedProcess[str]:
        options = ["--rm", "--interactive", "--no-healthcheck", *AS_COMPOSE, *IN_A_SANDBOX, *also]
        return podman("run", *options, image, *words, given=given)

    return once


@pytest.fixture
def served(image: str) -> Iterator[str]:
    """The name of a container that serves."""
    options = ["--detach", "--no-healthcheck", "--volume=/data", *AS_COMPOSE, *IN_A_SANDBOX]
    started = podman("run", *options, image, "serve", f"--port={PORT}")
    assert started.returncode == 0, started.stderr
    name = started.stdout.strip()
    yield name
    podman("rm", "--force", "--volumes", name)


def health_check(image: str) -> list[str]:
    """The image's own, at the port of this test."""
    (told,) = json.loads(podman("image", "inspect", image).stdout)
    kind, *command = told["Healthcheck"]["Test"]
    assert kind == "CMD"
    return [word.replace(":8000", f":{PORT}") for word in command]


def test_a_command_reads_its_scenario_from_standard_input(run: Run) -> None:
    done = run("predict", "-", "--json", given=EXAMPLE.read_text())
    assert json.loads(done.stdout)["step_time_s"] > 0, done.stderr


def test_it_runs_as_the_user_that_kubernetes_names(run: Run) -> None:
    assert run("-c", "id -u; id -g", also=("--entrypoint=sh",)).stdout.split() == ["10001", "10001"]


def test_a_volume_of_another_user_is_refused_in_one_line(run: Run) -> None:
    done = run("serve", also=("--tmpfs=/data",))
    assert "ASAP_DATA_DIR: got '/data'; must be a folder that this user may write" in done.stderr
    assert done.returncode == 2


def test_it_is_healthy_answers_a_session_and_stops_when_asked(image: str, served: str) -> None:
    until = time.monotonic() + READY_S
    while podman("exec", served, *health_check(image)).returncode:
        assert time.monotonic() < until, podman("logs", served).stderr[-2000:]
        time.sleep(0.5)
    with Client(f"http://127.0.0.1:{PORT}") as client:
        session = client.submit(json.loads(EXAMPLE.read_text()))
        assert client.wait(session.id, timeout_s=READY_S).state == "completed"
    assert podman("stop", "--time=40", served).returncode == 0
    (ended,) = json.loads(podman("inspect", served).stdout)
    assert ended["State"]["ExitCode"] == 0
