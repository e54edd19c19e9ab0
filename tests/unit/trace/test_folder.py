"""Folders: which files, which rank each is, what is unreadable, and summaries."""

import json
from pathlib import Path

import pytest

from tests.unit.trace.builders import host_event, kernel, launch, shapes, write
from tools.errors import InputError
from tools.hardware import get_device
from tools.trace import folder as folder_module
from tools.trace.classify import load_patterns
from tools.trace.files import profile_file, write_summary
from tools.trace.folder import find_trace_files, profile_folder
from tools.trace.kineto import find_rank_in_name
from tools.trace.rank_profile import RankProfile


@pytest.mark.parametrize(
    ("files", "ranks"),
    [
        ({"rank0.json": 5}, [("rank0.json", 5, "distributedInfo")]),
        ({"a.json": None, "b.json": None}, [("a.json", 0, "order"), ("b.json", 1, "order")]),
        ({"a.json": 0, "b.json": 0}, [("a.json", 0, "distributedInfo"), ("b.json", 1, "order")]),
    ],
    ids=["metadata before name", "order", "two files of one rank"],
)
def test_every_file_gets_a_rank_of_its_own(
    tmp_path: Path, files: dict[str, int | None], ranks: list[tuple[str, int, str]]
) -> None:
    for name, rank in files.items():
        write(tmp_path, [kernel("gemm", 0, 5)], name, distributedInfo={"rank": rank})
    profiles = profile_folder(tmp_path).ranks
    assert [(profile.file, profile.rank, profile.rank_source) for profile in profiles] == ranks
    doubled = list(files.values()) == [0, 0]
    assert any("another file is rank 0" in note for note in profiles[-1].notes) == doubled


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("rank12.json.gz", 12),
        ("trace_8_rank_1.json", 1),
        ("worker.7.pt.trace.json", 7),
        ("mi250_train.json", None),
        ("trace_2024_11.json", None),
        ("Rank-003.json", 3),
    ],
)
def test_ranks_in_file_names(name: str, rank: int | None) -> None:
    assert find_rank_in_name(name) == rank


def test_traces_are_those_of_the_folder_or_of_its_sub_folders_and_no_viewers_copy(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="folder"):
        find_trace_files(tmp_path / "absent")
    with pytest.raises(InputError, match="folder"):
        find_trace_files(tmp_path)
    inner = tmp_path / "plugins"
    inner.mkdir()
    for name in ("host.xplane.pb", "host.trace.json.gz", "other.trace.json.gz"):
        (inner / name).touch()
    assert [path.name for path in find_trace_files(tmp_path)] == ["host.xplane.pb", "other.trace.json.gz"]
    write(tmp_path, [], "rank9.json")
    assert [path.name for path in find_trace_files(tmp_path)] == ["rank9.json"]


def test_processes_give_the_same_profiles_as_one_and_list_what_is_unreadable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rank in range(3):
        write(tmp_path, [kernel("gemm", 0, 5 + rank)], f"rank{rank}.json")
    (tmp_path / "rank3.json.gz").write_bytes(b"\x1f\x8bbroken")
    alone = profile_folder(tmp_path, limits=None)
    monkeypatch.setattr(folder_module, "_PARALLEL_FROM_BYTES", 0)
    seen: list[tuple[int, int]] = []
    together = profile_folder(tmp_path, progress=lambda done, total: seen.append((done, total)), workers=2)
    assert together == alone
    assert [rank.rank for rank in alone.ranks] == [0, 1, 2]
    assert [(file.file, "gzip" in file.reason) for file in alone.unreadable] == [("rank3.json.gz", True)]
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]


def _summary(folder: Path) -> tuple[RankProfile, Path]:
    """A profile, and its summary in a folder of its own."""
    events = [
        host_event("user_annotation", "ProfilerStep#1", 0, 90),
        host_event("cpu_op", "aten::mm", 0, 50, args=shapes([64, 64], [64, 64])),
        launch(5, 3, 1),
        kernel("gemm", 60, 5, correlation=1),
        kernel("ncclDevKernel_AllReduce_Sum_f32", 70, 5, stream=9),
    ]
    profile, path = profile_file(write(folder, events), load_patterns()), folder / "summaries"
    path.mkdir()
    write_summary(profile, path / "rank0.summary.json")
    return profile, path / "rank0.summary.json"


def test_a_summary_is_read_as_the_profile_it_was_with_the_roof_of_the_device_named(tmp_path: Path) -> None:
    profile, path = _summary(tmp_path)
    profile.file = path.name
    assert profile_file(path, load_patterns()) == profile
    assert profile.roofline[0].peak_flops_per_s is None
    device = get_device("cpu")
    (point,) = profile_file(path, load_patterns(), device).roofline
    assert (point.peak_flops_per_s, point.dims) == (device.peak_flops["fp32"], (1, 64, 64, 64))


@pytest.mark.parametrize(
    ("part", "field", "value"),
    [
        ("roofline", "time_ns", 0),
        ("roofline", "moved_bytes", 0),
        ("roofline", "flops", 1e308),
        ("roofline", "roof_flops_per_s", 0),
        ("collectives", 5, 2**63),
        ("collectives", 6, -(2**63)),
        (None, "file", 5),
    ],
)
def test_a_summary_with_figures_that_no_rank_has_is_unreadable(
    tmp_path: Path, part: str | None, field: str | int, value: float
) -> None:
    _, path = _summary(tmp_path)
    content = json.loads(path.read_text())
    (content[part][0] if part else content)[field] = value
    path.write_text(json.dumps(content))
    assert "not a rank summary" in profile_folder(path.parent).unreadable[0].reason
