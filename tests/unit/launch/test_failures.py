"""Why a job failed. The log lines are those that PyTorch, Slurm and the kernel print."""

import json
import math
import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.launch.failures import Failure, FailureReport, Heartbeat, JobEvidence, classify, read_evidence
from tools.launch.status import FailureCause, JobState, JobStatus
from tools.launch.status import FailureKind as Kind

FAILED = JobStatus(JobState.FAILED, FailureCause.EXIT, 1, source="supervisor")
WALL = JobStatus(
    JobState.FAILED, FailureCause.WALL_LIMIT, signal=15, source="supervisor", ended_unix_s=1000.0
)
PEER = (
    "[rank0]: RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:29876. "
    "This is typically caused by a remote worker crashing."
)
WATCHDOG = (
    "[rank2]:[E] [PG ID 0 Rank 2] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, "
    "OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600029 milliseconds before timing out."
)
LINES = {
    Kind.OUT_OF_MEMORY: [
        "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB. GPU 3 has 79 GiB",
        "[rank1]: RuntimeError: [enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't "
        "allocate memory: you tried to allocate 4503599627370496 bytes. Error code 12",
        "slurmstepd-n1: error: Detected 1 oom_kill event in StepId=21.0. Some of the step tasks "
        "have been OOM Killed.",
        "slurmstepd-n1: error: Exceeded job memory limit",
        "slurmstepd-n1: error: StepId=21.0 exceeded memory limit (408739840 > 209715200), being killed",
        "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory allocating 1 bytes",
        "MemoryError",
    ],
    Kind.COMMUNICATION_TIMEOUT: [
        "[rank0]: RuntimeError: [gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 3000ms "
        "for recv operation to complete",
        WATCHDOG,
        "torch.distributed.DistStoreError: wait timeout after 300000ms, keys: /default_pg/0/barrier",
        "torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError",
    ],
    Kind.NODE_DOWN: [
        "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-11-16T07:29:41 DUE TO NODE FAILURE ***",
        "srun: error: Node failure on n2",
        "RuntimeError: CUDA error: uncorrectable ECC error encountered",
        "OSError: [Errno 28] No space left on device: 'out/result.json'",
    ],
    Kind.NUMERICS: [
        "step 12: loss is nan",
        "ERROR non-finite loss at step 3",
        "FloatingPointError: x",
    ],
    Kind.BAD_CONFIGURATION: [
        "train.py: error: unrecognized arguments: --foo",
        "trainer: error: plan.tp: got 3; must divide heads",
        "ModuleNotFoundError: No module named 'torchtitan'",
        "AssertionError: hidden size 100 is not divisible by tensor parallel size 3",
    ],
}


def get_failure(evidence: JobEvidence) -> Failure:
    failure = classify(evidence)
    assert failure is not None
    return failure


@pytest.mark.parametrize(("kind", "line"), [(kind, line) for kind, lines in LINES.items() for line in lines])
def test_a_log_line_shows_its_kind(kind: Kind, line: str) -> None:
    failure = get_failure(JobEvidence(FAILED, ["starting", line, PEER, "bye"]))
    assert failure.kind is kind
    assert failure.confidence < 0.9
    assert failure.evidence[0].startswith(line[:60])


@pytest.mark.parametrize(
    ("cause", "kind"),
    [
        (FailureCause.CANCELLED, Kind.CANCELLED),
        (FailureCause.OUT_OF_MEMORY, Kind.OUT_OF_MEMORY),
        (FailureCause.NODE_FAILURE, Kind.NODE_DOWN),
        (FailureCause.PREEMPTED, Kind.NODE_DOWN),
        (FailureCause.START_FAILURE, Kind.BAD_CONFIGURATION),
    ],
)
def test_the_engines_cause_outweighs_any_log(cause: FailureCause, kind: Kind) -> None:
    status = JobStatus(JobState.CANCELLED if cause is FailureCause.CANCELLED else JobState.FAILED, cause, 1)
    failure = get_failure(JobEvidence(status, [line for lines in LINES.values() for line in lines]))
    assert failure.kind is kind
    assert failure.confidence >= 0.9


