"""Folders: which files, which rank each is, what is unreadable, and summaries."""

import json
from pathlib import Path

import pytest

from tests.unit.trace.builders import Event, host_event, kernel, launch, shapes, write
from tools.errors import InputError
from tools.hardware import Device, get_device
from tools.trace import folder as folder_module
from tools.trace.classify import load_patterns
from tools.trace.folder import find_trace_files, profile_file, profile_folder, write_summary
from tools.trace.kineto import find_rank_in_name
from tools.trace.rank_profile import RankProfile


def test_an_unreadable_rank_is_listed_and_the_others_are_analysed(tmp_path: Path) -> None:
    write(tmp_path, [kernel("gemm", 0, 5)], "rank0.json")
    write(tmp_path, [kernel("gemm", 0, 7)], "rank1.json.gz")
    (tmp_path / "rank2.json.gz").write_bytes(b"\x1f\x8bbroken")
    result = profile_folder(tmp_path)
    assert [rank.rank for rank in result.ranks] == [0, 1]
    assert result.unreadable[0].file == "rank2.json.gz"
    assert "gzip" in result.unreadable[0].reason


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


def test_sub_folders_are_searched_only_when_the_folder_has_no_trace(tmp_path: Path) -> None:
    inner = tmp_path / "plugins"
    inner.mkdir()
    (inner / "rank0.json").write_text("{}")
    assert [path.parent.name for path in find_trace_files(tmp_path)] == ["plugins"]
    write(tmp_path, [], "rank9.json")
    assert [path.name for path in find_trace_files(tmp_path)] == ["rank9.json"]


@pytest.mark.parametrize("name", ["absent", "."])
def test_a_folder_without_traces_is_the_users_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match="DIR"):
        find_trace_files(tmp_path / name)


def test_processes_give_the_same_profiles_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for rank in range(3):
        write(tmp_path, [kernel("gemm", 0, 5 + rank)], f"rank{rank}.json")
    alone = profile_folder(tmp_path)
    monkeypatch.setattr(folder_module, "_PARALLEL_FROM_BYTES", 0)
    seen: list[tuple[int, int]] = []
    together = profile_folder(tmp_path, progress=lambda done, total: seen.append((done, total)), workers=2)
    assert together.ranks == alone.ranks
    assert seen == [(1, 3), (2, 3), (3, 3)]


PRODUCT = host_event("cpu_op", "aten::mm", 0, 50, args=shapes([64, 64], [64, 64]))


def _summary(folder: Path, *events: Event, device: Device | None = None) -> tuple[RankProfile, Path]:
    """A profile, and its summary in a folder of its own."""
    profile, path = profile_file(write(folder, list(events)), load_patterns(), device), folder / "summaries"
    path.mkdir()
    write_summary(profile, path / "rank0.summary.json")
    return profile, path / "rank0.summary.json"


def test_a_summary_is_read_as_the_profile_it_was(tmp_path: Path) -> None:
    step = host_event("user_annotation", "ProfilerStep#1", 0, 50)
    nccl = kernel("ncclDevKernel_AllReduce_Sum_f32", 9, 5, stream=9)
    profile, path = _summary(tmp_path, step, kernel("gemm", 0, 5), nccl)
    profile.file = path.name
    assert profile_file(path, load_patterns()) == profile


def test_a_summary_gets_the_roof_of_the_device_that_is_named(tmp_path: Path) -> None:
    _, path = _summary(tmp_path, PRODUCT)
    assert profile_file(path, load_patterns()).roofline[0].peak_flops_per_s is None
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
    work = [launch(5, 3, 1), kernel("gemm", 60, 5, correlation=1)]
    nccl = kernel("ncclDevKernel_AllReduce_Sum_f32", 70, 5, stream=9)
    _, path = _summary(tmp_path, PRODUCT, *work, nccl, device=get_device("h100"))
    assert profile_folder(path.parent).unreadable == []
    content = json.loads(path.read_text())
    (content[part][0] if part else content)[field] = value
    path.write_text(json.dumps(content))
    assert "not a rank summary" in profile_folder(path.parent).unreadable[0].reason


def test_the_viewers_copy_of_a_jax_profile_is_not_another_rank(tmp_path: Path) -> None:
    for name in ("host.xplane.pb", "host.trace.json.gz", "other.trace.json.gz"):
        (tmp_path / name).touch()
    assert [path.name for path in find_trace_files(tmp_path)] == ["host.xplane.pb", "other.trace.json.gz"]
