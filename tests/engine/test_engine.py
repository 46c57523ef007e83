"""Units of work on every engine: nothing lost, nothing done twice, the same files."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from dasmil.engine import EngineOptions, Progress, Unit, backends, locks, run_units
from dasmil.engine import units as work_units
from dasmil.errors import DasmilError, InputError

HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def importable_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers are new processes: they find `work` through the environment."""
    monkeypatch.setenv("PYTHONPATH", str(HERE))
    monkeypatch.syspath_prepend(str(HERE))


def squares(out: Path, n: int, seconds: float = 0.0) -> list[Unit]:
    return [
        Unit(
            f"n{k}",
            "work:square",
            {"number": k, "result": str(out / f"{k}.txt"), "seconds": seconds},
            str(out / f"{k}.txt"),
        )
        for k in range(n)
    ]


def contents(out: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in out.glob("*.txt")}


def alive(process: int) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{process}/stat").read_text()
    except FileNotFoundError:
        return False


def test_local_runs_all_and_then_skips_all(tmp_path: Path) -> None:
    first = run_units(squares(tmp_path, 6), tmp_path, EngineOptions(workers=2))
    assert (first.done, first.skipped, first.failed) == (6, 0, {})
    assert contents(tmp_path) == {f"{k}.txt": str(k**2) for k in range(6)}
    assert "squaring 4" in (tmp_path / "logs" / "n4.log").read_text()
    (tmp_path / "3.txt").unlink()
    second = run_units(squares(tmp_path, 6), tmp_path, EngineOptions(workers=2))
    assert (second.done, second.skipped) == (1, 5)
    assert (tmp_path / "3.txt").read_text() == "9"
    assert not list((tmp_path / "logs").glob(".session-*"))


def test_failures_are_reported_retried_or_made_leaner(tmp_path: Path) -> None:
    def unit(key: str, function: str, **arguments: object) -> Unit:
        result = str(tmp_path / f"{key}.txt")
        return Unit(
            key,
            f"work:{function}",
            {"result": result, **arguments},
            result,
            lean={"batch": 8} if key == "hungry" else {},
        )

    units = [
        unit("killed", "square_once_killed", number=5, marker=str(tmp_path / "marker")),
        unit("wrong", "always_wrong"),
        unit("unlucky", "unlucky"),
        unit("hungry", "hungry", batch=64),
        unit("forgetful", "forgetful"),
    ]
    progress = run_units(units, tmp_path, EngineOptions(workers=1, retries=1))
    assert contents(tmp_path) == {"killed.txt": "25", "hungry.txt": "64"}
    assert progress.done == 2
    assert progress.failed["wrong"] == "slide 'x.svs' is truncated"
    assert progress.failed["unlucky"].startswith("ValueError: surprise")
    assert "without its result" in progress.failed["forgetful"]
    log = (tmp_path / "logs" / "unlucky.log").read_text()
    assert log.count("ValueError: surprise") == 2, "one retry"
    assert (tmp_path / "logs" / "wrong.log").read_text().count('"unit"') == 1, "bad input is not tried again"


def test_progress_counts_what_workers_do_not_how_long_they_take_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    progress = Progress(100, skipped=4, running=2)
    assert progress.line() == "4/100 done (4 earlier), 0 failed, 2 running"
    clock[0] += 60  # until the first worker is ready
    progress.count_done()
    for _ in range(5):
        clock[0] += 10
        progress.count_done()
    progress.failed["x"] = "broken"
    assert progress.line() == "10/100 done (4 earlier), 1 failed, 2 running, 6.0 a minute, 15 min left"
    progress.total = 16
    assert progress.line().endswith("6.0 a minute, 50 s left")


def test_a_killed_process_takes_only_its_own_unit_along(tmp_path: Path) -> None:
    result = str(tmp_path / "killer.txt")
    units = [Unit("killer", "work:killer", {"result": result}, result), *squares(tmp_path, 3, 0.4)]
    progress = run_units(units, tmp_path, EngineOptions(workers=2, retries=1))
    assert list(progress.failed) == ["killer"]
    assert "killed" in progress.failed["killer"]
    assert contents(tmp_path) == {"0.txt": "0", "1.txt": "1", "2.txt": "4"}
    tries = {p.stem: p.read_text().count('"unit"') for p in (tmp_path / "logs").glob("*.log")}
    assert tries == {"killer": 2, "n0": 1, "n1": 1, "n2": 1}


