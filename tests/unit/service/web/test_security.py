"""Who may look and who may act; forms that only this server's own pages can send; text that stays text."""

import json
from typing import Any

from httpx2 import Response

from service.access.credentials import COOKIE, find_signed
from service.jobs.model import COMPLETED
from service.web.csrf import BROWSER_COOKIE
from tests.unit.service.render.scenes import SMALL, full
from tests.unit.service.served import BASE, SCENARIO, Serve, Served
from tests.unit.service.web.browsing import EVIL, HTML, assert_only_text, get, post, token


def login(served: Served, key: dict[str, str] | str, next: str = "", **headers: str) -> Response:
    text = key if isinstance(key, str) else key["Authorization"].removeprefix("Bearer ")
    fields = {"csrf": token(served, "/login"), "key": text, "next": next}
    return post(served, "/login", fields, **headers)


def sign_in(served: Served, key: dict[str, str]) -> None:
    answer = login(served, key, "/knowledge")
    assert answer.status_code == 303, answer.text
    assert answer.headers["location"] == "/knowledge"


def test_without_keys_nobody_signs_in_and_with_them_a_page_leads_to_the_door_and_back(served: Served) -> None:
    assert get(served, "/login")[0].status_code == 303
    assert get(served, "/")[0].status_code == 200
    served.key("read")
    answer, _ = get(served, "/compare?a=1")
    assert answer.status_code == 303
    assert answer.headers["location"] == "/login?next=%2Fcompare%3Fa%3D1"


def test_a_key_opens_the_pages_and_the_event_stream_until_its_owner_signs_out(served: Served) -> None:
    key = served.key("read", "submit")
    id = served.submit(headers=key)
    sign_in(served, key)
    assert get(served, f"/sessions/{id}")[0].status_code == 200
    events = served.client.get(f"/v1/sessions/{id}/events", headers={"Accept": "application/json"})
    assert events.status_code == 200
    assert "Sign out" in get(served, "/")[1].text
    assert post(served, "/logout", {"csrf": token(served, "/")}).status_code == 303
    assert get(served, "/")[0].status_code == 303


def test_the_cookie_is_out_of_reach_for_scripts_and_other_sites(served: Served) -> None:
    key = served.key("read")
    answer = login(served, key)
    sent = next(cookie for cookie in answer.headers.get_list("set-cookie") if cookie.startswith(COOKIE))
    assert "HttpOnly" in sent
    assert "SameSite=lax" in sent
    assert "Secure" not in sent  # over plain HTTP the browser would not send it back
    secret = key["Authorization"].split("_", 2)[2]  # a secret may itself hold underscores
    assert len(secret) > 40
    assert secret not in sent


def test_over_tls_the_cookie_is_sent_over_tls_only(serve: Serve) -> None:
    served = serve(base="https://127.0.0.1")
    answer = login(served, served.key("read"), Origin="https://127.0.0.1")
    assert answer.status_code == 303
    cookies = answer.headers.get_list("set-cookie")
    assert any(cookie.startswith(COOKIE) for cookie in cookies)
    assert all("Secure" in cookie for cookie in cookies)


def test_a_wrong_key_is_refused_and_opens_nothing(served: Served) -> None:
    served.key("read")
    answer = login(served, "asap_000000000000_" + "x" * 43)
    assert answer.status_code == 401
    assert "unknown, revoked or expired" in answer.text
    assert COOKIE not in served.client.cookies


def test_a_revoked_key_takes_its_browsers_along(served: Served) -> None:
    from service.access.store import revoke_key

    sign_in(served, served.key("read"))
    signed = find_signed(served.client.cookies[COOKIE])
    assert signed
    with served.app.database.begin() as conn:
        revoke_key(conn, signed.key_id)
    assert get(served, "/")[0].status_code == 303


def test_a_cookie_that_was_changed_or_is_of_another_secret_does_not_hold(serve: Serve) -> None:
    served, other = serve(cookie_secret="one"), serve(cookie_secret="another")
    sign_in(served, served.key("read"))
    whole = served.client.cookies[COOKIE]
    served.client.cookies.clear()
    assert get(served, "/", Cookie=f"{COOKIE}={whole}")[0].status_code == 200
    for part in range(3):
        pieces = whole.split(".")
        pieces[part] = str(int(pieces[part]) + 1) if part == 1 else "0" * len(pieces[part])
        assert get(served, "/", Cookie=f"{COOKIE}={'.'.join(pieces)}")[0].status_code == 303, part
    assert get(other, "/", Cookie=f"{COOKIE}={whole}")[0].status_code == 303


def test_signing_in_leads_nowhere_else(served: Served) -> None:
    key = served.key("read")
    for next in ("https://evil.example", "//evil.example", "/\\evil.example", "javascript:alert(1)"):
        assert login(served, key, next).headers["location"] == "/", next


