"""`lockstep ui`: what is listed, what is refused, and that what comes and goes while it serves is no trouble."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest
from served_pages import Served

from lockstep.testing.made_recordings import damage, write_recording
from lockstep.testing.made_training import MadeTraining


def links(text: str) -> list[str]:
    return re.findall(r'<a href="((?:run|compare|\?)[^"]*)"', text)


def test_all_runs_are_listed_with_links_and_a_damaged_one_says_why(served: Served) -> None:
    page = served.get()

    assert page.status == 200
    assert "below/candidate" in page.text
    assert "&lt;b&gt;damaged" in page.text
    assert "<b>damaged" not in page.text
    assert "manifest.json" in page.text
    assert len([one for one in links(page.text) if one.startswith("run/")]) == 2


def test_a_run_and_its_comparison_with_the_chosen_reference_are_two_clicks_away(
    served: Served,
) -> None:
    # given the reference, chosen
    row = re.search(r"<tr><td[^>]*>reference</td>.*?</tr>", served.get().text)
    assert row is not None
    (choose,) = [one for one in links(row[0]) if one.startswith("?")]

    # when
    chosen = served.get(choose)
    pair, _ = [one for one in links(chosen.text) if one.startswith("compare/")]
    compared = served.get(pair)

    # then
    assert "the reference: choose another" in chosen.text
    assert compared.status == 200
    assert 'data-colour="fault"' in compared.text
    assert "torch.nn.functional.relu" in compared.text
    alone = served.get(next(one for one in links(chosen.text) if one.startswith("run/")))
    assert alone.status == 200
    assert "</html>" in alone.text


def graph_of(served: Served) -> tuple[str, dict[str, Any]]:
    """Where the graph of the faulty pair is asked for, and what comparing found."""
    keys = served.keys()
    graph = f"compare/{keys['reference']}/{keys['below/candidate']}/graph"
    return graph, served.answer(graph)


def test_the_graph_is_given_part_by_part_and_strange_questions_are_refused(served: Served) -> None:
    graph, answer = graph_of(served)
    page = served.get(graph)
    (rank, step), about = answer["origin"], "rank=rank0&step=0"

    assert (rank, step) == ("rank0", 0)
    assert "connect-src &#x27;self&#x27;" in page.text
    start = json.loads(served.get(f"{graph}/start?{about}").text)
    opened = ",".join(map(str, start["open"]))
    found = json.loads(served.get(f"{graph}/boxes?{about}&open={opened}&top=-9&bottom=9999").text)
    assert start["node"] in {one["node"] for one in found["boxes"]}
    hits = json.loads(served.get(f"{graph}/find?{about}&text=RELU").text)
    assert hits["found"][0]["node"] == start["node"]
    for wrong in (
        "boxes?rank=rank0&step=0&open=x", "boxes?rank=rank0&step=-1", "start?rank=rank0&step=77", "start",
        "node?rank=rank0&step=0&node=99999", "start?rank=../../x&step=0", "boxes?rank=rank0&step=0&top=x",
        "next?rank=rank0&step=0&node=1e3", "start?rank=rank0%09&step=0",
    ):  # fmt: skip
        refused = served.get(f"{graph}/{wrong}")
        assert refused.status in (400, 500), wrong
        assert json.loads(refused.text)["failed"]
    assert served.get(f"{graph}/../../../../etc/passwd").status == 404
    assert served.get("compare/none/none/graph").status == 404
    assert served.get("compare/none/none/graph/state").status == 404


def test_only_who_was_given_the_address_is_answered(served: Served) -> None:
    host = f"127.0.0.1:{served.port}"
    assert served.ask("/").status == 403
    assert served.ask(f"/{served.token[:-1]}/").status == 403
    assert served.ask(f"/{served.token}x/").status == 403
    assert served.get(Host="evil.example").status == 421
    assert served.get(Host="127.0.0.1:1").status == 421
    assert served.get(Origin="http://evil.example").status == 403
    assert served.get(Origin=f"http://{host}").status == 200
    assert served.get(Host=f"localhost:{served.port}").status == 200
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        assert served.get(method=method).status == 405


@pytest.mark.parametrize(
    "path",
    ["run/none", "run/../../etc/passwd", "run/%2e%2e%2fmanifest.json", "compare/a/b", "x", "/"],
)
def test_no_path_leads_out_of_the_list(served: Served, path: str) -> None:
    answer = served.get(path)

    assert answer.status == 404
    assert len(answer.text.splitlines()) == 1


def test_each_answer_keeps_others_from_using_it(served: Served) -> None:
    for answer in (served.get(), served.ask("/")):
        assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["cache-control"] == "no-store"


def test_runs_that_come_and_go_while_it_serves_do_so_in_the_list(served: Served) -> None:
    # given
    write_recording(served.folder / "late", MadeTraining())
    row = re.search(r"<tr><td[^>]*>late</td>.*?</tr>", served.get().text)
    assert row is not None
    (run,) = [one for one in links(row[0]) if one.startswith("run/")]

    # when
    damage(served.folder / "late")
    damaged = served.get(run)
    shutil.rmtree(served.folder / "late")

    # then
    assert damaged.status in (200, 500)
    assert served.get(run).status == 404
    assert "<td>late</td>" not in served.get().text


def test_a_port_that_is_taken_and_a_folder_that_is_not_there_are_said(
    served: Served, programs: Path
) -> None:
    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        command = [str(programs / "lockstep"), "ui", *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        busy = run(served.folder, "--port", taken.getsockname()[1])
    missing = run(served.folder / "nothing")

    assert busy.returncode == missing.returncode == 2
    assert "cannot be served at" in busy.stderr
    assert "there is no such folder" in missing.stderr
