"""What `dasmil bench engine` computes from its times, without measuring any."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import engine as bench


def test_share_of_time_in_units_and_the_speedup_it_stands_for(tmp_path: Path) -> None:
    units = bench._units(tmp_path / "u", 6, 0)
    times = [(0.0, 5.0), (3.0, 5.0), (5.0, 6.0), (5.5, 6.0), (6.0, 7.0), (6.0, 7.0)]  # the first two start the workers
    for unit, (begun, ended) in zip(units, times, strict=True):
        Path(unit.result).write_text(f"{begun} {ended}")
    share = bench._at_work(units, 2)
    assert share == pytest.approx((1 + 0.5 + 1 + 1) / 2 / 2)
    assert bench._speedup({"plain": 1.95, "local": 1.7, "at_work": 0.99}) == 1.7, "measured where cores are free"
    assert bench._speedup({"plain": 1.1, "local": 1.0, "at_work": 0.95}) == pytest.approx(1.9)


def test_the_unit_of_the_measurement_notes_when_it_ran(tmp_path: Path) -> None:
    (unit,) = bench._units(tmp_path / "u", 1, 2)
    bench.work(**unit.arguments)
    begun, ended = bench._times(unit)
    assert begun < ended
    assert [path.name for path in (tmp_path / "u").iterdir()] == ["0.txt"]
