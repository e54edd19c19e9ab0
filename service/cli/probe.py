"""`asap probe`: what the nodes themselves reach, in a minute; a few layers of a plan, scaled to all of it."""

import json
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path

from rich.console import Console

from service.cli.calibrate import print_calibrated
from service.cli.io import make_table, naming_arguments, read_scenario, safe_text, write_file, write_json
from service.cli.parser import add_options
from service.render.pages import COLUMNS, comparison_rows, render_probe
from service.render.text import counted, plain
from service.runtime import open_trials
from service.settings import load_settings, process_environment
from tools.errors import AsapError, InputError
from tools.launch.failures import classify, gather_evidence
from tools.launch.launcher import Job, Launcher
from tools.launch.local import LocalLauncher
from tools.launch.template import JobLimits, Template
from tools.model.predict import Prediction, predict
from tools.model.runs import Measured, Run, to_file
from tools.model.update import Calibrated, calibrate
from tools.probe.layers import samples_of
from tools.probe.measured import Probe
from tools.probe.preflight import COMMANDS, preflight, read_recorded, run_command
from tools.probe.report import ProbeReport, read_probe, report_of, settings_for
from tools.scenario import Scenario, did_you_mean
from tools.trials.order import TrialOrder, TrialProgress, trial_key
from tools.trials.run import LaunchedTrials, follow

HELP = """\
Measure the nodes themselves in one to three minutes: matrix products by shape and precision, memory
bandwidth, each collective by size over groups in a node and over the network, messages between pairs, host
launch time. Refuses nodes on which something else runs; --anyway measures them too. Prints the figures beside
the catalogue's, names slow ranks and links, and calibrates: --out gets probe.json, probe.html (plots),
runs.jsonl for POST /v1/measurements and calibration.json for --calibration.

Without --template it runs on this machine by torchrun (CPU with gloo, GPUs with NCCL). With one of the
registered launch templates (ASAP_LAUNCH_TEMPLATES) it runs there: torchrun, Slurm or Kubernetes. --results
reads what a job of your own left (torchrun ... -m tools.probe.worker settings.json --out DIR).

With --scenario FILE a few layers of that model are trained instead, at the plan's tp, ep and micro-batch on
at most one node, by the reference trainer or the program of --template, and scaled to the whole plan by the
cost model.

With --preflight nothing is launched: clocks, power limits, ECC, PCIe and NVLink, network cards, CPU governor,
NUMA, variables of NCCL and versions are read here (nvidia-smi, rocm-smi and ibstat where they are), and what
is not as it should be is printed with what it costs.

Examples:
  asap probe --preflight
  asap probe --device cpu --nproc 2 --out probe
  asap probe --device h100 --nnodes 4 --nproc 8 --template probe-slurm --cluster prod --out probe
  asap probe --scenario job.json --template torchtitan-slurm --out probe
  asap predict --calibration probe/calibration.json job.json"""

START_S = 120
"""Beside the probe's own time: to start processes and join them."""
LAYERS_HOURS = 2.0
"""Device-hours that the layers' jobs may take at most, times the devices of a node."""


def add_arguments(parser: ArgumentParser) -> None:
    add_options(
        parser,
        ("--scenario", "FILE", "measure layers of this plan instead"),
        ("--device", "NAME", "what the nodes have, as in 'asap hardware'"),
        ("--nproc", "N", "ranks per node (1)"),
        ("--nnodes", "N", "nodes (1)"),
        ("--precision", "NAME ...", "of products; may be repeated"),
        ("--seconds", "S", "about how long to measure (60)"),
        ("--framework", "NAME", "the stack to calibrate"),
        ("--cluster", "NAME", "what the cluster is called"),
        ("--template", "NAME", "a registered launch template"),
        ("--anyway", "", "measure nodes that are not idle too, without calibrating"),
        ("--results", "DIR", "read a probe that ran already, or what preflight tools printed elsewhere"),
        ("--preflight", "", "only say what slows this node before any job runs"),
        ("--out", "DIR", "folder for what was measured"),
    )
    parser.set_defaults(nproc=1, nnodes=1, seconds=60, framework="torch-fsdp2")
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")


def run(args: Namespace) -> None:
    if args.preflight:
        run_preflight(args)
        return
    if args.out is None:
        raise InputError("--out", None, "a folder for what is measured is needed")
    out = Path(args.out)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError("--out", args.out, f"{error.strerror}; give a folder that can be written") from None
    if args.scenario:
        run_layers(args, out)
    else:
        run_probe(args, out)


def run_preflight(args: Namespace) -> None:
    """What costs most is first: how often that part takes as long, then what nobody can say."""
    if args.results and not Path(args.results).is_dir():
        raise InputError("--results", args.results, f"must be a folder with {', '.join(COMMANDS)}")
    recorded = read_recorded(Path(args.results)) if args.results else run_command
    report = preflight(process_environment(), recorded)
    report.findings.sort(key=lambda finding: -(finding.ratio or 0.0))
    if args.json:
        write_json(asdict(report))
        return
    for finding in report.findings:
        print(plain(finding))
    print(plain(f"{counted(len(report.findings), 'finding')}; read: {', '.join(report.read)}"))
    print(plain(f"not here: {', '.join(report.absent) or 'nothing'}"))
    print(plain(", ".join(f"{name} {value}" for name, value in report.facts.items() if value)))


