"""`asap probe`: what the nodes themselves reach, in a minute; a few layers of a plan, scaled to all of it."""

import json
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from service.cli.calibrate import print_calibrated, write_calibration
from service.cli.io import MAX_SCENARIO_BYTES, make_table, read_object, safe_text, write_json_line
from service.cli.parser import positive_number
from service.render.text import counted
from tools.errors import AsapError, InputError

if TYPE_CHECKING:
    from tools.calibrate.runs import Run
    from tools.calibrate.update import Calibrated
    from tools.cost.predict import Prediction
    from tools.launch.launcher import Launcher
    from tools.probe.measured import Probe
    from tools.probe.report import ProbeReport
    from tools.scenario import Scenario
    from tools.trials.run import LaunchedTrials

HELP = """\
Measure the nodes themselves in one to three minutes: matrix products by shape and precision, memory
bandwidth, each collective by size over groups in a node and over the network, messages between pairs, host
launch time. Prints the figures beside the catalogue's, names slow ranks and links, and calibrates: --out gets
probe.json, probe.html (plots), runs.jsonl for POST /v1/measurements and calibration.json for --calibration.

Without --template it runs on this machine by torchrun (CPU with gloo, GPUs with NCCL). With one of the
registered launch templates (ASAP_LAUNCH_TEMPLATES) it runs there: torchrun, Slurm or Kubernetes. --results
reads what a job of your own left (torchrun ... -m tools.probe.worker settings.json --out DIR).

With --scenario FILE a few layers of that model are trained instead, at the plan's tp, ep and micro-batch on
at most one node, by the reference trainer or the program of --template, and scaled to the whole plan by the
cost model.

Examples:
  asap probe --device cpu --nproc 2 --out probe
  asap probe --device h100 --nnodes 4 --nproc 8 --template probe-slurm --cluster prod --out probe
  asap probe --scenario job.json --template torchtitan-slurm --out probe
  asap predict --calibration probe/calibration.json job.json"""

START_S = 120
"""Beside the probe's own time: to start processes and join them."""
LAYERS_HOURS = 2.0
"""Device-hours that the layers' jobs may take at most, times the devices of a node."""


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--scenario", metavar="FILE", help="measure layers of this plan instead")
    parser.add_argument("--device", metavar="NAME", help="what the nodes have, as in 'asap hardware'")
    parser.add_argument("--nproc", type=positive_number, default=1, metavar="N", help="ranks per node (1)")
    parser.add_argument("--nnodes", type=positive_number, default=1, metavar="N", help="nodes (1)")
    parser.add_argument(
        "--precision", action="append", default=[], metavar="NAME", help="of products; may be repeated"
    )
    parser.add_argument(
        "--seconds", type=positive_number, default=60, metavar="S", help="about how long to measure (60)"
    )
    parser.add_argument("--framework", default="torch-fsdp2", metavar="NAME", help="the stack to calibrate")
    parser.add_argument("--cluster", metavar="NAME", help="what the cluster is called")
    parser.add_argument("--template", metavar="NAME", help="a registered launch template")
    parser.add_argument("--results", metavar="DIR", help="read a probe that ran already")
    parser.add_argument("--out", metavar="DIR", required=True, help="folder for what was measured")
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")


def run(args: Namespace) -> int:
    out = Path(args.out)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError("--out", args.out, f"{error.strerror}; give a folder that can be written") from None
    return _run_layers(args, out) if args.scenario else _run_probe(args, out)


def _run_probe(args: Namespace, out: Path) -> int:
    from service.render.pages import render_probe
    from tools.calibrate.update import calibrate
    from tools.probe.report import read_probe, report_of

    measured = read_probe(Path(args.results)) if args.results else _measure(args, out)
    report = report_of(measured, args.framework, args.cluster)
    where = args.cluster or report.probe.settings.device
    title = f"Probe of {where}, {counted(len(measured.ranks), 'rank')}"
    (out / "probe.html").write_text(render_probe(report, title), encoding="utf-8")
    learned = calibrate([report.run], name=args.cluster or "")
    _write_runs(out, args.cluster or "", [report.run])
    if args.json:
        write_json_line(report.to_data())
    else:
        _print_probe(report, learned, out)
    return 0


