"""`dasmil bench viewer` without a browser."""

from __future__ import annotations

import shutil

import pytest

from benchmarks import viewer


def test_without_a_browser_it_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    assert viewer.main() == 1
    assert "needs Chromium (apt-get install chromium)" in capsys.readouterr().err
