"""What `--help` teaches is true: its files exist, its scenario is one, every action says what it does."""

import json
import re
from argparse import ArgumentParser

import pytest

from service.cli import predict
from service.cli.parser import COMMANDS, command_parser, top_level_parser
from tests.unit.service.cli.commands import REPO
from tools.scenario import parse_scenario


def actions_of(parser: ArgumentParser) -> list[ArgumentParser]:
    return [
        inner
        for action in parser._actions
        if isinstance(action.choices, dict)
        for inner in action.choices.values()
    ]


@pytest.mark.parametrize("name", COMMANDS)
def test_files_that_the_help_names_are_there_and_actions_are_described(name: str) -> None:
    parser = command_parser(name, COMMANDS[name].load())
    texts = [parser.format_help(), top_level_parser().format_help()]
    for action in actions_of(parser):
        assert action.description
        texts.append(action.format_help())
    for path in set(re.findall(r"examples/[\w./-]+", "\n".join(texts))):
        assert (REPO / path).exists(), path


def test_the_scenario_that_the_help_shows_is_one() -> None:
    shown = re.search(r"\{\"model\".*?\}\}\n", predict.HELP, re.DOTALL)
    assert shown
    assert parse_scenario(json.loads(shown.group())).plan
