"""`asap patch`: the user's own configuration or script, changed to a proposal's plan, as a diff."""

import os
import sys
from argparse import ArgumentParser, Namespace
from dataclasses import asdict

from service.cli.export import read_proposal
from service.cli.import_plan import read_settings, read_text
from service.cli.io import naming_arguments, write_json, write_note
from service.cli.parser import add_options
from tools.frameworks import IMPORT_FORMATS, ImportOptions, patch_plan
from tools.frameworks.python_config import module_finder

HELP = """\
Change today's configuration or launch script to a proposal of 'asap optimize --json', as a unified diff.

FILE is any file that 'asap import' reads and that the report is about. Only what the plan (and the proposal's
settings) decide is changed, by the framework's own names: comments, order, quotes and indentation stay, and
what the file does not state yet is added beside its siblings. The result is read back: it says the
proposal's plan and nothing else differs, or nothing is printed and the error names the line to change by
hand (for example a value that the script computes). Notes on standard error say what another file or the
program must state.

Examples:
  asap optimize pretrain.sh --devices "64 x H100" --json > report.json
  asap patch pretrain.sh --report report.json --plan 1 | git apply
  asap patch train.toml --report report.json --json | jq -r .text > new.toml
"""


def add_arguments(parser: ArgumentParser) -> None:
    add_options(
        parser,
        ("file", "FILE", "the configuration or script, as git names it from here"),
        ("--plan", "N", "rank of the proposal in the report (default: 1)"),
        ("--format", "NAME", f"one of {', '.join(IMPORT_FORMATS)} (default: recognised)"),
        ("--set", "NAME=VALUE ...", "a variable of the file, for example TP=8; may be repeated"),
        ("--json", "", "print one JSON object: diff, text (the changed file), notes"),
    )
    parser.add_argument("--report", required=True, metavar="FILE", help="what 'asap optimize --json' printed")


def run(args: Namespace) -> None:
    options = ImportOptions(find_module=module_finder(args.file)).setting(read_settings(args.set))
    today, proposed = read_proposal(args.report, args.plan or 1, "--plan")
    with naming_arguments(args):
        name = os.path.relpath(args.file)  # git takes no absolute path
        patch = patch_plan(read_text(args.file), name, today, proposed, options, args.format)
    if args.json:
        write_json(asdict(patch))
    else:
        sys.stdout.write(patch.diff)
    sys.stdout.flush()
    for note in patch.notes:
        write_note(f"note: {note}")
