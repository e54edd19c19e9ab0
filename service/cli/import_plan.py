"""`asap import`: a framework's configuration as a scenario for the other commands."""

import json
import sys
from argparse import ArgumentParser, Namespace
from typing import get_args, get_type_hints

from service.cli.io import naming_arguments, parse_value, read_bytes, write_json, write_note
from service.cli.parser import add_options
from tools.errors import InputError
from tools.frameworks import IMPORT_FORMATS, ImportedScenario, ImportOptions, import_plan
from tools.frameworks.formats import REGISTRY
from tools.frameworks.importing import SetValues
from tools.frameworks.python_config import module_finder
from tools.frameworks.reading import UnusedReason, parse_text
from tools.frameworks.words import parse_amount
from tools.scenario.fields import JsonObject

MAX_FILE_BYTES = 2**24
MAX_UNUSED_SHOWN = 40
STATED = {
    name: hint.__metadata__[-1].description
    for name, hint in get_type_hints(ImportOptions, include_extras=True).items()
    if hasattr(hint, "__metadata__")
}
"""Options that state what a file leaves open, with what each is for."""
TAKES = {"model": "FILE", "device": "NAME", "framework": "NAME", "precision": "NAME"}
TAKES |= {"seq_len": "LENGTH", "global_batch_size": "BATCH", "devices": "DEVICES"}
FORMATS = "\n".join(f"  {name:13} {format.reads}" for name, format in REGISTRY.items())
HELP = f"""\
Make a scenario from the configuration of today's training job, or from a model's config.json.

The format is recognised; --format names it otherwise. Most files name neither the devices nor the
model's shape: give them as options. Standard error says how many parameters the model has, what was
assumed, and which settings were ignored: harmless ones, and those that may change the prediction.
The scenario is checked and printed as JSON, ready for 'asap predict' and 'asap optimize'.

formats:
{FORMATS}

Examples:
  asap import config.json --framework torchtitan --devices "64 x H100" \\
      --seq-len 8192 --global-batch-size 128 > scenario.json
  asap import train.toml --model config.json --device h100 --num-devices 64 > today.json
  asap import pretrain.sh --device h100 --num-devices 64 --set TP=4 | asap predict -
  asap import ds_config.json --model config.json --device a100-sxm-80gb \\
      --num-devices 16 --seq-len 4096 --set plan.recompute=full
"""


def add_arguments(parser: ArgumentParser) -> None:
    field = "set a field of the scenario, for example plan.recompute=none, or a variable of the file, "
    add_options(
        parser,
        ("file", "FILE", "the configuration, or - for standard input"),
        ("--format", "NAME", f"one of {', '.join(IMPORT_FORMATS)} (default: recognised)"),
        *((f"--{name.replace('_', '-')}", TAKES.get(name, "N"), about) for name, about in STATED.items()),
        ("--set", "NAME=VALUE ...", f"{field}for example TP=8; may be repeated"),
        ("--json", "", "print the scenario on one line"),
    )


def run(args: Namespace) -> None:
    stated = {name: value for name in STATED if (value := getattr(args, name)) is not None}
    stated |= read_amounts(args)
    stated |= {"model": read_model(args.model), "find_module": module_finder(args.file)}
    with naming_arguments(args):
        options = ImportOptions(**stated).setting(read_settings(args.set))
        imported = import_plan(read_text(args.file), args.format, options)
    if args.json:
        write_json(imported.scenario)
    else:
        sys.stdout.write(json.dumps(imported.scenario, indent=2, allow_nan=False) + "\n")
    sys.stdout.flush()
    print_notes(imported)


def read_amounts(args: Namespace) -> dict[str, int]:
    """--seq-len and --global-batch-size as people write them."""
    amounts = {}
    if args.seq_len:
        amounts["seq_len"] = parse_amount(args.seq_len, "--seq-len")
    if args.global_batch_size:
        batch, seq_len = args.global_batch_size, amounts.get("seq_len")
        amounts["global_batch_size"] = parse_amount(batch, "--global-batch-size", seq_len)
    return amounts


def read_settings(texts: list[str]) -> SetValues:
    """NAME=VALUE pairs of --set; a variable of the file stays the text that was typed."""
    pairs = [text.partition("=") for text in texts]
    for name, equals, _ in pairs:
        if not equals:
            allowed = "must be FIELD=VALUE, for example plan.recompute=none, or a variable, TP=8"
            raise InputError("--set", name, allowed)
    return {name: parse_value(value) if "." in name else value for name, _, value in pairs}


def read_text(source: str, argument: str = "FILE") -> str:
    """A configuration file; an error names the argument."""
    data = read_bytes(source, MAX_FILE_BYTES, argument)
    if not data.strip():
        raise InputError(argument, "no text", "must contain a configuration")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(argument, data[error.start : error.start + 8], "must be UTF-8 text") from None


def read_model(source: str | None) -> JsonObject | None:
    """The config.json of --model."""
    return parse_text(read_text(source, "--model"), "JSON") if source else None


def print_notes(imported: ImportedScenario) -> None:
    """On standard error: the size of the model, what was assumed, what was ignored."""
    count = imported.parameters
    active = f", {count.active:,} of them active per token" if count.active != count.total else ""
    notes = [f"parameters: {count.total:,}{active}"]
    if imported.left_out:
        notes.append(f"the text model is planned; left out: {', '.join(imported.left_out)}")
    notes += imported.notes
    for reason in get_args(UnusedReason):
        names = [setting.path for setting in imported.unused if setting.reason == reason]
        if names:
            more = f" and {len(names) - MAX_UNUSED_SHOWN} more" if len(names) > MAX_UNUSED_SHOWN else ""
            notes.append(f"ignored ({reason}): {', '.join(names[:MAX_UNUSED_SHOWN])}{more}")
    for note in notes:
        write_note(f"note: {note}")
