"""The pages in a real browser: from two runs to the operator at which they part, by few clicks and by keys alone."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from served_pages import Served, serving

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright, of the dev extra")

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no Chromium is installed: as root, apt-get install chromium"
)

PATIENCE_MS = 60_000


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A page; what the browser complains of fails the test."""
    opened = browser.new_page(viewport={"width": 1280, "height": 900})
    opened.set_default_timeout(PATIENCE_MS)
    said: list[str] = []
    opened.on("console", lambda message: said.append(message.text))
    opened.on("pageerror", lambda error: said.append(str(error)))
    yield opened
    opened.close()
    assert said == []


def address(served: Served, path: str = "") -> str:
    return f"http://127.0.0.1:{served.port}/{served.token}/{path}"


def graph_page(page: Any, served: Served) -> None:
    keys = served.keys()
    page.goto(
        address(served, f"compare/{keys['reference']}/{keys['below/candidate']}/graph"),
        timeout=PATIENCE_MS,
    )
    page.wait_for_selector("html[data-ready]")
    page.wait_for_selector(".node-card code")


def until(page: Any, what: str, value: Any = None) -> None:
    """Wait until something holds on the page, whose policy lets no text be run from within."""
    for _ in range(PATIENCE_MS // 50):
        if page.evaluate(what, value):
            return
        page.wait_for_timeout(50)
    raise AssertionError(what)


def chosen(page: Any) -> str:
    found: str = page.locator(".node-head p").first.inner_text()
    return found


def clicks_to_the_operator(page: Any, served: Served, reference: str, candidate: str) -> int:
    """From the list of all runs to the graph at the first differing step; how many clicks that took."""
    clicks = [
        f"tr:has(bdi:text-is('{reference}')) >> text=take as reference",
        f"tr:has(bdi:text-is('{candidate}')) >> a:text-is('curves')",
        "a:has-text('Graph at step')",
    ]
    page.goto(address(served))
    for click in clicks:
        page.click(click)
    page.wait_for_selector("html[data-ready]")
    page.wait_for_selector(".node-card code")
    return len(clicks)


def test_two_runs_lead_to_the_operator_at_which_they_part_in_three_clicks(
    page: Any, served: Served
) -> None:
    clicks = clicks_to_the_operator(page, served, "reference", "below/candidate")

    assert clicks < 5
    assert "origin" in chosen(page)
    assert "torch.nn.functional.relu" in chosen(page)
    for pane in page.locator(".pane").all():  # in the middle of both, with a sign and a word
        box = pane.locator(".box.chosen").bounding_box()
        around = pane.bounding_box()
        assert abs(box["x"] + box["width"] / 2 - around["x"] - around["width"] / 2) < 3
        assert abs(box["y"] + box["height"] / 2 - around["y"] - around["height"] / 2) < 3
        assert "origin" in pane.locator(".box.chosen .words").inner_html()
        assert pane.locator(".box.chosen svg.icon").count() == 1


@pytest.fixture(scope="module")
def searched(
    lockstep_recording: Path, tmp_path_factory: pytest.TempPathFactory, programs: Path
) -> Iterator[Served]:
    """Three trainings whose commands differ in two options, and which trained ten steps of which two are recorded."""
    folder = tmp_path_factory.mktemp("searched")
    for name, words in {
        "one": ["--lr", "0.1", "--act", "relu", "--depth", "4"],
        "two": ["--lr", "0.2", "--act", "relu", "--depth", "4"],
        "three": ["--lr", "0.1", "--act", "gelu", "--depth", "4"],
    }.items():
        run = shutil.copytree(lockstep_recording, folder / name)
        rewrite(run / "manifest.json", command=["python", "train.py", *words])
        rewrite(run / "rank0" / "manifest.json", trained=10)
    with serving(folder, programs=programs) as found:
        yield found


def rewrite(manifest: Path, **changes: Any) -> None:
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), **changes}))


def titles_of(page: Any) -> list[str]:
    return [one.inner_text() for one in page.locator(".runs thead th").all()]


