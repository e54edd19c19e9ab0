"""A session from the form to the decision, watched live; figures drawn; text that stays text."""

import json
import re
from concurrent.futures import Future
from pathlib import Path
from urllib.parse import urlsplit

from playwright.sync_api import Page, Route, expect

from tests.browser.installation import Installation
from tests.browser.scenes import EVIL_KERNEL, evil, evil_traces, filled, small
from tests.browser.watching import Watched, draw_all

PATIENCE_MS = 60_000
ONE_SESSION = re.compile(r"/sessions/[0-9a-f]{32}$")
REPAINTED = "([one, old]) => document.querySelector(one).toDataURL() !== old"
DROP = """(zone, names) => {
    const dataTransfer = new DataTransfer();
    for (const name of names) dataTransfer.items.add(new File(["{}"], name));
    zone.dispatchEvent(new DragEvent("drop", { dataTransfer, bubbles: true, cancelable: true }));
}"""
LLAMA = {"model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096, "intermediate_size": 14336,
         "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256}  # fmt: skip
MEASURED = {"ranks", "timeline", "lateness", "measured-collectives", "measured-roofline"}


def fill(page: Page) -> None:
    page.goto("/sessions/new")
    for fold in page.locator("form.new > details > summary").all():
        fold.click()
    for name, value in filled().items():
        page.locator(f'[name="{name}"]').fill(value)


def test_a_session_is_submitted_with_traces_watched_and_drawn(page: Watched, tmp_path: Path) -> None:
    """The form, the upload, the live page, every figure; and no evil name of it all does anything."""
    view = page.page
    fill(view)
    expect(view.locator("[data-verdict]")).to_contain_text("Today's plan is predicted to take")
    view.locator('[name="plan.tp"]').fill("3")
    expect(view.locator("#field-error").first).to_be_visible()
    view.locator('[name="plan.tp"]').fill("8")
    expect(view.locator("[data-verdict]")).to_contain_text("Fits")
    view.locator("#trace-files").set_input_files(evil_traces(tmp_path))
    view.get_by_role("button", name="Submit").click()
    view.wait_for_url(ONE_SESSION, timeout=PATIENCE_MS)
    view.evaluate("window.same = true")
    expect(view.locator(".verdict")).to_be_visible(timeout=PATIENCE_MS)
    expect(view.locator(".state").first).to_have_text("done")
    assert view.evaluate("window.same"), "the page followed without being loaded again"
    session = view.url
    view.get_by_role("link", name="Figures").click()
    view.wait_for_url(re.compile("/figures$"))
    assert draw_all(view) == {"space", "roofline", "collectives", "mesh"} | MEASURED
    view.goto(session)
    expect(view.get_by_role("heading", level=1)).to_contain_text(evil("model"))
    expect(view.locator("blockquote")).to_have_text(evil("notes"))
    view.get_by_role("link", name="Trail").click()
    view.locator("details", has_text="read traces").first.locator("summary").first.click()
    read = view.locator("details", has_text="read traces").last
    read.locator("summary").click()
    expect(read.locator("pre").last).to_contain_text(EVIL_KERNEL)
    assert view.evaluate("window.hacked") is None


def test_five_actions_lead_from_the_empty_form_to_three_proposals(page: Watched, tmp_path: Path) -> None:
    """Choose the file, say the devices, submit: everything else is assumed, shown and marked."""
    view = page.page
    config = tmp_path / "config.json"
    config.write_text(json.dumps(LLAMA))
    view.goto("/")
    view.get_by_role("link", name="New session").click()
    view.locator("[data-into]").set_input_files(config)
    view.get_by_label("Devices", exact=True).fill("16 x H100 SXM")
    expect(view.locator("[data-model]")).to_contain_text("8.03 B parameters")
    expect(view.locator("[data-verdict]")).to_contain_text("Fits")
    expect(view.locator('[name="training.seq_len"]')).to_have_value("8192")
    expect(view.locator("#assumed label", has_text="Sequence length")).to_contain_text("assumed")
    view.get_by_role("button", name="Submit").click()
    view.wait_for_url(ONE_SESSION, timeout=PATIENCE_MS)
    expect(view.locator("article.card").nth(2)).to_be_visible(timeout=PATIENCE_MS)


def test_a_refused_form_keeps_the_focus_on_its_field_and_back_leads_to_the_form(page: Watched) -> None:
    view = page.page
    view.goto("/")
    view.get_by_role("link", name="New session").click()
    view.locator('[name="preset"]').select_option("Llama 3.1 8B")
    expect(view.get_by_text("8.03 B parameters")).to_be_visible(timeout=PATIENCE_MS)  # the script runs
    view.get_by_label("Devices", exact=True).fill("16 abaci")
    view.get_by_role("button", name="Submit").click()
    expect(view.locator("#field-error")).to_contain_text("got 16 abaci", timeout=PATIENCE_MS)
    expect(view.locator('[name="devices"]')).to_be_focused()
    view.locator('[name="devices"]').fill("16 x H100")
    view.get_by_role("button", name="Submit").click()
    view.wait_for_url(ONE_SESSION, timeout=PATIENCE_MS)
    view.go_back()
    expect(view.locator('[name="devices"]')).to_have_value("16 x H100")
    view.locator('[name="devices"]').fill("32 x H100")
    view.get_by_role("button", name="Submit").click()
    view.wait_for_url(ONE_SESSION, timeout=PATIENCE_MS)


def test_dropped_traces_are_uploaded_also_of_the_same_name_and_other_files_are_refused(
    page: Watched, installation: Installation, tmp_path: Path
) -> None:
    view, told = page.page, page.page.locator("[data-upload]")
    fill(view)
    (tmp_path / "README.md").write_text("no trace")
    view.locator("#trace-files").set_input_files(tmp_path / "README.md")
    view.evaluate("scrollTo(0, 0)")
    view.get_by_role("button", name="Submit").click()
    expect(told).to_contain_text("Not uploaded")
    expect(told).to_be_in_viewport()
    view.locator("[data-drop]").evaluate(DROP, ["README.md"])
    expect(told).to_contain_text("No trace among these files")
    view.locator("[data-drop]").evaluate(DROP, ["trace.json", "README.md", "trace.json"])
    expect(told).to_contain_text("2 files, uploaded when you submit")
    view.get_by_role("button", name="Submit").click()
    view.wait_for_url(ONE_SESSION, timeout=PATIENCE_MS)
    with installation.api as client:
        traces = client.get(f"/v1{urlsplit(view.url).path}").json()["request"]["traces"]
        files = client.get(f"/v1/traces/{traces.removeprefix('trace:')}").json()["files"]
    assert sorted(file["name"] for file in files) == ["0-trace.json", "1-trace.json"]


def test_figures_answer_to_their_choices_and_to_the_colours_of_the_page(page: Watched, done: str) -> None:
    view = page.page
    view.goto(f"{done}/figures")
    mesh = view.locator("figure", has_text="The device mesh")
    mesh.scroll_into_view_if_needed()
    expect(mesh).to_have_attribute("data-drawn", "true", timeout=PATIENCE_MS)
    mesh.get_by_label("Plan").select_option("today")
    mesh.get_by_label("Groups").select_option("tensor-parallel")
    canvas = mesh.get_by_role("img", name="tensor-parallel")
    expect(canvas).to_be_visible()
    before = view.locator("figure[data-drawn] .u-wrap canvas").first.evaluate("one => one.toDataURL()")
    view.emulate_media(color_scheme="dark")
    view.wait_for_function(REPAINTED, arg=["figure[data-drawn] .u-wrap canvas", before])


def test_a_chart_answers_the_pointer_is_zoomed_by_a_drag_and_links_its_cursor(
    page: Watched, done: str
) -> None:
    view = page.page
    view.goto(f"{done}/figures")
    space = view.locator("figure", has_text="The searched space")
    space.scroll_into_view_if_needed()
    expect(space).to_have_attribute("data-drawn", "true", timeout=PATIENCE_MS)
    box = space.locator(".u-over").bounding_box()
    assert box
    answered = False
    for share in (0.1, 0.3, 0.5, 0.7, 0.9):  # some plan is near one of these places
        view.mouse.move(box["x"] + share * box["width"], box["y"] + 0.6 * box["height"])
        answered = answered or space.locator(".tip").is_visible()
    assert answered
    whole = space.get_by_role("button", name="Whole chart")
    expect(whole).to_be_hidden()
    view.mouse.move(box["x"] + 0.2 * box["width"], box["y"] + 0.2 * box["height"])
    view.mouse.down()
    view.mouse.move(box["x"] + 0.6 * box["width"], box["y"] + 0.8 * box["height"], steps=4)
    view.mouse.up()
    expect(whole).to_be_visible()
    whole.click()
    expect(whole).to_be_hidden()


def test_a_proposal_is_rejected_and_another_plan_is_scored(page: Watched, installation: Installation) -> None:
    id = installation.submit(small(approval="person"))
    view = page.page
    view.goto(f"/sessions/{id}")
    expect(view.locator(".state").first).to_have_text("waiting for approval", timeout=PATIENCE_MS)
    card = view.locator("article.card").first
    card.get_by_text("Comment or edit").click()
    card.get_by_label("Comment").fill("the old racks have no room")
    card.get_by_label("recompute").select_option("full")
    card.get_by_role("button", name="Score this plan").click()
    expect(view.locator(".state").first).to_have_text("waiting for approval", timeout=PATIENCE_MS)
    brought = view.get_by_role("list", name="Submitted plans")
    expect(brought).to_contain_text("recompute full", timeout=PATIENCE_MS)
    expect(brought).to_contain_text("against proposal 1")
    view.locator("article.card").nth(1).get_by_role("button", name="Reject").click()
    expect(view.locator(".state").first).to_have_text("done", timeout=PATIENCE_MS)
    expect(view.get_by_role("region", name="Decisions")).to_contain_text("the old racks have no room")


def break_events(view: Page, held: "Future[Route]") -> None:
    """As a balancer does whose server is being replaced; returns when the page has looked again."""
    view.evaluate("document.getElementById('session').dataset.old = ''")
    held.result(PATIENCE_MS / 1000).fulfill(status=502)
    expect(view.locator("#session[data-old]")).to_have_count(0)


def test_a_page_that_looks_again_keeps_the_focus_and_what_is_being_typed(page: Watched, waiting: str) -> None:
    view, held = page.page, Future[Route]()
    view.route(re.compile("/events"), held.set_result, times=1)
    view.goto(waiting)
    card = view.locator("article.card").nth(1)
    card.get_by_text("Comment or edit").click()
    card.get_by_label("recompute").select_option("full")
    card.get_by_label("tp", exact=True).fill("2")
    card.get_by_label("Comment").press_sequentially("the old racks")
    break_events(view, held)
    view.keyboard.type(" have no room")
    expect(card.get_by_label("Comment")).to_have_value("the old racks have no room")
    expect(card.get_by_label("tp", exact=True)).to_have_value("2")
    expect(card.get_by_label("recompute")).to_have_value("full")


def test_an_export_is_tried_again_shown_and_copied(page: Watched, done: str) -> None:
    view = page.page
    view.context.grant_permissions(["clipboard-read", "clipboard-write"])
    view.route(re.compile(r"/export\?"), lambda route: route.fulfill(status=502, body="<html>"), times=1)
    view.goto(done)
    export = view.locator("details.export").first
    export.get_by_text("Export").click()
    expect(export.locator("pre")).to_contain_text("The server did not answer")
    expect(export.get_by_role("button", name="Copy")).to_be_hidden()
    export.get_by_text("Export").click()
    export.get_by_text("Export").click()
    expect(export.locator("pre")).to_contain_text("--tensor-model-parallel-size")
    export.get_by_role("button", name="Copy").click()
    expect(export.get_by_role("button", name="Copied")).to_be_visible()
    assert view.evaluate("navigator.clipboard.readText()") == export.locator("pre").text_content()


def test_a_node_of_the_trail_opens_what_it_did_and_a_step_what_it_was_given(
    page: Watched, installation: Installation
) -> None:
    id = installation.submit(small())
    view = page.page
    view.goto(f"/sessions/{id}/trail")
    expect(view.locator(".moves")).to_contain_text("done", timeout=PATIENCE_MS)
    rows = view.locator(".agent > summary")
    assert 4 <= rows.count() <= 8
    node = view.locator(".flow a", has_text="proposal")
    node.focus()
    node.press("Enter")
    row = view.locator("#agent-proposal")
    expect(row).to_have_attribute("open", "")
    expect(row.locator(".run").first).to_contain_text("It changed")
    titles = row.locator(".run > .steps > .step > details > summary b").all_inner_texts()
    assert len({title.partition(" ×")[0] for title in titles}) == len(titles), "each told once"
    fold = row.locator("details[data-source]:visible").first
    fold.locator("summary").click()
    expect(fold.locator("pre").first).to_be_visible()
    view.reload()
    expect(view.locator("#agent-proposal")).to_have_attribute("open", "")


def test_sliders_are_answered_with_the_winner_and_the_question_is_in_the_address(page: Watched) -> None:
    view = page.page
    view.goto("/what-if")
    slider = view.get_by_role("slider", name="Tensor parallel")
    slider.focus()
    slider.press("ArrowLeft")
    view.wait_for_url(re.compile(r"[?&]tp=4\b"))
    expect(view.locator("#answer")).to_contain_text("what if: tp 4")
    view.reload()
    expect(view.get_by_role("slider", name="Tensor parallel")).to_have_attribute("aria-valuetext", "4")
    expect(view.locator("#winner .winner b")).to_be_visible(timeout=PATIENCE_MS)
    slider = view.get_by_role("slider", name="Memory per device")
    slider.focus()
    slider.press("Home")
    expect(view.locator("#winner")).to_contain_text("No legal plan fits", timeout=PATIENCE_MS)
    view.locator("select[name=device]").select_option("b200")
    view.wait_for_url(re.compile("device=b200"))
    expect(view.locator("select[name=precision] option[value=nvfp4]")).to_have_count(1)
    view.goto("/what-if?tp=64&pp=64")
    expect(view.locator("#answer .alarm")).to_contain_text("divide 64 devices")


def test_the_simulated_schedule_is_zoomed_by_keyboard_wheel_and_drag(page: Watched, done: str) -> None:
    view = page.page
    view.goto(f"{done}/schedule")
    chart = view.locator("canvas.chart").first
    expect(view.locator("figure.gantt[data-drawn]")).to_have_count(2, timeout=PATIENCE_MS)
    shown = view.locator("[data-range]")
    whole = shown.text_content()
    chart.focus()
    chart.press("+")
    expect(shown).not_to_have_text(str(whole))
    closer = shown.text_content()
    box = chart.bounding_box()
    assert box
    view.mouse.move(box["x"] + 300, box["y"] + 8)
    expect(view.locator("[data-tip]")).to_contain_text("stage 0")
    view.mouse.down()
    view.mouse.move(box["x"] + 200, box["y"] + 8)
    view.mouse.up()
    expect(shown).not_to_have_text(str(closer))
    view.keyboard.down("Control")
    view.mouse.wheel(0, 2000)
    view.keyboard.up("Control")
    chart.press("0")
    expect(shown).to_have_text(str(whole))


def test_a_loss_opens_to_its_meaning_and_leads_to_the_proposal_that_removes_it(
    page: Watched, done: str
) -> None:
    view = page.page
    view.goto(done)
    for loss in view.locator(".loss").all():
        loss.click()
        about = view.locator(f"[data-about={loss.get_attribute('data-cause')}]")
        expect(about).to_be_visible()
    expect(view.locator(".about:visible")).to_have_count(1)
    view.locator(".losses").press("ArrowDown")
    expect(view.locator(".loss").first).to_have_attribute("aria-selected", "true")
    above = "charts => charts.filter(chart => chart.getBoundingClientRect().top < 900).length"
    view.set_viewport_size({"width": 1440, "height": 900})
    view.goto(done)
    assert view.locator("#where, #cloud").evaluate_all(above) == 2


def test_the_agents_are_asked_and_show_the_tools_they_used(page: Watched, done: str) -> None:
    view = page.page
    view.goto(done)
    view.get_by_role("button", name="What limits it?").click()
    answers = view.locator("#answers > li")
    expect(answers).to_have_count(1)
    expect(answers.first).to_contain_text("from the report")
    view.get_by_label("Question").fill(f"why not tp 2? {evil('question')}")
    view.keyboard.press("Enter")
    expect(answers).to_have_count(2)
    expect(answers.first).to_contain_text("would cost")
    used = answers.first.get_by_role("list", name="Tools used")
    used.locator("summary").click()
    expect(used.get_by_label("Arguments")).to_contain_text('"tp": 2')
    expect(used.get_by_label("Result")).to_contain_text("step_time_s")
    assert view.evaluate("window.hacked") is None
    view.reload()
    expect(answers).to_have_count(0)


def test_a_session_is_renamed_on_its_page(page: Watched, installation: Installation) -> None:
    id = installation.submit(small())
    installation.wait(id)
    view = page.page
    view.goto(f"/sessions/{id}")
    view.get_by_text("Actions", exact=True).click()
    view.get_by_text("Rename").click()
    view.get_by_label("Name", exact=True).fill(evil("name"))
    view.get_by_role("button", name="Save").click()
    expect(view.get_by_role("heading", level=1)).to_have_text(evil("name"))
    view.go_back()
    assert view.evaluate("window.hacked") is None


def test_plans_are_sorted_filtered_brushed_and_opened(page: Watched, done: str) -> None:
    view = page.page
    view.goto(f"{done}/plans")
    shown, rows = view.locator("[data-shown]"), view.locator("[data-rows] tr[data-row]")
    expect(shown).to_have_text(re.compile(r"^[\d,]+ plans$"), timeout=PATIENCE_MS)
    everything = str(shown.text_content())
    memory = view.get_by_role("button", name="memory, GiB")
    memory.click()
    expect(view.locator('th[aria-sort="ascending"]')).to_contain_text("memory")
    memory.press("Enter")
    expect(view.locator('th[aria-sort="descending"]')).to_contain_text("memory")
    view.locator("[data-filters] select[name=tp]").select_option("2")
    expect(shown).to_contain_text(" of ")
    filtered = str(shown.text_content())
    box = view.locator("[data-coordinates]").bounding_box()
    assert box
    x = box["x"] + 35  # the first axis: step time
    view.mouse.move(x, box["y"] + box["height"] - 8)
    view.mouse.down()
    view.mouse.move(x, box["y"] + 0.7 * box["height"])
    view.mouse.up()
    expect(shown).not_to_have_text(filtered)
    kept = str(shown.text_content())
    view.reload()
    expect(shown).to_have_text(kept)  # the filters are in the address
    view.get_by_role("button", name="Clear filters").click()
    expect(shown).to_have_text(everything)
    rows.nth(3).click()
    expect(view.locator("#plan")).to_contain_text("Why not:")
    expect(view.locator("#plan").get_by_role("link", name="What if")).to_be_visible()
    view.locator("[data-grid]").focus()
    view.keyboard.press("ArrowDown")
    expect(view.locator('tr[aria-selected="true"]')).to_have_count(1)
