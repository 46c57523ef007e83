"""All runs on one page, in a real browser: 200 of them, one that is training, two compared."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvicorn
from playwright.sync_api import Page

from dasmil.errors import InputError
from dasmil.runs import Run, run_folders, run_progress
from dasmil.study.board import Board
from dasmil.study.starting import Starter
from dasmil.viewer.board import create_board

STORED = Path(__file__).parent.parent / "runs" / "stored"
COUNT = 200


def begun(folder: Path, epochs: int, age_s: float) -> None:
    """A run that has not finished: its configuration, a checkpoint and the curve so far."""
    (folder / "seed-0").mkdir(parents=True)
    config = json.loads((STORED / "plain" / "config.json").read_text())
    config["training"]["epochs"], config["seeds"] = 40, [0]
    (folder / "config.json").write_text(json.dumps(config))
    grow(folder, epochs)
    for file in folder.rglob("*.json"):
        then = time.time() - age_s
        os.utime(file, (then, then))


def grow(folder: Path, epochs: int) -> None:
    rows = [f"{k},0.001,{1 / k},{1 / k + 0.1},0.5,0.1" for k in range(1, epochs + 1)]
    text = "\n".join(["epoch,lr,train_loss,val_loss,val_auroc,seconds", *rows]) + "\n"
    (folder / "seed-0" / "metrics.csv").write_text(text)
    (folder / "checkpoint.json").write_text(json.dumps({"attempt": 0, "epoch": epochs, "epochs": 40}))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("all") / "runs"
    first = folder / "cohort" / "run-000"
    shutil.copytree(STORED / "plain", first, ignore=shutil.ignore_patterns("checkpoint*"))
    for file in first.rglob("*.json"):
        file.write_text(file.read_text().replace("/data/stored", str(STORED)))
    (first / "report.html").write_text(
        "<!doctype html><title>r</title><p id=a></p><script>a.textContent='drawn'</script>"
    )
    for k in range(1, COUNT - 3):
        shutil.copytree(first, folder / "cohort" / f"run-{k:03d}")
    shutil.copytree(STORED / "folds", folder / "folds")
    other = folder / "cohort" / "run-001"
    config = json.loads((other / "config.json").read_text())
    config["training"]["lr"] = 0.123
    (other / "config.json").write_text(json.dumps(config))
    begun(folder / "now", 3, 0)
    begun(folder / "left", 7, 10_000)
    return folder


@pytest.fixture(scope="module")
def address(runs: Path) -> Iterator[str]:
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    server = uvicorn.Server(uvicorn.Config(create_board(Board(runs), port), log_level="error"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    while not server.started:
        time.sleep(0.02)
    yield f"http://127.0.0.1:{port}/"
    server.should_exit = True
    thread.join()


def test_rows_say_what_runs_are(runs: Path) -> None:
    rows = {row["name"]: row for row in Board(runs).rows()}
    assert len(rows) == COUNT
    scored = Run.read(STORED / "folds").summary["splits"]["test"]
    found = rows["folds"]
    assert (found["folds"], found["seeds"], found["status"], found["split"]) == (3, 2, "finished", "test")
    assert found["score"] == scored["mean"]["auroc"]
    assert [found["low"], found["high"]] == scored["interval"]["auroc"]
    assert (rows["now"]["status"], rows["now"]["epoch"], rows["now"]["epochs"]) == ("training", 3, 40)
    assert rows["left"]["status"] == "stopped"
    assert "--resume" in rows["left"]["hint"]
    assert run_progress(runs / "now").curves["seed-0"]["train_loss"] == pytest.approx([1, 1 / 2, 1 / 3])
    assert runs / "folds" in run_folders(runs)
    with pytest.raises(InputError, match="there is no run"):
        Board(runs).path("../elsewhere")
    with pytest.raises(InputError, match="is not a folder"):
        Board(runs / "nothing")


def ask(address: str, path: str, method: str = "GET", **headers: str) -> tuple[int, str, str]:
    """Status, content and policy of an answer; the path goes out as it is written."""
    connection = http.client.HTTPConnection("127.0.0.1", int(address.rstrip("/").rpartition(":")[2]))
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    found = answer.status, answer.read().decode(), answer.headers.get("content-security-policy", "")
    connection.close()
    return found


def test_nothing_else_is_served(address: str, runs: Path) -> None:
    assert ask(address, "/")[0] == 200
    status, text, policy = ask(address, "/report/cohort/run-000")
    assert status == 200
    assert text.startswith("<!doctype html>")
    assert "sandbox" in policy
    for path in (
        "/report/../../etc/passwd",
        "/api/run/..%2F..",
        "/report/now",
        "/view/nothing/-/",
        "/static/board.html",
    ):
        assert ask(address, path)[0] in (404, 422)
    assert ask(address, "/", host="evil.example")[0] == 403
    assert create_board(Board(runs), 80, "secret").user_middleware[0].kwargs["token"] == "secret"


def test_200_runs_are_sorted_searched_compared_and_followed(page: Page, address: str, runs: Path) -> None:
    page.goto(address)
    page.wait_for_selector(f"body[data-ready='{COUNT}']")
    assert page.inner_text("#count") == f"{COUNT} runs, 1 training"
    assert page.locator("#runs tbody tr").count() == COUNT
    page.get_by_role("button", name="Run", exact=True).click()
    assert page.locator("#runs tbody tr").first.locator(".name").inner_text() == "cohort/run-000"
    page.fill("#search", "now")
    assert page.locator("#runs tbody tr").count() == 1
    assert "3 of 40 epochs" in page.inner_text("#runs tbody")
    page.check("input[data-run='now']")
    page.wait_for_selector("#compare polyline")
    before = page.locator("#compare polyline").first.get_attribute("points")
    grow(runs / "now", 9)
    page.wait_for_selector("text=9 of 40 epochs")
    for _ in range(100):
        if page.locator("#compare polyline").first.get_attribute("points") != before:
            break
        page.wait_for_timeout(100)
    after = page.locator("#compare polyline").first.get_attribute("points")
    assert after is not None
    assert len(after.split()) == 9
    page.uncheck("input[data-run='now']")
    page.fill("#search", "run-00")
    page.check("input[data-run='cohort/run-000']")
    page.check("input[data-run='cohort/run-001']")
    page.wait_for_selector("table[aria-label='Settings that differ']")
    cells = page.locator("table[aria-label='Settings that differ'] tbody td").all_inner_texts()
    assert cells == ["lr", "0.005", "0.123"]
    page.reload()
    page.wait_for_selector("table[aria-label='Settings that differ']")
    assert page.input_value("#search") == "run-00", "the view is in the address"


def test_the_report_and_the_viewer_of_a_run_open(page: Page, address: str) -> None:
    page.goto(f"{address}report/cohort/run-000")
    assert page.inner_text("#a") == "drawn"
    page.goto(f"{address}view/cohort/run-000/-/")
    page.wait_for_selector("body[data-ready]")
    assert "das-mil" in page.inner_text("#title")
    assert page.locator("#list li").count() == 13


STUDY = 'command = "train"\n[data]\nbags = "bags"\n[labels]\nlabels = "labels.csv"\n[outputs]\nout = "mine"\n'


@pytest.fixture
def startable(tmp_path: Path) -> Iterator[tuple[str, Starter]]:
    """A folder with one study and other TOML files, on a page that may start it."""
    folder = tmp_path / "runs"
    (folder / "bags").mkdir(parents=True)
    (folder / "study.toml").write_text(STUDY)
    (folder / "other.toml").write_text("[tool]\nname = 1\n")
    (folder / "bad.toml").write_text("[[[")
    (folder / "publish.toml").write_text('command = "publish"\n')
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    starter = Starter(folder)
    server = uvicorn.Server(uvicorn.Config(create_board(Board(folder, None, starter), port), log_level="error"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    while not server.started:
        time.sleep(0.02)
    yield f"http://127.0.0.1:{port}/", starter
    server.should_exit = True
    thread.join()


def test_a_study_is_started_and_says_why_it_ended(page: Page, startable: tuple[str, Starter]) -> None:
    address, starter = startable
    assert [study["name"] for study in starter.studies()] == ["study.toml"]
    page.goto(address)
    page.wait_for_selector("table[aria-label='Study files']")
    page.get_by_role("button", name="Start study.toml").click()
    page.wait_for_selector("text=ended with exit code")
    assert "no bags" in page.inner_text("#studies pre").lower() or "labels.csv" in page.inner_text("#studies pre")
    assert starter.running() == []
    with pytest.raises(InputError, match="there is no study"):
        starter.start("../elsewhere.toml")
    with pytest.raises(InputError, match="was not started"):
        starter.stop("study.toml")


def test_a_study_that_runs_is_stopped_as_by_ctrl_c(page: Page, startable: tuple[str, Starter], monkeypatch) -> None:
    address, starter = startable
    waiting = "import sys, time; print(sys.argv[1:], flush=True); time.sleep(600)"
    original = subprocess.Popen
    monkeypatch.setattr(
        "dasmil.study.starting.subprocess.Popen",
        lambda command, **how: original([sys.executable, "-c", waiting, *command[2:]], **how),
    )
    page.goto(address)
    page.get_by_role("button", name="Resume study.toml").click()
    page.wait_for_selector("text=--resume")
    assert "'dasmil', 'run'" in page.inner_text("#studies pre")
    with pytest.raises(InputError, match="runs already"):
        starter.start("study.toml")
    page.get_by_role("button", name="Stop study.toml").click()
    page.wait_for_selector("text=KeyboardInterrupt")
    page.wait_for_selector("button:has-text('Start')")
    assert starter.running() == []


def test_without_permission_the_page_only_reads(address: str, runs: Path) -> None:
    (runs / "study.toml").write_text(STUDY)
    content = json.loads(ask(address, "/api/runs")[1])
    assert content["studies"] is None
    for what in ("start", "resume", "stop"):
        assert ask(address, f"/api/{what}/study.toml", method="POST")[0] == 404
    (runs / "study.toml").unlink()