def test_the_list_has_what_varies_after_the_loss_and_folds_what_is_the_same(
    page: Any, searched: Served
) -> None:
    # when the list is opened at 1280 pixels
    page.goto(address(searched))
    page.wait_for_selector(".runs tbody tr")
    # then the losses stand before the settings that vary, and nothing is cut off
    titles = titles_of(page)
    assert titles[:2] == ["run", "compare"]
    assert titles.index("last loss") < titles.index("lr") < titles.index("made (UTC)")
    assert "act" in titles
    assert page.evaluate(
        "(box => box.scrollWidth <= box.clientWidth)(document.querySelector('.scroll-x'))"
    )
    # and what is the same everywhere, the steps too, is no column but folded below
    assert not {"depth", "steps", "trained"} & set(titles)
    assert not page.is_visible("text=depth")
    page.click("#same summary")
    shown = page.locator("#same").inner_text()
    assert "depth\n4" in shown
    assert "steps\n2 of 10" in shown
    # and a column comes back if somebody asks for it
    page.goto(address(searched, "?"))
    page.select_option("select[aria-label='Show one more setting']", "depth")
    assert "depth" in titles_of(page)


def test_steps_that_differ_are_one_column(
    page: Any, searched: Served, tmp_path: Path, programs: Path
) -> None:
    # given a run that trained longer than the others
    folder = shutil.copytree(searched.folder, tmp_path / "runs")
    rewrite(folder / "two" / "rank0" / "manifest.json", trained=12)
    with serving(folder, programs=programs) as found:
        page.goto(address(found))
        page.wait_for_selector(".runs tbody tr")
        # then one column says how many were recorded, and of how many
        assert titles_of(page).count("steps") == 1
        cells = page.locator("td[data-title='steps']").all_inner_texts()
        assert sorted(cells) == ["2 of 10", "2 of 10", "2 of 12"]
        page.goto("about:blank")


def test_on_a_phone_every_number_of_every_run_is_on_the_screen(page: Any, searched: Served) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(address(searched))
    page.wait_for_selector(".runs tbody tr")
    cells = page.locator(".runs td").all()
    assert len(cells) > 15
    for cell in cells:
        box = cell.bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 390, cell.inner_text()
    assert page.evaluate("document.documentElement.scrollWidth") == 390


def test_partners_stand_on_one_level_and_what_is_dragged_moves_both(
    page: Any, served: Served
) -> None:
    graph_page(page, served)

    def heights() -> list[dict[str, float]]:
        return [
            {
                box.get_attribute("data-node"): box.bounding_box()["y"]
                for box in pane.locator(".box").all()
            }
            for pane in page.locator(".pane").all()
        ]

    before = heights()
    assert before[0] == before[1]
    place = page.locator(".pane").first.bounding_box()
    page.mouse.move(place["x"] + 20, place["y"] + 200)
    page.mouse.down()
    page.mouse.move(place["x"] + 20, place["y"] + 140, steps=3)
    page.mouse.up()
    until(
        page,
        "before => document.querySelector('.box.chosen').getBoundingClientRect().y < before - 40",
        before[0][page.locator(".box.chosen").first.get_attribute("data-node")],
    )
    after = heights()
    assert after[0] == after[1]


def test_everything_of_the_graph_can_be_done_by_keys(page: Any, served: Served) -> None:
    graph_page(page, served)
    origin = chosen(page)

    def press(key: str) -> str:
        before = page.url
        page.keyboard.press(key)
        until(page, "before => location.href !== before", before)
        until(page, _IS_CHOSEN)
        return chosen(page)

    # when the flow is followed up and down again
    assert press("u") != origin
    press("d")
    press("o")
    until(page, _SAYS, "relu")
    # and the next difference is gone to, and back from
    after = press("n")
    assert after != origin
    assert press("p") == origin
    # and it is searched for
    page.keyboard.press("/")
    page.keyboard.type("linear")
    page.wait_for_selector("#hits button")
    page.keyboard.press("Enter")
    until(page, _SAYS, "linear")
    # and the tree is walked
    page.focus("#lines")
    active = page.get_attribute("#lines", "aria-activedescendant")
    press("ArrowDown")
    until(
        page,
        "before => ![null, before].includes(document.querySelector('#lines').getAttribute('aria-activedescendant'))",
        active,
    )
    line = page.locator("[role=treeitem][aria-selected=true]")
    assert line.get_attribute("aria-level")
    assert ": " in line.get_attribute("aria-label")


