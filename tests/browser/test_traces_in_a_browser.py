"""Timelines in a real browser: loaded, zoomed, searched, selected, compared; a million events stay fluid."""

import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.browser.gallery import OWN_TRACES, TRACED, TRACES, upload
from tests.browser.installation import Installation
from tests.browser.scenes import write_million, write_ranks
from tests.browser.watching import FRAMES, Watched

LOADED = "[data-timeline][data-loaded-ms]"
GLANCED = "[data-timeline][data-overviews='1']"
PAINTED = """async () => {
    const own = document.querySelector("script[src*='/trace.js']").src;
    const timeline = own.replace("trace.js", "timeline.js");
    const data = timeline.replace("timeline.js", "timeline_data.js");
    const [{ Timeline }, { simulated }] = await Promise.all([import(timeline), import(data)]);
    const parent = document.body.appendChild(document.createElement("div"));
    parent.innerHTML = "<div><canvas></canvas><div data-spacer></div></div><p data-tip></p>";
    parent.firstChild.style.width = "600px";
    const kinds = ["forward", "send"], pairs = 100;
    const columns = { stage: [], kind: [], micro_batch: [], start_s: [], end_s: [] };
    const step = { stages: 1, kinds, makespan_s: pairs, ...columns };
    for (let at = 0; at < pairs; at++)
        for (const [kind, from, to] of [[1, at, at + 0.01], [0, at + 0.01, at + 0.91]]) {
            step.stage.push(0); step.kind.push(kind); step.micro_batch.push(at);
            step.start_s.push(from); step.end_s.push(to);
        }
    const box = parent.firstChild;
    const drawn = new Timeline(box, { tell() {}, selected() {}, moved() {} });
    drawn.fill([{ ...simulated(step, { key: "s", label: "s", short: "s", side: "" }) }]);
    await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
    const row = drawn.layout.find((entry) => entry.row), canvas = box.querySelector("canvas");
    const ratio = devicePixelRatio, y = Math.round((row.y + row.height / 2) * ratio);
    const line = canvas.getContext("2d").getImageData(0, y, canvas.width, 1).data;
    const pen = document.createElement("canvas").getContext("2d");
    pen.fillStyle = getComputedStyle(document.documentElement).getPropertyValue("--compute");
    const [red, green, blue] = [1, 3, 5].map((at) => parseInt(pen.fillStyle.slice(at, at + 2), 16));
    let painted = 0, all = 0;
    for (let x = 92 * ratio; x < canvas.width; x++, all++)
        painted += [red, green, blue].every((one, at) => Math.abs(line[4 * x + at] - one) < 14);
    return painted / all;
}"""
"""The share of a row painted as compute: a hundred times one hundredth of sending, then ninety of compute."""


@pytest.fixture(scope="module")
def reference(installation: Installation) -> str:
    return upload(installation, TRACES)


def view_of(page: Page) -> str:
    found = re.search(r"([\d.]+ \S+) in view", page.locator("[data-status]").inner_text())
    assert found
    return found[1]


def test_a_trace_is_zoomed_searched_and_selected(page: Watched, reference: str) -> None:
    view = page.page
    view.goto(f"/trace?a={reference}")
    view.wait_for_selector(LOADED)
    expect(view.locator("[data-status]")).to_contain_text("events")
    whole = view_of(view)
    view.locator("[data-timeline] canvas").focus()
    view.keyboard.press("w")
    expect(view.locator("[data-status]")).not_to_contain_text(f"{whole} in view")
    view.get_by_role("button", name="Whole trace").click()
    expect(view.locator("[data-status]")).to_contain_text(f"{whole} in view")
    view.get_by_role("searchbox", name="Find").fill("all_reduce")
    expect(view.locator("[data-found]")).to_contain_text("events")
    view.get_by_role("button", name="Next match").click()
    expect(view.locator("[data-status]")).not_to_contain_text(f"{whole} in view")
    view.get_by_role("button", name="Select time").click()
    box = view.locator("[data-timeline] canvas").bounding_box()
    assert box
    view.mouse.move(box["x"] + 300, box["y"] + 60)
    view.mouse.down()
    view.mouse.move(box["x"] + 700, box["y"] + 60, steps=4)
    view.mouse.up()
    expect(view.get_by_role("heading", name=re.compile("Selected stretch"))).to_be_visible()
    expect(view.locator("[data-selection-body]")).to_contain_text("rank 1")


def test_a_late_collective_leads_to_its_moment_and_a_kernel_to_its_events(
    page: Watched, reference: str
) -> None:
    view = page.page
    view.goto(f"/trace?a={reference}")
    view.wait_for_selector(LOADED)
    expect(view.get_by_role("button", name="Show").first).to_be_visible()  # follows once they are analysed
    whole = view_of(view)
    view.get_by_role("button", name="Show").first.click()
    expect(view.locator("[data-status]")).not_to_contain_text(f"{whole} in view")
    expect(view.get_by_role("heading", name=re.compile("Selected stretch"))).to_be_visible()
    view.locator("[data-kernel]").first.click()
    expect(view.locator("[data-found]")).to_contain_text("events")
    with view.expect_download() as download:
        view.get_by_role("link", name="Download").first.click()
    assert download.value.suggested_filename == "rank0.json.gz"


