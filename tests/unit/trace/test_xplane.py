"""XPlane profiles: xprof is replaced by what it answers, so that the mapping is tested without it."""

import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tools.trace.classify import load_patterns
from tools.trace.rank_profile import RankProfile, profile_rank
from tools.trace.record import UnreadableTraceError
from tools.trace.xplane import read_xplane


def _pretend_xprof(monkeypatch: pytest.MonkeyPatch, answer: object) -> None:
    package, convert, module = (ModuleType(name) for name in ("xprof", "xprof.convert", "raw_to_tool_data"))
    convert.raw_to_tool_data = module  # type: ignore[attr-defined]

    def convert_it(paths: list[str], tool: str, options: dict[str, object]) -> tuple[object, str]:
        assert tool == "trace_viewer"
        if isinstance(answer, Exception):
            raise answer
        return answer, "application/json"

    module.xspace_to_tool_data = convert_it  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "xprof", package)
    monkeypatch.setitem(sys.modules, "xprof.convert", convert)


def _profile(monkeypatch: pytest.MonkeyPatch, *events: dict[str, object]) -> RankProfile:
    _pretend_xprof(monkeypatch, json.dumps({"displayTimeUnit": "ns", "traceEvents": events}))
    return profile_rank(read_xplane(Path("host.xplane.pb")), load_patterns())


def _line(pid: int, tid: int, name: str) -> dict[str, object]:
    kind = "thread_name" if tid else "process_name"
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"name": name}}


def _op(pid: int, tid: int, name: str, start: float, length: float, **args: str) -> dict[str, object]:
    return {"ph": "X", "name": name, "pid": pid, "tid": tid, "ts": start, "dur": length, "args": args}


def test_xla_ops_of_one_device_become_device_work(monkeypatch: pytest.MonkeyPatch) -> None:
    labels = [(1, 0, "/host:CPU"), (3, 0, "/device:TPU:0"), (4, 0, "/device:TPU:1"), (3, 1, "XLA Ops")]
    profile = _profile(
        monkeypatch,
        *(_line(*label) for label in (*labels, (3, 2, "XLA Modules"), (4, 1, "XLA Ops"))),
        _op(1, 1, "train 0", 0, 100, step_num="0"),
        _op(3, 1, "fusion.1", 10, 30),
        _op(3, 1, "all-reduce.2", 40, 20),
        _op(3, 1, "copy.3", 60, 5),
        _op(3, 2, "jit_step", 10, 55),
        _op(4, 1, "fusion.1", 10, 30),
    )
    terms = profile.breakdown
    assert (terms.compute_ns, terms.communication_ns, terms.memory_ns) == (30_000, 20_000, 5_000)
    assert [step.number for step in profile.steps] == [0]
    assert any("several devices" in note for note in profile.notes)


@pytest.mark.parametrize("answer", [None, "", "not json", "{}", ValueError("broken protobuf")])
def test_what_xprof_cannot_read_is_refused(monkeypatch: pytest.MonkeyPatch, answer: object) -> None:
    _pretend_xprof(monkeypatch, answer)
    with pytest.raises(UnreadableTraceError, match="xprof"):
        read_xplane(Path("host.xplane.pb"))


def test_without_xprof_the_reason_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xprof.convert", None)
    with pytest.raises(UnreadableTraceError, match=r"asap-sharding\[xprof\]"):
        read_xplane(Path("host.xplane.pb"))