def _measure(args: Namespace, out: Path) -> "Probe":
    from tools.launch.failures import classify, gather_evidence
    from tools.launch.launcher import Job
    from tools.probe.report import read_probe, settings_for
    from tools.trials.run import follow

    if not args.device:
        raise InputError("--device", None, "the device of the nodes is needed; 'asap hardware' lists them")
    settings = settings_for(args.device, args.precision, float(args.seconds))
    trials = _trials(args, out, worker=True)
    template = trials.templates[args.template or trials.default_template]
    wall_s = min(template.limits.wall_s, 3 * args.seconds + START_S)
    described = json.loads(json.dumps(asdict(settings)))
    job = Job(template.name, described, args.nnodes, args.nproc, wall_s=wall_s)
    launcher: Launcher = trials.launcher(template.launcher)
    handle = launcher.submit(f"probe-{time.time_ns():x}", job)
    ended_for = follow(launcher, handle, wall_s, trials.queue_s, _Progress())
    evidence = gather_evidence(launcher, handle, out)
    failure = ended_for or classify(evidence)
    if failure:
        shown = "; ".join(failure.evidence) or "no output"
        raise AsapError(f"the probe's job failed ({failure.kind}): {shown}")
    return read_probe(out)


class _Progress:
    """Of a job, on standard error."""

    def emit(self, phase: str, **content: object) -> None:
        sys.stderr.write(f"asap: {phase}\n")

    def must_cancel(self) -> bool:
        return False


def _trials(args: Namespace, out: Path, worker: bool) -> "LaunchedTrials":
    """Of the installation if a template is named; else torchrun on this machine."""
    from importlib.util import find_spec

    from service.runtime import open_trials
    from service.settings import load_settings, process_environment
    from tools.launch.local import LocalLauncher
    from tools.launch.template import Limits, Template
    from tools.scenario import did_you_mean
    from tools.trials.run import LaunchedTrials

    if args.template:
        trials = open_trials(load_settings())
        if trials is None:
            raise InputError("--template", args.template, "none is registered (ASAP_LAUNCH_TEMPLATES)")
        if args.template not in trials.templates:
            raise InputError(
                "--template", args.template, did_you_mean(args.template, tuple(trials.templates))
            )
        return trials
    if args.nnodes > 1:
        raise InputError("--nnodes", args.nnodes, "several nodes need --template, or your own launcher")
    for module in ("torch",) if worker else ("torch", "testbed"):
        if find_spec(module) is None:
            raise AsapError(f"asap probe needs {module} here: pip install ./testbed (from a checkout)")
    numbers = [w for name in ("steps", "warmup", "seed") for w in (f"--{name}", f"{{{name}}}")]
    program = ["tools.probe.worker"] if worker else ["testbed.trainer", *numbers]
    template = Template(
        name="here",
        launcher="local",
        command=(
            *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "{nproc}"),
            *("-m", program[0], "{scenario}", *program[1:], "--out", "{out}"),
        ),
        limits=Limits(wall_s=3600, devices=1024),
        environment={"OMP_NUM_THREADS": "1"},
        environment_inherited=("PATH", "HOME", "PYTHONPATH", "CUDA_VISIBLE_DEVICES"),
    )
    launcher = LocalLauncher((out / "jobs").absolute(), {"here": template}, process_environment())
    results = (out / "results").absolute()
    return LaunchedTrials(lambda _: launcher, {"here": template}, "here", results, max_runs=1)


def _write_runs(out: Path, name: str, runs: Sequence["Run"]) -> None:
    rows = "".join(json.dumps(run.to_data()) + "\n" for run in runs)
    (out / "runs.jsonl").write_text(rows, encoding="utf-8")
    write_calibration(str(out / "calibration.json"), name, runs)


