"""The page of a comparison in a real browser: every area clicked and filtered, numbers held against `--json`."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from lockstep.cli.compare import compare
from lockstep.store.reader import open_recording
from lockstep.testing.fixtures import FaultyPair
from lockstep.wings.report.command import report

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright, of the dev extra")

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no Chromium is installed: as root, apt-get install chromium"
)


# Of the table behind a picture: its four thousand cells are one like the other, and a contrast is found of each.
LEAVE_FEW_ROWS = (
    "document.querySelectorAll('details.behind tr:nth-child(n+7)').forEach(one => one.remove())"
)


PATIENCE_MS = 120_000


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


def new_page(browser: Any, **options: Any) -> Any:
    """A page that waits for what it is asked for also where the machine has much else to do."""
    page = browser.new_page(**options)
    page.set_default_timeout(PATIENCE_MS)
    return page


@pytest.fixture(scope="module")
def paths(lockstep_faulty_pair: FaultyPair) -> list[str]:
    return [str(lockstep_faulty_pair.reference), str(lockstep_faulty_pair.candidate)]


@pytest.fixture(scope="module")
def file(paths: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    done = CliRunner().invoke(report, [*paths, "-o", str(path)], standalone_mode=False)
    assert done.return_value == 1, done.output
    return path


@pytest.fixture(scope="module")
def answer(paths: list[str]) -> dict[str, Any]:
    done = CliRunner().invoke(compare, [*paths, "--json"], standalone_mode=False)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture
def page(browser: Any, file: Path) -> Iterator[Any]:
    """The page, drawn; what the browser complains of fails the test."""
    opened = new_page(browser, viewport={"width": 1400, "height": 900})
    said: list[str] = []
    opened.on("console", lambda message: said.append(message.text))
    opened.on("pageerror", lambda error: said.append(str(error)))
    opened.on(
        "request",
        lambda request: said.append(request.url) if request.url != file.as_uri() else None,
    )
    opened.goto(file.as_uri())
    opened.wait_for_selector("html[data-ready]")
    yield opened
    opened.close()
    assert said == []


def text(page: Any, selector: str) -> str:
    found: str = page.locator(selector).inner_text()
    return found


def test_the_verdict_and_the_numbers_are_those_of_json(page: Any, answer: dict[str, Any]) -> None:
    # then heading, counts and the row that is chosen are those of the origin
    origin = answer["origin"]
    assert origin["module"] in text(page, "h1")
    assert chips(page)["bitwise equal"] == answer["equal"]
    assert chips(page)["origin"] == len(answer["origins"])
    assert origin["op"] in text(page, "#selected .name")
    shown = dict(
        zip(texts(page, "#selected .tiles dt"), texts(page, "#selected .tiles dd"), strict=True)
    )
    assert float(shown["rel error"]) == pytest.approx(origin["metrics"]["rel_l2"], rel=1e-3)
    assert float(shown["cosine"]) == pytest.approx(origin["metrics"]["cosine"], rel=1e-3)
    assert float(shown["max abs"]) == pytest.approx(origin["metrics"]["max_abs"], rel=1e-2)
    # and the first command is the one that compare prints
    assert page.locator(".v-side .cmd code").first.inner_text() == answer["what_next"]["command"]


def test_filters_sorting_and_chips_change_what_the_table_lists(
    page: Any, answer: dict[str, Any]
) -> None:
    total = answer["compared"] + answer["missing"]
    assert count(page) == total
    # when one module is asked for
    page.fill("#filter", f"module:{answer['origin']['module']} kind:origin")
    assert count(page) == len(answer["origins"])
    # when nothing passes, the table says so and offers the way back
    page.fill("#filter", "no such thing")
    page.click("text=Clear the filter")
    assert count(page) == total
    # when equal pairs are hidden
    page.click(".chip:has-text('bitwise equal')")
    assert count(page) == total - answer["equal"]
    # when sorted by the noise floor, the largest stands first
    page.click("[data-column=margin]")
    ordered = page.evaluate(
        "[...document.querySelectorAll('.row')].sort((a, b) => a.offsetTop - b.offsetTop)[0].textContent"
    )
    assert "bitwise equal" not in ordered
    assert page.locator("[role=columnheader][aria-sort=descending]").count() == 1


def test_a_metric_can_be_filtered_by_and_what_is_no_filter_is_said(
    page: Any, answer: dict[str, Any]
) -> None:
    # given the metrics of the origins, and how many pairs there are
    total, metrics = count(page), [one["metrics"] for one in answer["origins"]]
    rel, cosine = (answer["origin"]["metrics"][name] for name in ("rel_l2", "cosine"))
    # when one is asked for, by its column or by its title, then those on that side of the bound pass
    for asked, passes in (
        (f"rel>{rel / 2:.3e}", [one["rel_l2"] > rel / 2 for one in metrics]),
        (f"rel_error>{rel * 2:.3e}", [one["rel_l2"] > rel * 2 for one in metrics]),
        (f"rel_l2<={rel * 2:.3e}", [one["rel_l2"] <= rel * 2 for one in metrics]),
        (f"cosine<{cosine + 0.1:.4f}", [one["cosine"] < cosine + 0.1 for one in metrics]),
        (f"cosine < {cosine - 0.1:.4f}", [one["cosine"] < cosine - 0.1 for one in metrics]),
    ):
        page.fill("#filter", f"{asked} kind:origin")
        assert count(page) == sum(passes), asked
        assert "not understood" not in text(page, "#table .sub")
    # and what is no filter is said, and hides nothing
    for odd in ("cosine<half", "colour>1"):
        page.fill("#filter", odd)
        assert text(page, "#table .sub").endswith(f"not understood: {odd}")
        assert count(page) == total


def test_a_link_leads_to_the_chosen_pair(page: Any, browser: Any) -> None:
    # given a pair that was chosen
    assert "#" not in page.url
    first = text(page, "#selected .name")
    page.keyboard.press("ArrowRight")
    chosen = text(page, "#selected .detail")
    # when its address is opened elsewhere, and one that leads nowhere
    other = new_page(browser, viewport={"width": 1400, "height": 900})
    other.goto(page.url)
    other.wait_for_selector("html[data-ready]")
    assert text(other, "#selected .detail") == chosen
    assert other.locator(".row[aria-selected=true]").count() == 1
    other.goto(page.url.partition("#")[0] + "#pair-99999999")
    other.reload()
    other.wait_for_selector("html[data-ready]")
    # then it is chosen there, or the origin is as ever
    assert text(other, "#selected .name") == first
    other.close()


def test_escape_closes_a_menu_and_leaves_the_filter(page: Any) -> None:
    page.fill("#filter", "forward")
    filtered = count(page)
    page.click("summary:has-text('Columns')")
    assert page.locator("details.menu[open]").count() == 1
    page.keyboard.press("Escape")
    assert page.locator("details.menu[open]").count() == 0
    assert count(page) == filtered
    page.keyboard.press("Escape")
    assert count(page) > filtered


def test_every_picture_of_a_chosen_row_can_be_clicked(page: Any) -> None:
    first = text(page, "#selected .name")
    # strip, scatter, tree and table each choose or filter
    page.click("#strip canvas", position={"x": 80, "y": 60})
    assert text(page, "#selected .name") != first
    page.click("#selected >> text=To the origin")
    assert text(page, "#selected .name") == first
    box = page.locator("#scatter canvas").bounding_box()
    page.mouse.move(box["x"] + 100, box["y"] + 50)
    page.mouse.down()
    page.mouse.move(box["x"] + 200, box["y"] + 60)
    page.mouse.up()
    assert page.locator("#scatter >> text=Whole range").is_visible()
    page.click("#scatter >> text=Whole range")
    before = count(page)
    page.locator(".node").nth(1).click()
    assert count(page) < before
    page.click("#tree >> text=Show all")
    page.locator(".row").nth(3).click()
    assert page.locator(".row[aria-selected=true]").count() == 1


def test_everything_can_be_done_by_keys(page: Any) -> None:
    first = text(page, "#selected .name") + text(page, ".readout")
    for key in ("ArrowRight", "ArrowLeft", "j", "k", "ArrowDown", "m", "l", "1", "1", "t"):
        page.keyboard.press(key)
    page.keyboard.press("o")
    assert text(page, "#selected .name") + text(page, ".readout") == first
    page.keyboard.press("/")
    page.keyboard.type("forward")
    assert count(page) < int(page.locator(".rows").get_attribute("aria-rowcount") or 0) + 1
    page.keyboard.press("Escape")
    page.keyboard.press("?")
    assert page.locator("dialog[open]").count() == 1
    page.keyboard.press("Escape")
    assert page.locator("dialog[open]").count() == 0


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("width", "scheme"),
    [(320, "light"), (800, "dark"), (1400, "light"), (1400, "dark"), (3840, "dark")],
)
def test_it_is_accessible_and_never_wider_than_the_screen(
    browser: Any, file: Path, width: int, scheme: str
) -> None:
    axe_core = pytest.importorskip(
        "axe_core_python.sync_playwright", reason="needs axe-core-python"
    )
    page = new_page(browser, viewport={"width": width, "height": 900}, color_scheme=scheme)
    page.goto(file.as_uri())
    page.wait_for_selector("html[data-ready]")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for details in page.locator("details.behind").all():
        details.evaluate("one => { one.open = true; }")
    page.evaluate(LEAVE_FEW_ROWS)
    found = axe_core.Axe().run(page, options={"resultTypes": ["violations"]})["violations"]
    page.close()
    assert [(one["id"], [node["html"][:200] for node in one["nodes"]][:3]) for one in found] == []


def test_without_a_script_it_can_be_read_and_printed(
    browser: Any, file: Path, answer: dict[str, Any]
) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(file.as_uri())
    assert answer["origin"]["module"] in text(page, "h1")
    assert page.locator("#table tbody tr").count() == min(
        200, answer["compared"] + answer["missing"]
    )
    assert not page.locator("#scatter").is_visible()
    context.close()


def test_printed_it_is_light_and_nothing_scrolls(browser: Any, file: Path) -> None:
    # given a reader whose screen is dark
    page = new_page(browser, viewport={"width": 800, "height": 900}, color_scheme="dark")
    page.goto(file.as_uri())
    page.wait_for_selector("html[data-ready]")
    page.keyboard.press("t")
    light = _drawn(page)
    page.keyboard.press("t")
    dark = _drawn(page)
    assert dark != light
    # when it is printed
    page.emulate_media(media="print")
    page.wait_for_function(
        "before => document.querySelector('.cells i').style.cssText !== before", arg=dark
    )
    # then it is coloured for paper, what can only be clicked is gone, and no box is cut off
    assert _drawn(page) == light
    assert not page.locator("#theme").is_visible()
    boxes = page.locator(".tree, .detail, .detail .scroll, .strip-scroll").all()
    assert boxes
    assert all(one.evaluate("one => one.scrollHeight <= one.clientHeight + 1") for one in boxes)
    page.close()


def _drawn(page: Any) -> str:
    """The colour of the first cell of the tree."""
    colour: str = page.locator(".cells i").first.evaluate("one => one.style.cssText")
    return colour


def test_one_recording_shows_its_loss_its_batch_and_every_tensor(
    browser: Any, paths: list[str], tmp_path: Path
) -> None:
    # given the page of one recording
    path = tmp_path / "one.html"
    done = CliRunner().invoke(report, [paths[0], "-o", str(path)], standalone_mode=False)
    assert done.return_value == 0, done.output
    page = new_page(browser, viewport={"width": 1400, "height": 900})
    page.goto(path.as_uri())
    page.wait_for_selector("html[data-ready]")
    # then it counts what the recording holds
    records = sum(rank.record_count for rank in open_recording(paths[0]).ranks.values())
    assert f"with {records} tensors were recorded" in text(page, "h1")
    assert count(page) == records
    # and shows loss and batch, and a parameter that is chosen over steps
    assert {"Loss", "Norm of all gradients"} <= set(texts(page, "[aria-label='Over steps'] h3"))
    assert page.locator("canvas.heat").count() >= 1
    page.fill("#filter", "role:param_grad")
    page.locator(".row").first.click()
    assert page.locator("#selected >> text=norm over steps").count() == 1
    # and a key that would need the strip does nothing
    page.locator("#selected .detail").focus()
    page.keyboard.press("1")
    page.keyboard.press("ArrowRight")
    axe_core = pytest.importorskip(
        "axe_core_python.sync_playwright", reason="needs axe-core-python"
    )
    found = axe_core.Axe().run(page, options={"resultTypes": ["violations"]})["violations"]
    page.close()
    assert [(one["id"], one["nodes"][0]["html"][:200]) for one in found] == []


def test_a_report_onto_an_existing_file_needs_force(paths: list[str], file: Path) -> None:
    before = file.read_bytes()
    done = CliRunner().invoke(report, [*paths, "-o", str(file)], standalone_mode=False)
    assert "exists already" in str(done.exception)
    assert file.read_bytes() == before


def texts(page: Any, selector: str) -> list[str]:
    found: list[str] = page.locator(selector).all_inner_texts()
    return found


def count(page: Any) -> int:
    """How many rows the table says that it lists."""
    return int(text(page, "#table .sub").split(" of ")[0].split(",")[0].replace("\u202f", ""))


def chips(page: Any) -> dict[str, int]:
    """How many there are of each kind."""
    found = page.locator(".chip").evaluate_all(
        "all => all.map(one => [one.childNodes[1].data, one.querySelector('b').textContent])"
    )
    return {kind: int(number.replace("\u202f", "")) for kind, number in found}
