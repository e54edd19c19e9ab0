"""The first question of a fresh process: what has to be imported for it takes nothing of its time."""

import subprocess
import sys

from tests.integration.llm import replies
from tests.integration.llm.questions import GOOD
from tests.integration.llm.scripted_server import ScriptedServer

PROGRAM = """
import importlib, sys, time
import graph.agents
from graph.model import Endpoint
from tests.integration.llm.questions import find_cause

real = importlib.import_module

def slow(name):
    time.sleep(1.5)  # in place of a busy machine
    return real(name)

graph.agents.import_module = slow
model = graph.agents.LanguageModel(Endpoint(sys.argv[1], "scripted", timeout_s=2.0, deadline_s=2.0))
print(model.ask(find_cause()).by)
"""


def test_slow_imports_leave_a_question_its_time() -> None:
    with ScriptedServer(then=replies.answer(GOOD["find_cause"])) as server:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, server.base_url], capture_output=True, text=True, check=False
        )
    assert done.stdout.strip() == "scripted", done.stderr
    assert server.asked == {"find_cause": 1}
