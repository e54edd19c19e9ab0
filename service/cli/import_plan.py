"""`asap import`: a framework's configuration as a scenario for the other commands."""

import json
import sys
from argparse import ArgumentParser, Namespace

from service.cli.io import parse_value, read_bytes, write_json_line
from service.cli.parser import positive_number
from tools.errors import InputError
from tools.frameworks import IMPORT_FORMATS, ImportedScenario, ImportOptions, import_plan
from tools.frameworks.reading import UNUSED, is_harmless, parse_json

MAX_FILE_BYTES = 2**20
MAX_UNUSED_SHOWN = 40

HELP = """\
Make a scenario from the configuration of today's training job, or from a model's config.json.

The format is recognised; --format names it otherwise. Most files name neither the devices nor the
model's shape: give them as options. Standard error says how many parameters the model has, what was
assumed, and which settings were not taken over: harmless ones, and those that change the prediction.
The scenario is checked and printed as JSON, ready for 'asap predict' and 'asap optimize'.

formats:
  huggingface   a model's config.json   needs --framework, --seq-len, --global-batch-size; no plan yet
                or TrainingArguments as JSON; needs --model and --seq-len
  megatron      a launch script, YAML of arguments or MODEL_ARGS; --set TP=8 gives a variable
  nemo          NeMo and Megatron-Bridge YAML
  torchtitan    TOML, or 0.3's Python configuration with --set CONFIG=FUNCTION
  maxtext       YAML on top of base.yml, also its model files
  deepspeed     ds_config JSON ("auto" follows the model)
  accelerate    the YAML of 'accelerate launch'; needs --model and batch sizes
  nanotron      YAML
  automodel     NeMo Automodel's YAML
  axolotl       YAML, also LoRA and QLoRA
  llamafactory  YAML, also LoRA
  trl           YAML or arguments of its SFT trainer
  neox          GPT-NeoX YAML; needs --vocab-size
  levanter      YAML

Examples:
  asap import config.json --framework torchtitan --device h100 --num-devices 64 \\
      --seq-len 8192 --global-batch-size 128 > scenario.json
  asap import train.toml --model config.json --device h100 --num-devices 64 > today.json
  asap import pretrain.sh --device h100 --num-devices 64 --set TP=4 | asap predict -
  asap import ds_config.json --model config.json --device a100-sxm-80gb \\
      --num-devices 16 --seq-len 4096 --set plan.recompute=full
"""


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="the configuration, or - for standard input")
    parser.add_argument(
        "--format", metavar="NAME", help=f"one of {', '.join(IMPORT_FORMATS)} (default: recognised)"
    )
    parser.add_argument("--model", metavar="FILE", help="a Hugging Face config.json")
    parser.add_argument("--device", metavar="NAME", help="a device from 'asap hardware list'")
    for name, what in (
        ("num-devices", "number of devices the job runs on"),
        ("devices-per-node", "devices per node (default: what is usual for the device)"),
        ("num-slices", "TPU slices (or GPU nodes) of a MaxText job, if its file leaves them open"),
        ("seq-len", "tokens per sequence"),
        ("global-batch-size", "sequences per step"),
        ("micro-batch-size", "sequences that a device runs at once"),
        ("vocab-size", "entries of the vocabulary, if the file leaves them to a tokenizer"),
    ):
        parser.add_argument(f"--{name}", type=positive_number, metavar="N", help=what)
    parser.add_argument(
        "--framework", metavar="NAME", help="the training framework, if the file belongs to none"
    )
    parser.add_argument("--precision", metavar="NAME", help="fp32, fp16, bf16, fp8, mxfp8, nvfp4 or int8")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="set a field of the scenario, for example plan.recompute=none, or a variable of the file, "
        "for example TP=8; may be repeated",
    )
    parser.add_argument("--json", action="store_true", help="print the scenario on one line")


def run(args: Namespace) -> int:
    imported = import_plan(read_text(args.file), args.format, _options(args))
    if args.json:
        write_json_line(imported.scenario)
    else:
        sys.stdout.write(json.dumps(imported.scenario, indent=2, allow_nan=False) + "\n")
    sys.stdout.flush()
    print_notes(imported)
    return 0


def read_text(source: str, argument: str = "FILE") -> str:
    """A configuration file; an error names the argument."""
    data = read_bytes(source, MAX_FILE_BYTES, argument)
    if not data.strip():
        raise InputError(argument, "no text", "must contain a configuration")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(argument, data[error.start : error.start + 8], "must be UTF-8 text") from None


def _options(args: Namespace) -> ImportOptions:
    assignments = [_assignment(text) for text in args.set]
    return ImportOptions(
        model=parse_json(read_text(args.model, "--model")) if args.model else None,
        device=args.device,
        num_devices=args.num_devices,
        devices_per_node=args.devices_per_node,
        num_slices=args.num_slices or 1,
        seq_len=args.seq_len,
        global_batch_size=args.global_batch_size,
        micro_batch_size=args.micro_batch_size,
        vocab_size=args.vocab_size,
        precision=args.precision,
        framework=args.framework,
        overrides=tuple((name, parse_value(value)) for name, value in assignments if "." in name),
        variables={name: value for name, value in assignments if "." not in name},
    )


def _assignment(text: str) -> tuple[str, str]:
    """FIELD=VALUE of the scenario, with a dot, or NAME=VALUE of a variable in the file."""
    name, equals, value = text.partition("=")
    if not equals:
        raise InputError(
            "--set", text, "must be FIELD=VALUE, for example plan.recompute=none, or a variable, TP=8"
        )
    return name, value


def print_notes(imported: ImportedScenario) -> None:
    """On standard error: the size of the model, what was assumed, what was not taken over."""
    count = imported.parameters
    active = f", {count.active:,} of them active per token" if count.active != count.total else ""
    _print_note(f"parameters: {count.total:,}{active}")
    if imported.left_out:
        _print_note(f"the text model is planned; left out: {', '.join(imported.left_out)}")
    for note in imported.notes:
        if not note.startswith(UNUSED):
            _print_note(note)
    unused = [note.removeprefix(UNUSED) for note in imported.notes if note.startswith(UNUSED)]
    groups = {
        "not taken over, may change the prediction": [name for name in unused if not is_harmless(name)],
        "not taken over, harmless": [name for name in unused if is_harmless(name)],
    }
    for title, names in groups.items():
        if names:
            more = f" and {len(names) - MAX_UNUSED_SHOWN} more" if len(names) > MAX_UNUSED_SHOWN else ""
            _print_note(f"{title}: {', '.join(names[:MAX_UNUSED_SHOWN])}{more}")


def _print_note(note: str) -> None:
    line = "".join(letter if letter.isprintable() else "?" for letter in note)
    sys.stderr.write(f"asap: note: {line}\n")