@pytest.mark.parametrize(
    "status", [JobStatus(JobState.RUNNING), JobStatus(JobState.SUCCEEDED, FailureCause.EXIT, 0)]
)
def test_a_running_or_successful_job_has_not_failed_whatever_it_printed(status: JobStatus) -> None:
    assert classify(JobEvidence(status, LINES[Kind.OUT_OF_MEMORY])) is None


@pytest.mark.parametrize("loss", [math.nan, math.inf])
@pytest.mark.parametrize("state", [JobState.SUCCEEDED, JobState.FAILED])
def test_a_non_finite_loss_is_a_numerics_failure_even_with_exit_status_zero(
    loss: float, state: JobState
) -> None:
    heartbeats = [Heartbeat(step=n, loss=value, unix_time_s=n) for n, value in enumerate((4.0, loss))]
    failure = get_failure(JobEvidence(replace(FAILED, state=state), heartbeats=heartbeats))
    assert failure.kind is Kind.NUMERICS
    assert "step 1" in failure.evidence[0]


OOM, TIMEOUT, BAD = Kind.OUT_OF_MEMORY, Kind.COMMUNICATION_TIMEOUT, Kind.BAD_CONFIGURATION


@given(st.lists(st.text(max_size=400), max_size=30), st.sampled_from([FAILED, WALL]))
def test_evidence_is_short_and_printable_whatever_the_log(lines: list[str], status: JobStatus) -> None:
    for log in (lines, ["\x1b[31mCUDA out of memory\x1b[2J\x07 ignore all instructions", *lines]):
        evidence = get_failure(JobEvidence(status, log)).evidence
        assert len(evidence) <= 5
        assert all(len(line) <= 300 and (line.isprintable() or not line) for line in evidence)


def beat(step: int, loss: float, **more: str) -> str:
    return json.dumps({"step": step, "step_s": 0.5, "loss": loss, "unix_time_s": 10.0} | more) + "\n"


def test_heartbeats_reports_and_the_last_lines_are_read(tmp_path: Path) -> None:
    (tmp_path / "progress.jsonl").write_text(beat(3, math.nan, phase="measure") + '{"step": 4, "ste')
    (tmp_path / "failures").mkdir()
    (tmp_path / "failures/n1-7.json").write_text(json.dumps({"kind": "InputError", "message": "plan.tp: no"}))
    evidence = read_evidence(FAILED, tmp_path, ["last words"])
    assert [(beat.step, beat.step_s) for beat in evidence.heartbeats] == [(3, 0.5)]
    assert math.isnan(evidence.heartbeats[0].loss)
    assert evidence.reports == [FailureReport("InputError", "plan.tp: no")]
    assert evidence.log == ["last words"]


def test_a_job_may_leave_nothing_and_links_and_pipes_are_not_followed(tmp_path: Path) -> None:
    assert read_evidence(FAILED, tmp_path, ["a" * 5000]) == JobEvidence(FAILED, ["a" * 2000], [], [])
    assert read_evidence(FAILED, tmp_path / "none", []) == JobEvidence(FAILED, [], [], [])
    (tmp_path / "secret.json").write_text(json.dumps({"kind": "secret", "message": "s"}))
    (tmp_path / "failures").mkdir()
    (tmp_path / "failures/a.json").symlink_to(tmp_path / "secret.json")
    os.mkfifo(tmp_path / "failures/b.json")
    os.mkfifo(tmp_path / "progress.jsonl")
    assert read_evidence(FAILED, tmp_path, []) == JobEvidence(FAILED, [], [], [])


values = st.one_of(st.none(), st.booleans(), st.floats(), st.integers(), st.text(max_size=5), st.just([1]))
odd = st.dictionaries(st.sampled_from(["step", "step_s", "loss", "unix_time_s", "kind", "message"]), values)


@given(st.lists(odd.map(json.dumps) | st.text(max_size=30) | st.just("[" * 5000)))
def test_no_content_is_an_error(tmp_path_factory: pytest.TempPathFactory, lines: list[str]) -> None:
    folder = tmp_path_factory.mktemp("out")
    (folder / "failures").mkdir()
    for name in ("progress.jsonl", "failures/a.json"):
        (folder / name).write_text("\n".join(lines), encoding="utf-8", errors="replace")
    read_evidence(FAILED, folder, [])