def _print_probe(report: "ProbeReport", learned: "Calibrated", out: Path) -> None:
    from rich.console import Console

    from service.render.pages import COLUMNS, comparison_rows

    console, probe = Console(highlight=False), report.probe
    console.print(
        safe_text(
            f"{counted(len(probe.ranks), 'rank')} on {counted(probe.nodes, 'node')} "
            f"({probe.ranks[0].title}, {probe.backend}), {probe.took_s:.0f} s"
        )
    )
    table = make_table(COLUMNS[0], *(f">{column}" for column in COLUMNS[1:]))
    for row in comparison_rows(report):
        table.add_row(*map(safe_text, row))
    console.print(table)
    groups = make_table("collective", "over", ">message", ">time", ">bus bandwidth")
    largest = {(c.group, c.size, c.kind): c for c in probe.collectives}
    for c in largest.values():
        groups.add_row(
            c.kind,
            f"{c.group}, {c.size} ranks",
            f"{c.message_bytes / 2**20:.3g} MiB",
            f"{c.seconds * 1e3:.3g} ms",
            f"{c.bus_bytes_per_s / 1e9:.3g} GB/s",
        )
    console.print(groups)
    for finding in report.findings:
        console.print(safe_text(f"slow: {finding.says}", "bold red"))
    if not report.findings:
        console.print("no rank and no link is slow")
    for reason in probe.unavailable:
        console.print(safe_text(f"not measured: {reason}"))
    if report.overrides:
        console.print(
            safe_text(f"not the catalogue's device or link: cluster.overrides {json.dumps(report.overrides)}")
        )
    for constant in learned.constants:
        console.print(safe_text(f"{constant.name}: {constant.before:.3g} usual, {constant.after:.3g} here"))
    console.print(safe_text(f"{out}/probe.html, {out}/calibration.json (--calibration)"))


def _run_layers(args: Namespace, out: Path) -> int:
    from tools.calibrate.update import calibrate
    from tools.cost.predict import predict
    from tools.probe.layers import samples_of
    from tools.scenario import parse_scenario

    scenario = parse_scenario(read_object(args.scenario, MAX_SCENARIO_BYTES, "--scenario"))
    samples = samples_of(scenario)
    trials = _trials(args, out, worker=False)
    runs = [_measure_sample(trials, args.template, sample) for sample in samples]
    learned = calibrate(runs, own=True)
    _write_runs(out, scenario.cluster.name or "", runs)
    usual, scaled = predict([scenario])[0], predict([scenario], learned.calibration)[0]
    if args.json:
        rows = [run.to_data() for run in runs]
        write_json_line({"samples": rows, "before": _figures(usual), "prediction": _figures(scaled)})
        return 0
    print_calibrated(learned, scenario.cluster.name or "")
    sys.stdout.write(
        f"whole plan on {scenario.cluster.num_devices} devices: {scaled.step_time_s:.4g} s per step "
        f"({scaled.step_time_low_s:.4g} to {scaled.step_time_high_s:.4g} s); "
        f"{usual.step_time_s:.4g} s without\n"
        f"{out}/calibration.json (--calibration)\n"
    )
    return 0


def _figures(prediction: "Prediction") -> dict[str, float]:
    names = ("step_time_s", "step_time_low_s", "step_time_high_s")
    return {name: float(getattr(prediction, name)) for name in names}


def _measure_sample(trials: "LaunchedTrials", template: str | None, sample: "Scenario") -> "Run":
    from tools.calibrate.runs import Measured, Run
    from tools.trials.order import TrialOrder, trial_key

    assert sample.plan is not None
    layers, batch = sample.model.num_hidden_layers, sample.training.global_batch_size
    key = trial_key(f"layers{time.time_ns():x}", layers)
    hours = LAYERS_HOURS * sample.cluster.num_devices
    order = TrialOrder(key, sample, sample.plan, hours, template=template)
    result = trials.run(order, _Progress())
    if result.step_time_s is None:
        failure = result.failure
        shown = "; ".join(failure.evidence) if failure else "no output"
        raise AsapError(
            f"{layers} layers could not be measured ({failure.kind if failure else 'unknown'}): {shown}"
        )
    measured = Measured(step_time_s=result.step_time_s, noise=min(result.uncertainty or 0.0, 1.0))
    return Run(sample, measured, id=f"{layers} layers, batch {batch}", source="probe")
