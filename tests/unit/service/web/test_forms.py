"""What the form of a new session says becomes the API's request; what is wrong names a field of the form."""

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.http.problems import ApiError
from service.sessions.model import SessionRow
from service.sessions.pages.new import FORM_FIELDS, read_form
from service.sessions.store import create_session
from service.web.forms import MEDIA_TYPE, form_field, parse_form
from tests.unit.service.served import SCENARIO, Served
from tests.unit.service.web.browsing import get, post, token
from tools.errors import InputError
from tools.frameworks.start import preset_models
from tools.scenario import parse_scenario

FILLED = {
    "config": json.dumps(SCENARIO["model"]),
    "devices": "8 x h100-sxm-80gb",
    "training.seq_len": "2,048",
    "training.global_batch_size": "64",
    "training.precision": "bf16",
    "training.framework": "megatron-core",
}
MEGATRON = (
    "torchrun pretrain_gpt.py --tensor-model-parallel-size 2 --pipeline-model-parallel-size 1 "
    "--num-layers 8 --hidden-size 1024 --ffn-hidden-size 4096 --num-attention-heads 16 --seq-length 2048 "
    "--micro-batch-size 1 --global-batch-size 64 --bf16 --vocab-size 32000 --swiglu "
    "--untie-embeddings-and-output-weights"
)


def body_of(form: dict[str, str]) -> dict[str, Any]:
    return read_form(form).body


def test_a_filled_form_is_the_scenario() -> None:
    body = body_of(FILLED)
    assert parse_scenario({**SCENARIO, "model": body["model"]}) == parse_scenario(SCENARIO)
    assert body["cluster"] == {"device": "h100-sxm-80gb", "num_devices": 8}
    assert body["training"] == SCENARIO["training"]
    assert "plan" not in body


@pytest.mark.parametrize("name", preset_models())
def test_three_fields_are_a_request_and_every_assumption_is_named(name: str) -> None:
    reading = read_form({"preset": name, "devices": "64 x H100 SXM", "training.framework": "torchtitan"})
    assert reading.body["model"]["name"] == name
    assert reading.body["training"]["framework"] == "torchtitan"
    assert set(reading.assumed) == {"seq_len", "global_batch_size"}
    parse_scenario({name: reading.body[name] for name in ("model", "cluster", "training")}, need_plan=False)


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"kind": "other"}, "kind"),
        ({"config": ""}, "config"),
        ({"config": "{"}, "config"),
        ({"config": "[1]"}, "config"),
        ({"devices": "many"}, "devices"),
        ({"devices": "0 x h100"}, "devices"),
        ({"devices": "8 x abacus"}, "devices"),
        ({"devices": ""}, "devices"),
        ({"config": "", "preset": "abacus"}, "preset"),
        ({"training.framework": "abacus"}, "training.framework"),
        ({"config": MEGATRON, "training.framework": "torchtitan"}, "training.framework"),
        ({"plan.tp": "2.5"}, "plan.tp"),
        ({"plan.tp": "9" * 30}, "plan.tp"),
        ({"constraints": "tp"}, "constraints"),
        ({"config": MEGATRON, "training.framework": "", "devices": "7 x h100"}, "devices"),
        ({"kind": "torchtitan", "config": "= ="}, "config"),
    ],
)
def test_what_cannot_be_a_request_names_its_field(changed: dict[str, str], field: str) -> None:
    with pytest.raises(InputError) as caught:
        body_of({**FILLED, **changed})
    assert caught.value.path == field


@given(st.dictionaries(st.sampled_from([*FILLED, "plan.tp", "labels", "constraints"]), st.text(max_size=30)))
def test_whatever_is_typed_is_a_request_or_an_input_error(typed: dict[str, str]) -> None:
    with suppress(InputError):
        assert set(body_of({**FILLED, **typed})) >= {"model", "cluster", "training", "labels"}