def test_every_process_has_its_own_gpu_or_its_share_of_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No GPU can be had in CI: what is checked is which one each process is told to use."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    assert backends._visible_gpus() == ["3", "5"]
    session = work_units.Session("", "", "", 1)
    for gpus, told in ((1, ["3", "5"]), (0.5, ["3", "5", "3", "5"])):
        local = backends.Local(session, EngineOptions(gpus=gpus))
        assert [pool._initargs for pool in local.pools] == [(name,) for name in told]  # pyright: ignore[reportAttributeAccessIssue]
        local.close(cancel=True)
    units = [
        Unit(f"n{k}", "work:tell", {"result": str(tmp_path / f"{k}.txt"), "name": "CUDA_VISIBLE_DEVICES"},
             str(tmp_path / f"{k}.txt")) for k in range(4)
    ]  # fmt: skip
    run_units(units, tmp_path, EngineOptions(gpus=1))
    assert set(contents(tmp_path).values()) == {"3", "5"}
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    with pytest.raises(InputError, match="PyTorch sees none"):
        run_units(squares(tmp_path / "none", 1), tmp_path / "none", EngineOptions(gpus=1))


def test_other_code_or_an_unshared_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work_units, "code_digest", lambda: "other")
    with pytest.raises(DasmilError, match="same version everywhere"):
        run_units(squares(tmp_path, 1), tmp_path, EngineOptions(workers=1))
    unit = squares(tmp_path, 1)[0]
    session = work_units.Session(str(tmp_path / "elsewhere"), str(tmp_path), "", 1, patience=0)
    assert work_units.execute(unit, session).status == "refused"
    assert "not shared" in work_units.execute(unit, session).reason


def test_wrong_use() -> None:
    with pytest.raises(InputError, match=r"unknown engine 'slurn'\. Did you mean 'slurm'"):
        EngineOptions(engine="slurn")  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputError, match="from 0 to 1"):
        EngineOptions(gpus=2)
    with pytest.raises(InputError, match="threads: found 0, expected 1 or more"):
        EngineOptions(threads=0)
    with pytest.raises(InputError, match="same key"):
        run_units([Unit("a", "work:square", {}, "x"), Unit("a", "work:square", {}, "y")], Path(), EngineOptions())


@pytest.mark.parametrize(("name", "package"), [("ray", "ray"), ("slurm", "submitit")])
def test_a_missing_extra_is_named(name: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(DasmilError, match=r"dasmil\[cluster\]"):
        run_units(squares(tmp_path, 1), tmp_path, EngineOptions(engine=name))  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_coordinator_that_ends_takes_its_workers_along_and_the_rest_is_done_later(
    how: signal.Signals, tmp_path: Path
) -> None:
    script = (
        "from pathlib import Path; import sys; from test_engine import squares; from dasmil.engine import *;"
        f"run_units(squares(Path({str(tmp_path)!r}), 30, 0.3), Path({str(tmp_path)!r}), EngineOptions(workers=1))"
    )
    process = subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.PIPE, text=True)
    while not contents(tmp_path):
        time.sleep(0.05)
    worker = int(re.findall(r"process (\d+)", (tmp_path / "logs" / "n0.log").read_text())[0])
    process.send_signal(how)
    _, errors = process.communicate(timeout=30)
    left = len(list((tmp_path / "logs").glob(".session-*")))
    if how == signal.SIGINT:
        assert "KeyboardInterrupt" in errors
    assert left == (how == signal.SIGKILL)
    for _ in range(200):
        if not alive(worker):
            break
        time.sleep(0.1)
    else:
        pytest.fail("the worker lives on")
    done = len(contents(tmp_path))
    assert 1 <= done < 30
    progress = run_units(squares(tmp_path, 30), tmp_path, EngineOptions(workers=2))
    assert progress.skipped == done
    assert contents(tmp_path) == {f"{k}.txt": str(k**2) for k in range(30)}
    assert not list((tmp_path / "logs").glob(".*")), "what the dead coordinator left is cleared"


def test_only_what_dead_processes_left_is_cleared(tmp_path: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path; from dasmil.engine.locks import *\n"
        "with own_mark(Path(sys.argv[1]), 'slides') as mark:\n"
        "    mark_folder(mark).mkdir(); (mark_folder(mark) / 'a.json').touch(); print(mark, flush=True)\n"
        "    time.sleep(600)"
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", script, tmp_path], stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    try:
        dead, living = (Path(process.stdout.readline().strip()) for process in processes if process.stdout)
        processes[0].kill()
        processes[0].wait()
        assert len(list(tmp_path.iterdir())) == 4, "two marks, two folders"
        foreign = tmp_path / ".slides-elsewhere-0123456789ab.mark"  # another machine's lock may not be seen here
        foreign.touch()
        with locks.own_mark(tmp_path, "session") as mine:
            assert not dead.exists()
            left = {living.name, locks.mark_folder(living).name, mine.name, foreign.name}
            assert {p.name for p in tmp_path.iterdir()} == left
        assert (locks.mark_folder(living) / "a.json").exists()
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    locks.clear_dead(tmp_path)
    assert list(tmp_path.iterdir()) == [foreign]


def test_without_slurm_there_is_no_silent_fallback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match="no Slurm on this machine"):
        run_units(squares(tmp_path, 1), tmp_path, EngineOptions(engine="slurm"))