_SAYS = "word => document.querySelector('.node-head').innerText.includes(word)"
_IS_CHOSEN = """() => {
  const node = new URLSearchParams(location.hash.slice(1)).get('node');
  const shown = document.querySelector('.box.chosen,.frame.chosen');
  return shown && shown.dataset.node === node && document.querySelector(`#line-${node}[aria-selected=true]`);
}"""


HOSTILE = "<img src=x onerror=window.hurt=1>\u202e';window.hurt=1//"


def test_hostile_names_are_text_wherever_they_are_drawn(page: Any, served: Served) -> None:
    # given a server whose labels, paths and reasons are markup
    def spoilt(route: Any) -> None:
        answer = route.fetch()
        value = answer.json()
        for one in (
            value,
            *value.get("boxes", ()),
            *value.get("lines", ()),
            *value.get("found", ()),
        ):
            one.update(label=HOSTILE, module=HOSTILE, operator=HOSTILE)
        for one in value.get("tensors", ()):
            one.update(tensor=HOSTILE, reason=HOSTILE)
        route.fulfill(json=value)

    for part in ("boxes", "tree", "find", "node"):
        page.route(f"**/graph/{part}?*", spoilt)

    # when
    graph_page(page, served)
    page.fill("#find", "relu")
    page.wait_for_selector("#hits button")

    # then
    assert page.locator("main img").count() == 0
    assert page.evaluate("() => window.hurt") is None
    assert "onerror" in page.locator("#hits").inner_text()
    assert "onerror" in page.locator(".pane .box title").first.text_content()


GPT2 = """
import sys, torch
from transformers import GPT2Config, GPT2LMHeadModel
torch.manual_seed(0)
torch.set_num_threads(1)
sizes = dict(n_layer=2, n_head=2, n_embd=32, vocab_size=64, n_positions=32)
model = GPT2LMHeadModel(GPT2Config(**sizes, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
numbers = torch.Generator().manual_seed(1)
for step in range(200):
    if str(step) in sys.argv[1:]:
        model.transformer.h[1].ln_2.eps = 1e-2
    tokens = torch.randint(0, 64, (4, 16), generator=numbers)
    optimizer.zero_grad()
    model(tokens, labels=tokens).loss.backward()
    optimizer.step()
"""


@pytest.mark.exhaustive
def test_two_hundred_steps_of_gpt2_are_followed_to_the_operator(
    page: Any, programs: Path, tmp_path: Path
) -> None:
    # given two runs that part at step 120 by the eps of one layer norm
    pytest.importorskip("transformers")
    script = tmp_path / "gpt2.py"
    script.write_text(GPT2)
    for name, planted in (("ref", []), ("cand", ["120"])):
        command = [
            sys.executable,
            "-m",
            "lockstep",
            "record",
            "-o",
            str(tmp_path / "runs" / name),
            "--steps",
            "0:",
        ]
        subprocess.run(
            [*command, "--", sys.executable, str(script), *planted], check=True, timeout=600
        )

    # when
    with serving(tmp_path / "runs", programs=programs) as served:
        clicks = clicks_to_the_operator(page, served, "ref", "cand")

        # then
        assert clicks < 5
        assert "step=120" in page.url
        assert "transformer.h.1.ln_2" in chosen(page)
        assert "layer_norm" in chosen(page)
        shown = page.locator("#answer").inner_text()
        assert "DIVERGED" in shown
        assert "step 120" in shown
        page.screenshot(path=str(tmp_path / "graph.png"))