@given(st.dictionaries(st.text(min_size=1, max_size=10), st.text(max_size=30), max_size=5))
def test_a_form_is_read_back_as_it_was_sent(fields: dict[str, str]) -> None:
    from urllib.parse import urlencode

    try:
        body = urlencode(fields).encode()
    except UnicodeEncodeError:  # half of a surrogate pair: no browser sends it
        return
    try:
        read = parse_form(MEDIA_TYPE, body)
    except ApiError:
        assert any("\x00" in text for pair in fields.items() for text in pair)
        return
    assert read == {name: text.replace("\r\n", "\n").strip() for name, text in fields.items()}


def validated(served: Served, fields: dict[str, str]) -> dict[str, Any]:
    answer = post(served, "/web/validate", {**fields, "csrf": token(served)})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_the_form_is_judged_by_the_rules_of_the_api(served: Served) -> None:
    assert validated(served, FILLED)["ok"]
    wrong = validated(served, {**FILLED, "plan.tp": "3"})
    refused = served.client.post(
        "/v1/sessions", json={**SCENARIO, "plan": body_of({**FILLED, "plan.tp": "3"})["plan"]}
    )
    assert wrong["field"] == form_field(refused.json()["field"], FORM_FIELDS)
    assert refused.json()["allowed"] in wrong["message"]


def test_the_size_of_the_model_and_whether_it_fits_are_said_before_anything_is_searched(
    served: Served,
) -> None:
    few = {"preset": "Llama 3.1 70B", "devices": "8 x H100 SXM"}
    answer = validated(served, few)
    assert answer["model"] == "Llama 3.1 70B has 70.6 B parameters."
    assert answer["too_large"]
    assert answer["message"].startswith("Does not fit: every plan needs at least about")
    enough = validated(served, {**few, "devices": "64 x H100"})
    assert not enough["too_large"]
    assert enough["message"].startswith("Fits: plans begin at about")
    assert validated(served, {"preset": "Llama 3.1 70B"})["model"] == "Llama 3.1 70B has 70.6 B parameters."


def test_empty_fields_are_filled_with_what_they_stand_for_and_marked(served: Served) -> None:
    filled = validated(
        served, {"preset": "Llama 3.1 8B", "devices": "64 x H100", "training.seq_len": "4,096"}
    )["filled"]
    assert filled["training.global_batch_size"] == {"value": "1024", "source": "assumed"}
    assert filled["cluster.devices_per_node"] == {"value": "8", "source": "assumed"}
    assert "training.seq_len" not in filled
    read = validated(served, {"config": MEGATRON, "devices": "8 x H100"})["filled"]
    assert read["training.seq_len"] == {"value": "2048", "source": "from the file"}


def test_a_session_is_begun_again_with_its_policy_and_its_budget(served: Served) -> None:
    asked: dict[str, Any] = {"mode": "tune", "approval": "policy", "policy": {"fields": ["recompute"]}}
    new = SessionRow(request={**SCENARIO, **asked}, mode="tune", approval="policy", budget={"trials": 2})
    with served.app.database.begin() as conn:
        row, _ = create_session(conn, new)
    _, page = get(served, f"/sessions/new?from={row.id}")
    again = json.loads(next(words for words in page.words if words.strip().startswith("{")))
    del asked["mode"]  # which has a field of its own
    assert again == {**SCENARIO, **asked, "budget": {"trials": 2}}


def test_a_form_that_is_sent_twice_makes_one_session(served: Served) -> None:
    fields = {**FILLED, "csrf": token(served), "key": "k" * 32}
    places = {post(served, "/sessions/new", fields).headers["location"] for _ in range(2)}
    assert len(places) == 1
    assert len(served.client.get("/v1/sessions").json()["items"]) == 1


def test_what_the_form_states_beside_a_scenario_wins() -> None:
    body = body_of({"config": json.dumps(SCENARIO), "devices": "16 x a100", "training.seq_len": "4096"})
    assert body["cluster"] == {**SCENARIO["cluster"], "device": "a100-sxm-80gb", "num_devices": 16}
    assert body["training"] == {**SCENARIO["training"], "seq_len": 4096}