def test_slurm_through_submitits_local_executor(tmp_path: Path) -> None:
    progress = run_units(squares(tmp_path, 3), tmp_path, EngineOptions(engine="slurm", slurm_cluster="local"))
    assert (progress.done, progress.failed) == (3, {})
    assert contents(tmp_path) == {"0.txt": "0", "1.txt": "1", "2.txt": "4"}


def test_the_slurm_job_array_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No Slurm can be had in CI: a stand-in `sbatch` keeps the script, which is then checked."""
    sbatch = tmp_path / "bin" / "sbatch"
    sbatch.parent.mkdir()
    sbatch.write_text(f'#!/bin/sh\ncp "$1" {tmp_path}/script.sh\necho "Submitted batch job 77"\n')
    sbatch.chmod(0o755)
    (sbatch.parent / "srun").symlink_to(sbatch)
    monkeypatch.setenv("PATH", f"{sbatch.parent}:{os.environ['PATH']}")
    options = EngineOptions(
        "slurm",
        workers=3,
        threads=4,
        gpus=1,
        slurm_partition="gpu",
        slurm_minutes=90,
        slurm_memory_gb=32,
        slurm_cluster="slurm",
    )
    slurm = backends.Slurm(work_units.Session(str(tmp_path / "token"), str(tmp_path), "", 4), options)
    for unit in squares(tmp_path, 5):
        slurm.submit(unit)
    monkeypatch.setattr(time, "sleep", lambda _seconds: None)
    monkeypatch.setattr("submitit.SlurmJob.done", lambda *_args, **_more: False)
    assert slurm.finished() == []
    script = (tmp_path / "script.sh").read_text()
    for line in (
        "--array=0-4%3",
        "--partition=gpu",
        "--time=90",
        "--cpus-per-task=4",
        "--gpus-per-node=1",
        "--mem=32GB",
    ):
        assert f"#SBATCH {line}" in script


def test_ray_survives_a_lost_worker_and_a_lost_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two nodes on this machine, 40 units; a worker process and then a whole node are killed mid-way."""
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 1, "num_gpus": 1, "object_store_memory": 80 * 2**20}
    )
    second = cluster.add_node(num_cpus=1, object_store_memory=80 * 2**20)
    units, shares = squares(tmp_path, 40, 0.15), tmp_path / "shares"
    units[0] = Unit(
        "n0", "work:square_once_killed",
        {"number": 0, "result": str(tmp_path / "0.txt"), "marker": str(tmp_path / "marker")}, str(tmp_path / "0.txt"),
    )  # fmt: skip

    over = threading.Event()

    def lose_node() -> None:
        while len(contents(tmp_path)) < 10 and not over.is_set():
            time.sleep(0.1)
        cluster.remove_node(second, allow_graceful=False)

    thread = threading.Thread(target=lose_node)
    thread.start()
    try:
        options = EngineOptions(engine="ray", ray_address=cluster.address, retries=3)
        progress = run_units(units, tmp_path, options)
        told = [
            Unit(f"t{k}", "work:tell", {"result": str(shares / f"{k}.txt"), "name": "CUDA_VISIBLE_DEVICES"},
                 str(shares / f"{k}.txt")) for k in range(2)
        ]  # fmt: skip
        run_units(told, shares, EngineOptions(engine="ray", ray_address=cluster.address, gpus=0.5))
    finally:
        over.set()
        thread.join()
        cluster.shutdown()
    assert progress.failed == {}
    assert contents(shares) == {"0.txt": "0", "1.txt": "0"}, "the number of the one GPU, shared"
    assert contents(tmp_path) == {f"{k}.txt": str(k**2) for k in range(40)}
    local = tmp_path / "local"
    run_units(squares(local, 40), local, EngineOptions(workers=2))
    assert contents(local) == contents(tmp_path)


def test_an_unreachable_ray_address_is_one_message(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    with pytest.raises(InputError, match=r"no Ray cluster answers at 127\.0\.0\.1:1"):
        run_units(squares(tmp_path, 1), tmp_path, EngineOptions(engine="ray", ray_address="127.0.0.1:1"))


def test_the_digest_of_the_code_covers_recipes_and_kernels(tmp_path):
    def digest(folder: str, **files: str) -> str:
        (tmp_path / folder / "kernel").mkdir(parents=True)
        for name, text in ({"py": "", "toml": "", "cpp": "", "h": "", "pyc": ""} | files).items():
            (tmp_path / folder / "kernel" / f"file.{name}").write_text(text)
        return work_units.code_digest(tmp_path / folder)

    first = digest("a")
    assert digest("b") == first
    assert digest("c", pyc="other") == first
    assert len({first, digest("d", py="x"), digest("e", toml="x"), digest("f", cpp="x"), digest("g", h="x")}) == 5