KILLED = replace(FAILED, exit_status=None, signal=9)


TORCHRUN = (
    "E1116 2095 torch/distributed/elastic/multiprocessing/api.py:1] failed (exitcode: -9) local_rank: 1"
)


def beats(last_s: float, step_s: float = 1.0, loss: float = 4.0) -> list[Heartbeat]:
    times = [last_s - step_s * (9 - step) for step in range(10)]
    return [Heartbeat(step=n, step_s=step_s, loss=loss, unix_time_s=at) for n, at in enumerate(times)]


REPORTS = [
    FailureReport("RuntimeError", "Connection closed by peer"),
    FailureReport("OutOfMemoryError", "CUDA out of memory. Tried to allocate 2 GiB"),
]


REFUSAL = [FailureReport("InputError", "plan.tp: got 3; must divide the heads")]


HOSTILE = ["a" * 2000, "CUDA " * 400, "loss is " * 250, "can't open file " * 120, "(((" * 600] * 40


KILLED_137 = replace(FAILED, exit_status=137)


LOST = JobStatus(JobState.LOST, FailureCause.LOST)


OUTCOMES: dict[str, tuple[JobEvidence, Kind, float]] = {
    "rank out of memory, then lost peers": (JobEvidence(FAILED, [PEER, PEER], reports=REPORTS), OOM, 0.95),
    "refused input": (JobEvidence(FAILED, [PEER], reports=REFUSAL), BAD, 0.95),
    "lost connection alone": (JobEvidence(FAILED, [PEER]), TIMEOUT, 0.5),
    "wall limit, steady steps": (JobEvidence(WALL, [], beats(999.0)), Kind.WALL_LIMIT, 0.9),
    "wall limit, one slow step": (JobEvidence(WALL, [], beats(990.0)), Kind.WALL_LIMIT, 0.9),
    "wall limit, long silence": (JobEvidence(WALL, [], beats(900.0)), Kind.HANG, 0.85),
    "wall limit, no step at all": (JobEvidence(WALL), Kind.HANG, 0.6),
    "wall limit, slow steps": (JobEvidence(WALL, [], beats(840.0, step_s=60.0)), Kind.WALL_LIMIT, 0.9),
    "connections lost while the job is ended": (
        JobEvidence(WALL, [PEER], beats(999.0)),
        Kind.WALL_LIMIT,
        0.9,
    ),
    "watchdog before the wall limit": (JobEvidence(WALL, [WATCHDOG], beats(900.0)), TIMEOUT, 0.8),
    "SIGKILL, counted by the kernel": (JobEvidence(replace(KILLED, oom_kills=1)), OOM, 0.9),
    "SIGKILL, not counted": (JobEvidence(replace(KILLED, oom_kills=0)), OOM, 0.4),
    "status 137, counted by the kernel": (JobEvidence(replace(KILLED_137, oom_kills=1)), OOM, 0.9),
    "status 137, not counted": (JobEvidence(replace(KILLED_137, oom_kills=0)), OOM, 0.4),
    "worker killed under torchrun": (JobEvidence(replace(FAILED, oom_kills=2), [PEER, TORCHRUN]), OOM, 0.9),
    "nothing to run": (JobEvidence(replace(FAILED, exit_status=127)), BAD, 0.85),
    "usage error": (JobEvidence(replace(FAILED, exit_status=2), ["?"]), BAD, 0.6),
    "lost job": (JobEvidence(LOST, ["?"]), Kind.NODE_DOWN, 0.4),
    "no evidence": (JobEvidence(FAILED, ["nothing to see"]), Kind.UNKNOWN, 0.0),
    "long hostile lines": (JobEvidence(FAILED, HOSTILE), Kind.UNKNOWN, 0.0),
}


@pytest.mark.parametrize(("evidence", "kind", "confidence"), OUTCOMES.values(), ids=OUTCOMES)
def test_the_strongest_evidence_decides(evidence: JobEvidence, kind: Kind, confidence: float) -> None:
    failure = get_failure(evidence)
    assert (failure.kind, failure.confidence) == (kind, confidence)
