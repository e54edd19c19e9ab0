"""`asap import`: a framework's configuration as a scenario for the other commands."""

import json
import sys
from argparse import ArgumentParser, Namespace

from pydantic import JsonValue

from service.cli.io import parse_value, read_bytes, read_object, write_json_line
from service.cli.parser import positive_number
from tools.errors import InputError
from tools.frameworks import IMPORT_FORMATS, ImportOptions, import_plan
from tools.frameworks.reading import UNUSED

MAX_FILE_BYTES = 2**20
MAX_UNUSED_SHOWN = 40

HELP = """\
Make a scenario from the configuration of today's training job, or from a model's config.json.

Such files name neither the devices nor, usually, the model: give them as options. Settings
that have no place in a scenario are listed on standard error. The scenario is checked and
printed as JSON, ready for 'asap predict' and 'asap optimize'.

formats:
  torchtitan   TOML                     needs --model, --device
  megatron     a launch script's text, or YAML of arguments
                                        needs --device, --num-devices, often --model
  deepspeed    ds_config JSON           needs --model, --device, --seq-len
  maxtext      YAML on top of base.yml  needs --device, usually --model, --num-devices
  huggingface  a model's config.json    needs --device, --num-devices, --seq-len, --global-batch-size and
                                        --framework; there is no plan yet: 'asap optimize' proposes one

Examples:
  asap import config.json --format huggingface --framework torchtitan --device h100 --num-devices 64 \\
      --seq-len 8192 --global-batch-size 128 > scenario.json
  asap import train.toml --format torchtitan --model config.json --device h100 > today.json
  asap import pretrain.sh --format megatron --device h100 --num-devices 64 | asap predict -
  asap import ds_config.json --format deepspeed --model config.json --device a100-sxm-80gb \\
      --num-devices 16 --seq-len 4096 --set plan.recompute=full
"""


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="the configuration, or - for standard input")
    parser.add_argument("--format", required=True, metavar="NAME", help=f"one of {', '.join(IMPORT_FORMATS)}")
    parser.add_argument("--model", metavar="FILE", help="a Hugging Face config.json")
    parser.add_argument("--device", metavar="NAME", help="a device from 'asap hardware list'")
    for name, what in (
        ("num-devices", "number of devices the job runs on"),
        ("devices-per-node", "devices per node (default: what is usual for the device)"),
        ("num-slices", "TPU slices (or GPU nodes) of a MaxText job, if its file leaves them open"),
        ("seq-len", "tokens per sequence"),
        ("global-batch-size", "sequences per step"),
        ("micro-batch-size", "sequences that a device runs at once"),
    ):
        parser.add_argument(f"--{name}", type=positive_number, metavar="N", help=what)
    parser.add_argument("--framework", metavar="NAME", help="the training framework (huggingface only)")
    parser.add_argument("--precision", metavar="NAME", help="fp32, fp16, bf16, fp8, mxfp8, nvfp4 or int8")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="FIELD=VALUE",
        help="set any other field of the scenario, for example plan.recompute=none; may be repeated",
    )
    parser.add_argument("--json", action="store_true", help="print the scenario on one line")


def run(args: Namespace) -> int:
    imported = import_plan(_read_text(args.file), args.format, _options(args))
    if args.json:
        write_json_line(imported.scenario)
    else:
        sys.stdout.write(json.dumps(imported.scenario, indent=2, allow_nan=False) + "\n")
    sys.stdout.flush()
    _print_notes(imported.notes)
    return 0


def _read_text(source: str) -> str:
    data = read_bytes(source, MAX_FILE_BYTES)
    if not data.strip():
        raise InputError("FILE", "no text", "must contain a configuration")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError("FILE", data[error.start : error.start + 8], "must be UTF-8 text") from None


def _options(args: Namespace) -> ImportOptions:
    return ImportOptions(
        model=read_object(args.model, MAX_FILE_BYTES, "--model") if args.model else None,
        device=args.device,
        num_devices=args.num_devices,
        devices_per_node=args.devices_per_node,
        num_slices=args.num_slices or 1,
        seq_len=args.seq_len,
        global_batch_size=args.global_batch_size,
        micro_batch_size=args.micro_batch_size,
        precision=args.precision,
        framework=args.framework,
        overrides=tuple(_assignment(text) for text in args.set),
    )


def _assignment(text: str) -> tuple[str, JsonValue]:
    """FIELD=VALUE; VALUE is JSON, or else a plain word."""
    name, equals, value = text.partition("=")
    if not equals:
        raise InputError("--set", text, "must be FIELD=VALUE, for example plan.recompute=none")
    return name, parse_value(value)


def _print_notes(notes: tuple[str, ...]) -> None:
    unused = [note.removeprefix(UNUSED) for note in notes if note.startswith(UNUSED)]
    for note in notes:
        if not note.startswith(UNUSED):
            _print_note(note)
    if unused:
        more = f" and {len(unused) - MAX_UNUSED_SHOWN} more" if len(unused) > MAX_UNUSED_SHOWN else ""
        _print_note(f"settings without a place in a scenario: {', '.join(unused[:MAX_UNUSED_SHOWN])}{more}")


def _print_note(note: str) -> None:
    line = "".join(letter if letter.isprintable() else "?" for letter in note)
    sys.stderr.write(f"asap: note: {line}\n")
