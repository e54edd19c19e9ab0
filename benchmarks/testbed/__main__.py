"""The command that the testbed's launch template names: the reference trainer over hosts on slow links.

    python -m benchmarks.testbed SCENARIO --out DIR [--hosts 2] [--ranks 4] [--mbit 200] [--steps N] ...

Takes numbers and paths only. Ends with the status of the first torchrun that fails; nothing is left behind.
"""

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.testbed.hosts import TestbedError, run_on_hosts

REFUSED = 2


def main(argv: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        return run_on_hosts(_program(args), args.hosts, args.ranks, args.mbit, args.pins, dict(args.slow))
    except TestbedError as error:
        sys.stderr.write(f"testbed: {error}\n")
        return REFUSED


def _program(args: argparse.Namespace) -> list[str]:
    module = "benchmarks.testbed.many" if args.scenario.is_dir() else "testbed.trainer"
    numbers = ("steps", "warmup", "profile_steps", "seed")
    options = [word for name in numbers for word in (f"--{name.replace('_', '-')}", str(getattr(args, name)))]
    return [module, str(args.scenario), "--out", str(args.out), *options]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.testbed", description="Train a scenario's plan over hosts on slow links."
    )
    help_text = "a scenario with a plan, as JSON, or a folder of many (see many.py)"
    parser.add_argument("scenario", type=Path, help=help_text)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where result.json goes")
    parser.add_argument("--hosts", type=int, default=2, help="network namespaces")
    parser.add_argument("--ranks", type=int, default=4, help="on all hosts together")
    parser.add_argument("--mbit", type=float, default=200, help="what a host can send, in Mbit/s")
    about = "what one host can send, counted from 1; may be repeated"
    parser.add_argument(
        "--slow", type=_slow_host, action="append", default=[], metavar="HOST=MBIT", help=about
    )
    parser.add_argument("--pins", action="store_true", help="give each host a core of its own")
    for name, usual in (("steps", 10), ("warmup", 3), ("profile-steps", 0), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=usual, help="as the reference trainer takes it")
    return parser


def _slow_host(text: str) -> tuple[int, float]:
    host, _, mbit = text.partition("=")
    return int(host), float(mbit)


if __name__ == "__main__":
    sys.exit(main())
