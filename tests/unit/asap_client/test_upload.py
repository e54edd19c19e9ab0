"""What the callbacks bring into a training environment."""

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import httpx
import pytest

from asap_client import upload as profile_upload
from asap_client.capture import CaptureSchedule
from asap_client.client import Client
from asap_client.upload import PATIENCE_S, ProfileUpload, Ranks


class Steps:
    """A capture that counts, in place of torch's profiler."""

    trace_path: Path | None = None

    def __init__(self) -> None:
        self.count = 0

    def step(self) -> None:
        self.count += 1


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[Steps]:
    """Every capture that was begun."""
    captures: list[Steps] = []

    def capture(*_: object, **__: object) -> AbstractContextManager[Steps]:
        captures.append(Steps())
        return nullcontext(captures[-1])

    monkeypatch.setattr(profile_upload, "capture", capture)
    return captures


def make_upload(folder: Path) -> ProfileUpload:
    schedule = CaptureSchedule(wait=1, warmup=1, active=1)
    return ProfileUpload("http://127.0.0.1:9", folder=folder, schedule=schedule)


def test_training_goes_on_when_its_ranks_cannot_talk_to_each_other(
    begun: list[Steps], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise RuntimeError("torch was built without gloo")

    monkeypatch.setattr(Ranks, "of_this_job", fail)
    upload = make_upload(tmp_path)
    upload.start()
    with caplog.at_level(logging.ERROR, "asap.profile"):
        for _ in range(5):
            upload.step()
    upload.finish()
    assert begun[0].count == 3
    assert "without gloo" in caplog.text


def test_a_trainer_that_begins_again_is_not_profiled_a_second_time(
    begun: list[Steps], tmp_path: Path
) -> None:
    upload = make_upload(tmp_path)
    for _ in range(2):
        upload.start()
        upload.step()
        upload.finish()
    assert [steps.count for steps in begun] == [1]


def run_against(
    answer: Callable[[httpx.Request], httpx.Response], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A whole run of one rank whose server answers so."""
    monkeypatch.setattr(Ranks, "of_this_job", Ranks)
    upload = make_upload(folder)
    upload._client = Client("http://asap.test", transport=httpx.MockTransport(answer))
    upload.start()
    for _ in range(3):
        upload.step()
    upload.finish()


@pytest.fixture
def written(begun: list[Steps], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """What the profiler of the only rank wrote."""
    trace = tmp_path / "rank0.json.gz"
    trace.write_bytes(b"{}")
    monkeypatch.setattr(Steps, "trace_path", trace)
    return trace


def test_a_run_whose_profile_could_not_be_written_begins_no_upload(
    begun: list[Steps], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    requests: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        requests.append(request)
        return httpx.Response(500)

    run_against(answer, tmp_path, monkeypatch)
    assert not requests, "an upload that nobody completes would stay on the server"
    assert caplog.messages == ["no rank has a profile to upload"]


def test_training_does_not_wait_until_a_busy_server_wants_to_be_asked_again(
    written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paused: list[float] = []
    monkeypatch.setattr("asap_client.generated.client.time.sleep", paused.append)
    busy = httpx.Response(503, headers={"Retry-After": "60"})
    run_against(lambda _: busy, written.parent, monkeypatch)
    assert sum(paused) < PATIENCE_S


def test_a_server_that_never_answers_is_given_up_soon(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    timeouts: list[float] = []

    def hang(request: httpx.Request) -> httpx.Response:
        timeouts.append(request.extensions["timeout"]["read"])
        raise httpx.ReadTimeout("nobody answered")

    run_against(hang, written.parent, monkeypatch)
    assert timeouts == [PATIENCE_S]
