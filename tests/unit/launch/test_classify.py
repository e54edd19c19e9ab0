"""Why a job failed. The log lines are those that PyTorch, Slurm and the kernel print."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.launch.failures import Evidence, FailureKind, FailureReport, Heartbeat, classify
from tools.launch.status import Cause, JobStatus, State

FAILED = JobStatus(State.FAILED, Cause.EXIT, 1, source="supervisor")
WALL = JobStatus(State.FAILED, Cause.WALL_LIMIT, signal=15, source="supervisor", ended_unix_s=1000.0)
PEER = (
    "[rank0]: RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:29876. "
    "This is typically caused by a remote worker crashing."
)
LINES = {
    FailureKind.OUT_OF_MEMORY: [
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
    FailureKind.COMMUNICATION_TIMEOUT: [
        "[rank0]: RuntimeError: [gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 3000ms "
        "for recv operation to complete",
        "[rank2]:[E] [PG ID 0 Rank 2] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, "
        "OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600029 milliseconds before timing out.",
        "torch.distributed.DistStoreError: wait timeout after 300000ms, keys: /default_pg/0/barrier",
        "torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError",
    ],
    FailureKind.NODE_DOWN: [
        "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-11-16T07:29:41 DUE TO NODE FAILURE ***",
        "srun: error: Node failure on n2",
        "RuntimeError: CUDA error: uncorrectable ECC error encountered",
    ],
    FailureKind.NUMERICS: [
        "step 12: loss is nan",
        "ERROR non-finite loss at step 3",
        "FloatingPointError: x",
    ],
    FailureKind.BAD_CONFIGURATION: [
        "train.py: error: unrecognized arguments: --foo",
        "trainer: error: plan.tp: got 3; must divide heads",
        "ModuleNotFoundError: No module named 'torchtitan'",
        "AssertionError: hidden size 100 is not divisible by tensor parallel size 3",
    ],
}


def kind_of(evidence: Evidence) -> FailureKind:
    failure = classify(evidence)
    assert failure is not None
    return failure.kind


@pytest.mark.parametrize(("kind", "line"), [(kind, line) for kind, lines in LINES.items() for line in lines])
def test_a_line_of_the_log_tells_its_kind(kind: FailureKind, line: str) -> None:
    failure = classify(Evidence(FAILED, ["starting", line, PEER, "bye"]))
    assert failure is not None
    assert failure.kind is kind
    assert failure.confidence < 0.9
    assert failure.evidence[0].startswith(line[:60])


@pytest.mark.parametrize(
    ("cause", "kind"),
    [
        (Cause.CANCELLED, FailureKind.CANCELLED),
        (Cause.OUT_OF_MEMORY, FailureKind.OUT_OF_MEMORY),
        (Cause.NODE_FAILURE, FailureKind.NODE_DOWN),
        (Cause.PREEMPTED, FailureKind.NODE_DOWN),
        (Cause.START_FAILURE, FailureKind.BAD_CONFIGURATION),
    ],
)
def test_the_engines_word_stands_against_any_log(cause: Cause, kind: FailureKind) -> None:
    status = JobStatus(State.CANCELLED if cause is Cause.CANCELLED else State.FAILED, cause, 1)
    everything = [line for lines in LINES.values() for line in lines]
    failure = classify(Evidence(status, everything))
    assert failure is not None
    assert failure.kind is kind
    assert failure.confidence >= 0.9


def test_a_job_under_way_has_not_failed() -> None:
    assert classify(Evidence(JobStatus(State.RUNNING), LINES[FailureKind.OUT_OF_MEMORY])) is None


def test_a_success_is_a_success_whatever_it_printed() -> None:
    status = JobStatus(State.SUCCEEDED, Cause.EXIT, 0)
    assert classify(Evidence(status, LINES[FailureKind.OUT_OF_MEMORY])) is None


@pytest.mark.parametrize("loss", [math.nan, math.inf])
@pytest.mark.parametrize("state", [State.SUCCEEDED, State.FAILED])
def test_a_loss_that_is_no_number_is_a_failure_of_numerics_even_with_exit_status_zero(
    loss: float, state: State
) -> None:
    beats = [Heartbeat(0, 1.0, 4.0, 1.0), Heartbeat(1, 1.0, loss, 2.0)]
    failure = classify(Evidence(replace(FAILED, state=state), heartbeats=beats))
    assert failure is not None
    assert failure.kind is FailureKind.NUMERICS
    assert "step 1" in failure.evidence[0]


def test_a_rank_out_of_memory_is_the_cause_and_its_peers_the_consequence() -> None:
    reports = [
        FailureReport("RuntimeError", "Connection closed by peer"),
        FailureReport("OutOfMemoryError", "CUDA out of memory. Tried to allocate 2 GiB"),
    ]
    failure = classify(Evidence(FAILED, [PEER, PEER], reports=reports))
    assert failure is not None
    assert failure.kind is FailureKind.OUT_OF_MEMORY
    assert failure.confidence == 0.95


def test_a_refused_input_is_a_bad_configuration() -> None:
    reports = [FailureReport("InputError", "plan.tp: got 3; must divide the heads")]
    assert kind_of(Evidence(FAILED, [PEER], reports=reports)) is FailureKind.BAD_CONFIGURATION


def beats(last_s: float) -> list[Heartbeat]:
    return [Heartbeat(step, 1.0, 4.0, last_s - 9 + step) for step in range(10)]


def test_at_the_wall_limit_a_steady_job_was_slow_and_a_silent_one_hung() -> None:
    assert kind_of(Evidence(WALL, heartbeats=beats(999.0))) is FailureKind.WALL_LIMIT
    assert kind_of(Evidence(WALL, heartbeats=beats(990.0))) is FailureKind.WALL_LIMIT
    assert kind_of(Evidence(WALL, heartbeats=beats(900.0))) is FailureKind.HANG
    assert kind_of(Evidence(WALL)) is FailureKind.HANG


def test_slow_steps_are_given_more_time_before_they_count_as_a_hang() -> None:
    slow = [Heartbeat(step, 60.0, 4.0, 300.0 + 60 * step) for step in range(10)]
    assert kind_of(Evidence(WALL, heartbeats=slow)) is FailureKind.WALL_LIMIT


def test_connections_lost_while_a_job_is_ended_are_no_timeout() -> None:
    assert kind_of(Evidence(WALL, [PEER], beats(999.0))) is FailureKind.WALL_LIMIT


def test_a_watchdog_before_the_wall_limit_is_a_timeout() -> None:
    line = LINES[FailureKind.COMMUNICATION_TIMEOUT][1]
    assert kind_of(Evidence(WALL, [line], beats(900.0))) is FailureKind.COMMUNICATION_TIMEOUT


@pytest.mark.parametrize(
    "status",
    [
        replace(FAILED, exit_status=None, signal=9),
        replace(FAILED, exit_status=137),
    ],
)
def test_a_kill_that_the_kernel_counts_is_for_memory(status: JobStatus) -> None:
    sure = classify(Evidence(replace(status, oom_kills=1)))
    unsure = classify(Evidence(replace(status, oom_kills=0)))
    assert sure is not None
    assert unsure is not None
    assert sure.kind is unsure.kind is FailureKind.OUT_OF_MEMORY
    assert sure.confidence > 0.8 > 0.5 > unsure.confidence


def test_a_killed_worker_under_torchrun_is_seen_in_its_line() -> None:
    line = (
        "E1116 2095 torch/distributed/elastic/multiprocessing/api.py:1] failed (exitcode: -9) local_rank: 1"
    )
    failure = classify(Evidence(replace(FAILED, oom_kills=2), [PEER, line]))
    assert failure is not None
    assert (failure.kind, failure.confidence) == (FailureKind.OUT_OF_MEMORY, 0.9)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (replace(FAILED, exit_status=127), FailureKind.BAD_CONFIGURATION),
        (replace(FAILED, exit_status=2), FailureKind.BAD_CONFIGURATION),
        (JobStatus(State.LOST, Cause.LOST), FailureKind.NODE_DOWN),
        (FAILED, FailureKind.UNKNOWN),
    ],
)
def test_without_other_evidence_the_exit_status_is_read(status: JobStatus, kind: FailureKind) -> None:
    assert kind_of(Evidence(status, ["nothing to see"])) is kind


def test_a_lost_connection_alone_is_a_weak_sign() -> None:
    failure = classify(Evidence(FAILED, [PEER]))
    assert failure is not None
    assert (failure.kind, failure.confidence) == (FailureKind.COMMUNICATION_TIMEOUT, 0.5)


@given(st.lists(st.text(max_size=400), max_size=30), st.sampled_from([FAILED, WALL]))
def test_any_log_is_data(lines: list[str], status: JobStatus) -> None:
    failure = classify(Evidence(status, lines))
    assert failure is not None
    assert len(failure.evidence) <= 5
    assert all(len(line) <= 300 and (line.isprintable() or not line) for line in failure.evidence)


def test_a_long_hostile_line_is_read_in_linear_time() -> None:
    lines = ["a" * 2000, "CUDA " * 400, "loss is " * 250, "can't open file " * 120, "(((" * 600] * 40
    assert kind_of(Evidence(FAILED, lines)) is FailureKind.UNKNOWN


def test_colours_and_cursor_movements_do_not_pass() -> None:
    failure = classify(Evidence(FAILED, ["\x1b[31mCUDA out of memory\x1b[2J\x07 ignore all instructions"]))
    assert failure is not None
    assert "\x1b" not in failure.evidence[0]
