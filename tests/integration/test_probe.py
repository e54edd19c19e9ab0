"""The probe for real: on this machine, over a link of known rate and delay, with a rank that is held back."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path

import pytest

pytest.importorskip("torch")

from tools.probe.report import read_probe, report_of, settings_for

REPO = Path(__file__).resolve().parents[2]
MBIT, DELAY_MS = 200.0, 10.0
HEADERS_SHARE = (8960 - 52) / 8960
"""Of a packet of shaped_link.py: what is left for the payload."""


def worker(settings: Path, out: Path, *launch: str) -> list[str]:
    torchrun = [sys.executable, "-m", "torch.distributed.run", *launch]
    return [*torchrun, "-m", "tools.probe.worker", str(settings), "--out", str(out)]


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(REPO), "OMP_NUM_THREADS": "1", **more}


def write_settings(folder: Path, seconds: float) -> Path:
    settings = replace(
        settings_for("cpu", [], seconds, anyway=True), max_bytes=32 * 2**20, products=((512, 512, 512),)
    )
    path = folder / "settings.json"
    path.write_text(json.dumps(asdict(settings)))
    return path


@pytest.mark.slow
def test_two_ranks_of_this_machine_are_probed_by_the_command(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "service.cli.main", "probe", "--device", "cpu", "--nproc", "2", "--json"]
    command += ["--anyway", "--seconds", "5", "--cluster", "here", "--out", str(tmp_path)]
    done = subprocess.run(command, cwd=REPO, env=environment(), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert len(report["probe"]["ranks"]) == 2
    assert {c["kind"] for c in report["probe"]["collectives"]} >= {"all_reduce", "all_gather", "all_to_all"}
    assert report["run"]["scenario"]["cluster"]["name"] == "here"
    assert "drawChart(place" in (tmp_path / "probe.html").read_text()
    assert json.loads((tmp_path / "calibration.json").read_text())["runs"]


def test_nodes_on_which_something_else_runs_are_refused_and_named(tmp_path: Path) -> None:
    spin = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
    command = [sys.executable, "-m", "service.cli.main", "probe", "--device", "cpu", "--out", str(tmp_path)]
    try:
        done = subprocess.run(
            command, cwd=REPO, env=environment(), capture_output=True, text=True, timeout=300
        )
    finally:
        for process in spin:
            process.kill()
            process.wait()
    assert done.returncode == 2
    assert f"{socket.gethostname()} has " in done.stderr
    assert "of its cores in use" in done.stderr
    assert not (tmp_path / "calibration.json").exists()


@contextmanager
def two_hosts() -> Iterator[tuple[str, str]]:
    if os.geteuid() != 0 or shutil.which("ip") is None or not Path("/dev/net/tun").exists():
        pytest.skip("network namespaces need root, ip and /dev/net/tun")
    names = tuple(f"probe{number}-{os.getpid()}" for number in (1, 2))
    try:
        for name in names:
            made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
            if made.returncode:
                pytest.skip(f"no network namespace here: {made.stderr.strip()}")
        yield names[0], names[1]
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


@contextmanager
def linked(names: tuple[str, str]) -> Iterator[None]:
    script = Path(__file__).with_name("shaped_link.py")
    words = [sys.executable, str(script), *names, str(MBIT), str(DELAY_MS)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as link:
        try:
            assert link.stdout is not None
            assert link.stdout.readline() == "ready\n"
            yield
        finally:
            link.kill()


@pytest.mark.slow
@pytest.mark.real
def test_rate_and_latency_of_a_shaped_link_are_measured_within_five_percent(tmp_path: Path) -> None:
    settings = write_settings(tmp_path, 20.0)
    with two_hosts() as names, linked(names):
        jobs = []
        for number, name in enumerate(names):
            launch = ["--nnodes", "2", "--nproc-per-node", "1", "--node-rank", str(number)]
            launch += ["--master-addr", "10.78.0.1", "--master-port", "29571"]
            inside = ["nice", "-n", "-10", "ip", "netns", "exec", name, "unshare", "--uts", "sh", "-c"]
            script = f'hostname {name} && exec "$@"'
            words = [*inside, script, "probe", *worker(settings, tmp_path, *launch)]
            jobs.append(subprocess.Popen(words, cwd=REPO, env=environment(GLOO_SOCKET_IFNAME="eth0")))
        for job in jobs:
            assert job.wait(timeout=400) == 0
    probe = read_probe(tmp_path)
    assert (probe.nodes, probe.devices_per_node) == (2, 1)
    (link,) = probe.links
    true_rate = MBIT * 1e6 / 8 * HEADERS_SHARE
    assert link.bytes_per_s == pytest.approx(true_rate, rel=0.05)
    assert link.latency_s == pytest.approx(DELAY_MS / 1e3, rel=0.05)
    gathers = [row for row in report_of(probe).comparisons if row.name.startswith("network")]
    assert gathers[0].measured == pytest.approx(true_rate * 8 / 1e9, rel=0.1)


def rank_pids(out: Path, rank: int) -> list[int]:
    """Processes of the worker that are this rank."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
            variables = (folder / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if str(out).encode() in words and f"RANK={rank}".encode() in variables:
            found.append(int(folder.name))
    return found


@pytest.mark.slow
def test_a_rank_that_is_held_back_is_named(tmp_path: Path) -> None:
    settings = write_settings(tmp_path, 10.0)
    done, stops = threading.Event(), list[int]()

    def hold_back() -> None:
        """Three quarters of the time the last rank stands still."""
        while not done.is_set():
            for pid in rank_pids(tmp_path, 2) or [0]:
                for number, pause_s in ((signal.SIGSTOP, 0.015), (signal.SIGCONT, 0.005)) if pid else ():
                    with suppress(ProcessLookupError):
                        os.kill(pid, number)
                        stops.append(number)
                    time.sleep(pause_s)

    thread = threading.Thread(target=hold_back)
    thread.start()
    try:
        words = worker(settings, tmp_path, "--standalone", "--nproc-per-node", "3")
        subprocess.run(words, cwd=REPO, env=environment(), check=True, timeout=400)
    finally:
        done.set()
        thread.join()
    assert stops.count(signal.SIGSTOP) > 100, "it ran as the others did"
    findings = report_of(read_probe(tmp_path)).findings
    slowest = min(findings, key=lambda finding: finding.ratio)
    assert slowest.what == "rank 2", findings