def test_a_form_without_its_token_is_refused(served: Served) -> None:
    get(served, "/")
    for path in ("/sessions/new", "/web/validate", "/login", "/logout", "/sessions/x/decision"):
        for given in ("", "0" * 64):
            assert post(served, path, {"csrf": given, "kind": "scenario"}).status_code == 403, path


def test_a_token_is_of_use_to_its_own_browser_only(serve: Serve) -> None:
    mine, other = serve(), serve()
    given = token(mine)
    get(other, "/sessions/new")
    assert other.client.cookies[BROWSER_COOKIE] != mine.client.cookies[BROWSER_COOKIE]
    assert post(other, "/web/validate", {"csrf": given}).status_code == 403


def test_a_cookie_changes_nothing_at_the_word_of_another_site(served: Served) -> None:
    sign_in(served, served.key("admin"))
    for origin in ("https://evil.example", "null", "", "http://[", "http://127.0.0.1:99999999"):
        headers = {"Origin": origin} if origin else {}
        assert served.client.post("/v1/traces", json={}, headers=headers).status_code == 403, origin
    assert served.client.post("/v1/traces", json={}, headers={"Origin": BASE}).status_code == 201


def test_a_key_that_may_only_look_sees_no_button_and_may_not_act(
    served: Served, report: dict[str, Any]
) -> None:
    id = served.submit(headers=served.key("submit"))
    served.end(id, COMPLETED, report=report, verdict="v")
    sign_in(served, served.key("read"))
    _, page = get(served, f"/sessions/{id}")
    assert "Approve" not in page.text
    assert "Delete" not in page.text
    fields = {"csrf": token(served, "/"), "action": "approve", "proposal": "1"}
    assert post(served, f"/sessions/{id}/decision", fields).status_code == 403
    assert get(served, "/sessions/new")[0].status_code == 403


def test_a_tenant_sees_nothing_of_another(served: Served, report: dict[str, Any]) -> None:
    id = served.submit(headers=served.key("submit", tenant="red"))
    served.end(id, COMPLETED, report=report, verdict="v")
    served.keep_plans(id)
    paths = ("", "/trail", "/trail/1", "/figures/mesh", "/report.md", "/proposals/1/export?format=megatron")
    pages = ("/figures", "/schedule", "/schedule/today", "/plans", "/plans/data", "/plans/0", "/fit", "/near")
    own = [f"/sessions/{id}{path}" for path in (*paths, *pages, "/plans/0/export?format=megatron")]
    own += [f"/what-if?session={id}", f"/compare?a={id}&b={id}"]
    for tenant, found in (("red", []), ("blue", own)):  # what nobody has would be hidden from all
        sign_in(served, served.key("admin", tenant=tenant))
        assert [path for path in own if get(served, path)[0].status_code == 404] == found
        assert (id in get(served, "/")[0].text) == (tenant == "red")


def test_names_notes_and_labels_stay_text_everywhere(served: Served, report: dict[str, Any]) -> None:
    model = {**SCENARIO["model"], "name": EVIL[:190]}
    id = served.submit({**SCENARIO, "model": model, "notes": EVIL, "labels": {"a": EVIL}})
    served.end(id, COMPLETED, report={**report, "verdict": EVIL}, verdict=EVIL)
    own = (f"/sessions/{id}", f"/sessions/{id}/trail", f"/compare?a={id}&b={id}", f"/what-if?session={id}")
    for path in ("/", *own):
        answer, page = get(served, path)
        assert answer.status_code == 200, answer.text
        assert_only_text(answer.text, page)
    answer, page = get(served, f"/sessions/new?from={id}")
    assert page.all("textarea")
    assert_only_text(answer.text, page)


def test_all_that_a_report_says_stays_text(served: Served) -> None:
    """Advice, cases, kernel names, decisions, incidents: every section of a report speaks the evil text."""
    request, report = full(EVIL)
    report["considered"][0]["proposal"] = report["proposals"][0]
    id = served.submit(
        {name: part for name, part in request.items() if name not in ("id", "model")}
        | {"model": SMALL["model"]}
    )
    served.end(id, COMPLETED, report=report, verdict=EVIL)
    answer, page = get(served, f"/sessions/{id}")
    assert answer.status_code == 200, answer.text
    assert_only_text(answer.text, page)
    served.keep_plans(id)
    space = served.client.get(f"/sessions/{id}/figures/space")
    # Data, which scripts set as text; opened by itself it is no page.
    assert "<script>alert(1)" in json.dumps(space.json(), ensure_ascii=False)
    assert space.headers["content-type"] == "application/json"
    assert space.headers["x-content-type-options"] == "nosniff"


def test_what_is_searched_for_comes_back_as_text(served: Served) -> None:
    served.submit()  # without a session there is nothing to search
    for path in ("/", "/knowledge"):
        answer = served.client.get(path, params={"q": EVIL, "label": "x"}, headers=HTML)
        assert "alert(1)" in answer.text
        assert "<script>alert" not in answer.text
        assert "onerror=alert(2)>" not in answer.text.replace("&gt;", "")