def run_probe(args: Namespace, out: Path) -> None:
    measured = read_probe(Path(args.results)) if args.results else measure(args, out)
    report = report_of(measured, args.framework, args.cluster)
    where = args.cluster or report.probe.settings.device
    title = f"Probe of {where}, {counted(len(measured.ranks), 'rank')}"
    (out / "probe.html").write_text(render_probe(report, title), encoding="utf-8")
    learned = None
    if not measured.busy:  # what else ran there is no property of the nodes
        learned = calibrate([report.run], name=args.cluster or "")
        _write_runs(out, args.cluster or "", [report.run])
    if args.json:
        slow = [{"what": part.what, "ratio": part.ratio, "says": part.message} for part in report.findings]
        run = report.run.to_data() if learned else None
        write_json({**asdict(report), "findings": slow, "run": run})
    else:
        print_probe(report, learned, out)


def measure(args: Namespace, out: Path) -> Probe:
    if not args.device:
        raise InputError("--device", None, "the device of the nodes is needed; 'asap hardware' lists them")
    with naming_arguments(args):
        settings = settings_for(args.device, args.precision, float(args.seconds), args.anyway)
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
    """Writes what becomes of a job to standard error."""

    def emit(self, progress: TrialProgress) -> None:
        sys.stderr.write(f"asap: {progress.phase} {progress.job}\n")

    def must_cancel(self) -> bool:
        return False


def _trials(args: Namespace, out: Path, worker: bool) -> LaunchedTrials:
    """The installation's launcher if a template is named; else torchrun on this machine."""
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
        limits=JobLimits(wall_s=3600, devices=1024),
        environment={"OMP_NUM_THREADS": "1"},
        environment_inherited=("PATH", "HOME", "PYTHONPATH", "CUDA_VISIBLE_DEVICES"),
    )
    launcher = LocalLauncher((out / "jobs").absolute(), {"here": template}, process_environment())
    results = (out / "results").absolute()
    return LaunchedTrials(lambda _: launcher, {"here": template}, "here", results, max_runs=1)


def _write_runs(out: Path, name: str, runs: Sequence[Run]) -> None:
    rows = "".join(json.dumps(run.to_data()) + "\n" for run in runs)
    (out / "runs.jsonl").write_text(rows, encoding="utf-8")
    write_file(str(out / "calibration.json"), to_file(name, runs), "--out")


def print_probe(report: ProbeReport, learned: Calibrated | None, out: Path) -> None:
    """`learned` is None if the nodes were not idle: nothing is calibrated from those."""
    console, probe = Console(highlight=False), report.probe
    console.print(
        safe_text(
            f"{counted(len(probe.ranks), 'rank')} on {counted(probe.nodes, 'node')} "
            f"({probe.ranks[0].title}, {probe.backend}), {probe.took_s:.0f} s"
        )
    )
    columns = (COLUMNS[0], *(f">{column}" for column in COLUMNS[1:]))
    console.print(make_table(*columns, rows=comparison_rows(report)))
    largest = {(c.group, c.size, c.kind): c for c in probe.collectives}
    rows = (
        (
            *(c.kind, f"{c.group}, {c.size} ranks", f"{c.message_bytes / 2**20:.3g} MiB"),
            *(f"{c.seconds * 1e3:.3g} ms", f"{c.bus_bytes_per_s / 1e9:.3g} GB/s"),
        )
        for c in largest.values()
    )
    console.print(make_table("collective", "over", ">message", ">time", ">bus bandwidth", rows=rows))
    for finding in report.findings:
        console.print(safe_text(f"slow: {finding.message}", "bold red"))
    lines = [] if report.findings else ["no rank and no link is slow"]
    lines += [f"not idle: {reason}" for reason in probe.busy]
    lines += [f"not measured: {reason}" for reason in probe.unavailable]
    if report.overrides:
        lines.append(f"not the catalogue's device or link: cluster.overrides {json.dumps(report.overrides)}")
    written = f"{out}/probe.html; not calibrated: the nodes were not idle"
    if learned:
        lines += [
            f"{each.name}: {each.before:.3g} usual, {each.after:.3g} here" for each in learned.constants
        ]
        written = f"{out}/probe.html, {out}/calibration.json (--calibration)"
    for line in (*lines, written):
        console.print(safe_text(line))


def run_layers(args: Namespace, out: Path) -> None:
    scenario = read_scenario(args.scenario, "--scenario")
    samples = samples_of(scenario)
    trials = _trials(args, out, worker=False)
    runs = [measure_sample(trials, args.template, sample) for sample in samples]
    learned = calibrate((), own=runs)
    _write_runs(out, scenario.cluster.name or "", runs)
    usual, scaled = predict([scenario])[0], predict([scenario], learned.calibration)[0]
    if args.json:
        rows = [run.to_data() for run in runs]
        write_json({"samples": rows, "before": _figures(usual), "prediction": _figures(scaled)})
        return
    print_calibrated(learned, scenario.cluster.name or "")
    sys.stdout.write(
        f"whole plan on {scenario.cluster.num_devices} devices: {scaled.step_time_s:.4g} s per step "
        f"({scaled.step_time_low_s:.4g} to {scaled.step_time_high_s:.4g} s); "
        f"{usual.step_time_s:.4g} s without\n"
        f"{out}/calibration.json (--calibration)\n"
    )


def _figures(prediction: Prediction) -> dict[str, float]:
    names = ("step_time_s", "step_time_low_s", "step_time_high_s")
    return {name: float(getattr(prediction, name)) for name in names}


def measure_sample(trials: LaunchedTrials, template: str | None, sample: Scenario) -> Run:
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
    return Run(scenario=sample, measured=measured, id=f"{layers} layers, batch {batch}", source="probe")