def test_the_address_keeps_the_view_and_a_link_restores_it(page: Watched, reference: str) -> None:
    view = page.page
    view.goto(f"/trace?a={reference}")
    view.wait_for_selector(GLANCED)
    view.locator("[data-timeline] canvas").focus()
    for key in "wwd":
        view.keyboard.press(key)
    view.get_by_text("Pin tracks").click()
    pinned = view.locator("[data-tracks] input").nth(1)
    pinned.check()
    track = pinned.input_value()
    view.get_by_role("searchbox", name="Find").fill("all_reduce")
    view.get_by_label("Ranks in the map").select_option("late")
    view.wait_for_url(re.compile(r"t=.*pin=.*find=all_reduce.*order=late"))
    shown, found = view_of(view), view.locator("[data-found]").inner_text()
    view.goto(view.url)
    view.wait_for_selector(GLANCED)
    assert (view_of(view), view.locator("[data-found]").inner_text()) == (shown, found)
    view.get_by_text("Pin tracks").click()
    expect(view.locator("[data-tracks] input:checked")).to_have_count(1)
    expect(view.locator("[data-tracks] input:checked")).to_have_value(track)
    expect(view.get_by_label("Ranks in the map")).to_have_value("late")


def test_the_map_of_all_ranks_zooms_and_waiting_is_told_from_transferring(
    page: Watched, installation: Installation, tmp_path: Path
) -> None:
    write_ranks(tmp_path, 40, late=30)
    view = page.page
    view.goto(f"/trace?a={upload(installation, tmp_path)}")
    view.wait_for_selector(GLANCED)
    expect(view.locator("[data-minimap] canvas")).to_have_attribute("data-rows", "40")
    expect(view.locator("[data-status]")).to_contain_text("16 of 40 ranks")
    whole = view_of(view)
    view.get_by_role("button", name="Rank 30").click()
    view.wait_for_url(re.compile("ranks=22-37"))
    box = view.locator("[data-minimap] canvas").bounding_box()
    assert box
    view.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    view.wait_for_url(re.compile(r"t=[\d.]+&ranks=12-27"))
    expect(view.locator("[data-status]")).not_to_contain_text(f"{whole} in view")
    view.get_by_role("button", name="Whole trace").click()
    view.get_by_role("button", name="Select time").click()
    box = view.locator("[data-timeline] canvas").bounding_box()
    assert box
    view.mouse.move(box["x"] + 95, box["y"] + 120)
    view.mouse.down()
    view.mouse.move(box["x"] + box["width"] - 2, box["y"] + 120, steps=3)
    view.mouse.up()
    table = view.locator("[data-selection-body] table").first
    expect(table.locator("thead th").last).to_have_text("waiting")
    expect(table.locator("tbody tr").first).to_contain_text("rank 12")
    waits = table.locator("tbody tr").first.locator("td").last.inner_text()
    assert float(waits.removesuffix("%")) == pytest.approx(60, abs=2), "600 of 1,000 microseconds"


def test_simulated_steps_stand_above_the_measured_ranks(page: Watched, installation: Installation) -> None:
    id = installation.submit({**TRACED, "traces": upload(installation, OWN_TRACES)})
    installation.wait(id)
    view = page.page
    view.goto(f"/trace?a={id}")
    view.wait_for_selector(GLANCED)
    tracks = view.locator("[data-tracks] label")
    assert [name for name in tracks.all_text_contents() if "simulated" in name] == [
        "simulated: today, stage 0", "simulated: proposal 1, stage 0"
    ]  # fmt: skip
    view.get_by_label("Simulated above them").select_option("today")
    expect(tracks.filter(has_text="simulated")).to_have_count(1)
    view.wait_for_url(re.compile("plan=today"))


def test_what_is_wide_is_painted_though_something_narrow_begins_in_the_same_pixel(
    page: Watched, reference: str
) -> None:
    view = page.page
    view.goto(f"/trace?a={reference}")
    view.wait_for_selector(LOADED)
    assert view.evaluate(PAINTED) > 0.7


def test_two_traces_stand_on_one_axis_with_what_differs(page: Watched, reference: str) -> None:
    view = page.page
    view.goto(f"/trace?a={reference}&b={reference}")
    view.wait_for_selector(LOADED)
    expect(view.locator("[data-differences] tbody tr").first).to_contain_text("+0")
    assert view.evaluate("document.documentElement.scrollWidth") <= 1280


def test_a_rank_lights_its_peers_and_leads_to_theirs(page: Watched, done: str) -> None:
    view = page.page
    view.goto(f"/topology?session={done.rpartition('/')[2]}&plan=today")
    expect(view.locator("a.cell.own")).to_have_text("0")
    view.get_by_role("link", name=re.compile("rank 5")).click()
    expect(view.locator("a.cell.own")).to_have_text("5")
    expect(view.locator("table thead")).to_contain_text("fast links")
    expect(view.locator("table tbody tr").first).to_contain_text("tensor-parallel")


@pytest.mark.slow
def test_a_million_events_are_drawn_by_pixels_not_by_events(
    page: Watched, installation: Installation, tmp_path: Path
) -> None:
    write_million(tmp_path / "rank0.json.gz")
    view, reference = page.page, upload(installation, tmp_path)
    view.goto(f"/trace?a={reference}")
    view.wait_for_selector(LOADED, timeout=120_000)
    expect(view.locator("[data-status]")).to_contain_text("1,000,000 events")
    frames = view.evaluate(FRAMES, list("wwwwwwwwwwwwaaddssssssssssf"))
    print(
        "loaded in",
        view.locator("[data-timeline]").get_attribute("data-loaded-ms"),
        "ms; frames in ms:",
        frames,
    )
    assert len(frames) == 27
