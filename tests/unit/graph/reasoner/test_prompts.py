"""What a model is told covers what it is asked."""

from graph.reasoner.answers import SuggestedPlan, Weighing
from graph.reasoner.prompts import SYSTEM, TASKS, task_text
from graph.reasoner.rules import ANSWERS
from tests.integration.llm.questions import PAYLOADS
from tools.recommend.notes import NAMES
from tools.scenario import SEARCHED_FIELDS


def test_every_question_has_a_task() -> None:
    assert set(TASKS) == set(ANSWERS)


def test_the_vocabulary_names_every_field_of_a_plan() -> None:
    for name in {*SuggestedPlan.model_fields, *SEARCHED_FIELDS}:
        assert f"{name} " in SYSTEM or f"{name};" in SYSTEM, name


def test_the_vocabulary_names_every_bottleneck() -> None:
    for kind in Weighing.model_json_schema()["properties"]["bottleneck"]["enum"]:
        assert kind in SYSTEM


def test_the_reader_of_notes_is_told_every_field_that_notes_may_set() -> None:
    told = SYSTEM + TASKS["read_notes"]
    assert [name for name in NAMES if name not in told] == []


def test_every_part_of_a_payload_that_a_task_names_is_there() -> None:
    for name, payload in PAYLOADS.items():
        text = task_text(name, payload)
        assert text.startswith(f"Task: {name}\n\n{TASKS[name]}")
        assert text.index(TASKS[name]) < text.index("<data ") < text.index("The data ends here")


def test_the_start_of_the_prompt_is_the_same_for_any_data() -> None:
    one, other = (task_text("read_notes", {"notes": notes}) for notes in ("a", "b"))
    assert one.partition("<data ")[0] == other.partition("<data ")[0]
