"""The one display of progress: a renewed line on a terminal, a line now and then in a log, nothing when quiet."""

import io
import re
import sys

import pytest

from dasmil.cli import display as module
from dasmil.cli.display import Display
from dasmil.engine import Progress as UnitProgress
from dasmil.train import Progress


class Screen(io.StringIO):
    """A terminal of 60 columns."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    return now


def test_a_log_gets_a_line_every_half_minute(capsys: pytest.CaptureFixture[str], clock: list[float]) -> None:
    with Display("Checking ") as display:
        for k in range(1, 101):
            clock[0] += 1.0
            display.line(f"{k}/100")
        display.note("A sentence [b] stays.")
    printed = capsys.readouterr()
    assert printed.out == ""
    lines = ["Checking 30/100", "Checking 60/100", "Checking 90/100", "A sentence [b] stays."]
    assert printed.err.splitlines() == lines


def test_a_log_gets_about_eight_epochs(capsys: pytest.CaptureFixture[str], clock: list[float]) -> None:
    with Display("fold 1/5  ") as display:
        for epoch in range(1, 101):
            display.epoch(Progress(0, epoch, 100, [0], [{"train_loss": 0.5}], 1.0 * epoch, 100.0 - epoch))
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 9
    assert lines[0] == "fold 1/5  epoch 1/100  loss 0.500  1:39 left"
    assert lines[-1] == "fold 1/5  epoch 100/100  loss 0.500  0:00 left"


def test_the_last_count_of_units_stays(capsys: pytest.CaptureFixture[str], clock: list[float]) -> None:
    with Display() as display:
        display.units(UnitProgress(4, done=1, running=2))
        display.units(UnitProgress(4, done=3, failed={"u": "broken"}, ended=True))
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("3/4 done, 1 failed")


def test_quiet_shows_nothing(capsys: pytest.CaptureFixture[str], clock: list[float]) -> None:
    with Display(quiet=True) as display:
        clock[0] += 60.0
        display.line("one")
        display.note("two")
    assert capsys.readouterr().err == ""


def test_a_terminal_shows_one_line_that_is_cut_where_the_screen_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("TERM", "xterm")
    with Display("Checking ") as display:
        display.line("1/2 slide[he] " + "x" * 100)
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue())
    shown = [line for line in re.split(r"[\r\n]", plain) if "slide" in line]
    assert shown
    assert all(
        "Checking 1/2 slide[he] xxx" in line and len(line) <= 60 and line.rstrip().endswith("…") for line in shown
    )
