"""The verbs on several workers, through the entry point: the same files, what is finished is kept, clear refusals."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import dasmil.engine
from dasmil.cli import main
from dasmil.data.synthetic import MadeCohort, write_made_cohort
from dasmil.engine import units as work_units
from dasmil.study.trials import Journal

pytestmark = pytest.mark.filterwarnings("ignore:Cyclopts application invoked without tokens")

DESIGN = MadeCohort(tiles=(30, 50), islands=(1, 1), island_tiles=(2, 3), in_features=8, distance_um=800)
Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run `dasmil ...` in this process; its exit code and what it wrote to the terminal."""

    def call(*arguments: object) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["dasmil", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capsys.readouterr()
        return int(ended.value.code or 0), captured.out + captured.err

    torch.set_num_threads(1)
    return call


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    write_made_cohort(folder, 24, seed=1, design=DESIGN)
    return folder


@pytest.fixture(scope="module")
def slides(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three small pictures that differ, and a file that is none."""
    from PIL import Image

    folder = tmp_path_factory.mktemp("slides")
    for k in range(3):
        noise = np.random.default_rng(k).integers(90, 200, (256, 256, 3), dtype=np.uint8)
        noise[..., 1] //= 2
        Image.fromarray(noise).save(folder / f"s{k}.png")
    (folder / "bad.svs").write_text("not a slide")
    return folder


def same(one: Path, other: Path, *patterns: str) -> int:
    """Compare files byte for byte; how many there are."""
    names = sorted(str(p.relative_to(one)) for pattern in patterns for p in one.glob(pattern))
    assert names == sorted(str(p.relative_to(other)) for pattern in patterns for p in other.glob(pattern))
    for name in names:
        assert (one / name).read_bytes() == (other / name).read_bytes(), name
    return len(names)


def tries(folder: Path) -> dict[str, int]:
    return {p.stem: p.read_text().count('"unit"') for p in (folder / "logs").glob("*.log")}


def test_slides_on_two_processes_and_then_as_slurm_jobs(slides: Path, tmp_path: Path, run: Run) -> None:
    settings = ("--mpp", 1, "--tile-um", 64, "--encoder", "null", "--stain", "none")
    assert run("extract", slides, "-o", tmp_path / "one", *settings)[0] == 1
    code, text = run("extract", slides, "-o", tmp_path / "two", *settings, "--jobs", 2)
    assert code == 1
    assert "3/4 done, 1 failed" in text
    assert "3 done, 1 failed" in text
    assert re.search(r"Failed: .*bad\.svs: cannot be read as a slide", text)
    assert same(tmp_path / "one", tmp_path / "two", "*.h5", "qc/*.jpg") == 6
    one, two = (json.loads((tmp_path / name / "summary.json").read_text()) for name in ("one", "two"))
    assert one["config"] == two["config"]
    assert [r["tiles"] for r in two["slides"]] == [r["tiles"] for r in one["slides"]] == [0, 16, 16, 16]

    (tmp_path / "two" / "s1.h5").unlink()
    before = (tmp_path / "two" / "s0.h5").stat().st_mtime_ns
    code, text = run("extract", slides, "-o", tmp_path / "two", *settings, "--engine", "slurm", "--slurm-local")
    assert code == 1
    assert "2 slides were finished earlier" in text
    assert tries(tmp_path / "two") == {"s0": 1, "s1": 2, "s2": 1, "bad": 2}
    assert (tmp_path / "two" / "s0.h5").stat().st_mtime_ns == before
    assert same(tmp_path / "one", tmp_path / "two", "*.h5") == 3
    assert not list((tmp_path / "two" / "logs").glob("slides-*"))

    code, text = run("extract", slides, "-o", tmp_path / "two", *settings, "--jobs", 2, "--dtype", "float32")
    assert code == 1
    assert text.count("made with other settings; use --force") == 3


def test_memory_and_surprises_reach_the_engine(slides: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dasmil.wsi import pipeline, slide_units
    from dasmil.wsi.config import ExtractConfig, RunOptions

    def hungry(*_arguments: object) -> None:
        raise MemoryError

    monkeypatch.setattr(pipeline, "_extract", hungry)
    config = slide_units._plain(ExtractConfig(encoder="null", mpp=1.0))
    with pytest.raises(MemoryError):
        slide_units.extract_unit(
            str(slides / "s0.png"), str(tmp_path), config, vars(RunOptions()), 4, str(tmp_path / "r.json")
        )
    assert not (tmp_path / "r.json").exists()


def test_folds_on_two_processes(made: Path, tmp_path: Path, run: Run) -> None:
    cohort = ("train", "--bags", made / "bags", "--labels", made / "labels.csv")
    settings = ("--model", "sa", "--epochs", 2, "--set", "restarts=0", "--folds", 3, "--seeds", 2, "--threads", 1)
    assert run(*cohort, *settings, "--out", tmp_path / "one")[0] == 0
    code, text = run(*cohort, *settings, "--out", tmp_path / "two", "--jobs", 2)
    assert code == 0
    assert "3/3 done, 0 failed" in text
    patterns = ("summary.json", "fold-*/*.json", "fold-*/seed-*/predictions.csv", "fold-*/seed-*/model.safetensors")
    assert same(tmp_path / "one", tmp_path / "two", *patterns) == 1 + 3 * 5 + 6 + 6
    code, text = run(*cohort, *settings, "--out", tmp_path / "two", "--jobs", 2)
    assert (code, "already holds a run: continue with --resume" in text) == (2, True)
    code, text = run(*cohort, *settings, "--out", tmp_path / "two", "--jobs", 2, "--resume")
    assert (code, "3/3 done (3 earlier), 0 failed" in text) == (0, True)
    assert tries(tmp_path / "two") == {"fold-0": 1, "fold-1": 1, "fold-2": 1}
    code, text = run(*cohort, *settings, "--out", tmp_path / "two", "--jobs", 2, "--resume", "--lr", 0.5)
    assert code == 1
    assert "3 of 3 folds failed" in text
    assert "other settings (training.lr: 0.001 -> 0.5)" in text


def test_trials_on_two_processes_and_after_a_coordinator_that_died(
    made: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    optuna = pytest.importorskip("optuna")
    command = (
        "search", "--bags", made / "bags", "--labels", made / "labels.csv", "--model", "mean-pool", "--epochs", 1,
        "--grid", "lr=1e-2,1e-3,1e-4", "--search-seeds", 3, "--seeds", 1, "--threads", 1,
    )  # fmt: skip
    assert run(*command, "--out", tmp_path / "one")[0] == 0

    def die(*_arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "note", die)
        assert run(*command, "--out", tmp_path / "two", "--jobs", 2)[0] == 130
    assert len(list((tmp_path / "two" / "trials").glob("*.json"))) == 3
    code, text = run(*command, "--out", tmp_path / "two", "--jobs", 2)
    assert code == 0
    assert "3/3 done (3 earlier), 0 failed" in text
    assert sorted(tries(tmp_path / "two").values()) == [1] * 4  # three trials and the chosen one, each once
    assert same(tmp_path / "one", tmp_path / "two", "search.json", "best/seed-0/*.safetensors", "best/*y.json") == 3
    assert not (tmp_path / "two" / "trials").exists()

    storage = optuna.storages.JournalStorage(
        optuna.storages.journal.JournalFileBackend(str(tmp_path / "two" / "search.journal"))
    )
    (study,) = optuna.get_all_study_summaries(storage)
    trials = optuna.load_study(study_name=study.study_name, storage=storage).trials
    assert [t.user_attrs["settings"]["lr"] for t in trials] == [1e-2, 1e-3, 1e-4]
    assert [t.state.name for t in trials] == ["COMPLETE"] * 3


def test_interrupting_folds_leaves_no_process_and_says_how_to_go_on(made: Path, tmp_path: Path) -> None:
    arguments = [
        "train", "--bags", made / "bags", "--labels", made / "labels.csv", "--model", "sa", "--epochs", 100_000,
        "--folds", 3, "--jobs", 2, "--out", tmp_path / "run",
    ]  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-c", "from dasmil.cli import main; main()", *map(str, arguments)],
        stderr=subprocess.PIPE, text=True, start_new_session=True, env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    while len(list((tmp_path / "run").glob("fold-*/checkpoint.json"))) < 2:
        assert process.poll() is None
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the workers too
    _, text = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in text
    assert re.search(r"Stopped\. \d+ of 100000 epochs are saved in .*fold-\d", text)
    assert "--resume" in text
    for _ in range(100):
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            break
        time.sleep(0.1)
    else:
        pytest.fail("a worker lives on")


@pytest.mark.parametrize("engine", [("--jobs", 2), ("--engine", "slurm", "--slurm-local", "--jobs", 2)])
def test_interrupting_slides_ends_in_one_plain_line(engine: tuple[object, ...], tmp_path: Path) -> None:
    from PIL import Image

    (tmp_path / "slides").mkdir()
    for k in range(3):
        noise = np.random.default_rng(k).integers(90, 200, (2048, 2048, 3), dtype=np.uint8)
        noise[..., 1] //= 2
        Image.fromarray(noise).save(tmp_path / "slides" / f"s{k}.png", compress_level=0)
    arguments = [
        "extract", tmp_path / "slides", "-o", tmp_path / "bags", "--mpp", 1, "--tile-um", 16, "--tile-px", 224,
        "--encoder", "null", *engine,
    ]  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-c", "from dasmil.cli import main; main()", *map(str, arguments)],
        stderr=subprocess.PIPE, text=True, start_new_session=True, env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    while not list((tmp_path / "bags").glob("logs/*.log")):
        assert process.poll() is None
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the workers too
    _, text = process.communicate(timeout=60)  # workers hold the pipe: it ends with the last of them
    assert process.returncode == 130
    lines = [line for line in text.splitlines() if " done, " not in line]
    assert lines == ["Stopped. Finished slides are kept; the same command goes on with the rest."]
    assert not list((tmp_path / "bags").glob("*.h5"))
    assert not list((tmp_path / "bags" / "logs").glob("*slides-*"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--engine", "ray", "--ray-address", "127.0.0.1:1"), "no Ray cluster answers at 127.0.0.1:1"),
        (("--engine", "slurm"), "there is no Slurm on this machine"),
        (("--ray-address", "auto"), "--ray-address is for --engine ray, but the engine is local"),
        (("--slurm-partition", "gpu"), "--slurm-partition is for --engine slurm"),
        (("--jobs", "-1"), "workers: found -1, expected 0 or more"),
        (("--gpus", "2"), "a unit computes on one GPU"),
        (("--threads", "0"), "threads: found 0, expected 1 or more"),
        (("--device", "foo"), "device is 'foo', expected auto, cpu, cuda, cuda:N or mps"),
        (("--device", "cuda:x", "--jobs", "2"), "device is 'cuda:x', expected auto, cpu, cuda, cuda:N or mps"),
    ],
)
def test_wrong_use_is_one_line(
    arguments: tuple[str, ...], message: str, slides: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "127.0.0.1:1" in arguments:
        pytest.importorskip("ray")
    monkeypatch.setenv("PATH", str(tmp_path))
    code, text = run("extract", slides / "s0.png", "--mpp", 1, "-o", tmp_path / "o", "--encoder", "null", *arguments)
    assert code == 2
    assert [line for line in text.splitlines() if line.startswith("Error: ")] == text.splitlines()[-1:]
    assert message in text
    assert not list((tmp_path / "o").glob("*.h5"))


@pytest.mark.parametrize(
    ("threads", "message"), [(0, "found 0, expected 1 or more"), (10**6, "found 1000000, expected")]
)
@pytest.mark.parametrize("verb", ["train", "search", "compare"])
def test_threads_that_nobody_has_are_refused(
    verb: str, threads: int, message: str, made: Path, tmp_path: Path, run: Run
) -> None:
    more = ("--grid", "lr=0.01") if verb == "search" else ()
    cohort = ("--bags", made / "bags", "--labels", made / "labels.csv", "--out", tmp_path / "o", *more)
    code, text = run(verb, *cohort, f"--threads={threads}")
    assert code == 2
    assert text.splitlines()[-1].startswith(f"Error: threads: {message}")
    assert not (tmp_path / "o").exists()


def test_a_run_whose_folder_is_deleted_says_so_and_can_be_made_again(made: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    words = ["train", "--bags", made / "bags", "--labels", made / "labels.csv", "--out", out, "--threads", "1"]
    words += ["--model", "mean-pool", "--set", "starts=1", "--set", "restarts=0"]

    def start(epochs: int) -> subprocess.Popen[str]:
        command = [
            sys.executable,
            "-c",
            "from dasmil.cli import main; main()",
            *map(str, words),
            "--epochs",
            str(epochs),
        ]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    process = start(100_000)
    while not (out / "checkpoint.safetensors").exists():
        assert process.poll() is None
        time.sleep(0.05)
    until = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < until:
        shutil.rmtree(out, ignore_errors=True)  # a file that is written meanwhile can make one removal fail
        time.sleep(0.05)
    process.kill()
    text, _ = process.communicate()
    assert process.returncode == 1
    assert "Traceback" not in text
    assert [line for line in text.splitlines() if line.startswith("Error: ")] == text.splitlines()[-1:]
    shutil.rmtree(out, ignore_errors=True)
    again = start(1)
    text, _ = again.communicate(timeout=120)
    assert (again.returncode, (out / "report.html").exists()) == (0, True), text


@pytest.mark.parametrize(("engine", "package"), [("ray", "ray"), ("slurm", "submitit")])
def test_a_missing_extra_is_named(
    engine: str, package: str, slides: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    code, text = run("extract", slides / "s0.png", "--mpp", 1, "-o", tmp_path, "--encoder", "null", "--engine", engine)
    assert code == 1
    assert f"needs the package {package}, which is not installed: pip install 'dasmil[cluster]'" in text


def test_one_run_cannot_be_spread(made: Path, tmp_path: Path, run: Run) -> None:
    cohort = ("--bags", made / "bags", "--labels", made / "labels.csv")
    code, text = run("train", *cohort, "--out", tmp_path / "r", "--jobs", 2)
    assert (code, "spread folds: give --folds too" in text) == (2, True)


def test_other_code_and_a_disk_that_is_not_shared_are_refused(
    slides: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ("extract", slides / "s0.png", "--mpp", 1, "-o", tmp_path, "--encoder", "null", "--jobs", 2)
    with monkeypatch.context() as patch:
        patch.setattr(work_units, "code_digest", lambda: "other")
        code, text = run(*command)
        assert (code, "install the same version everywhere" in text) == (1, True)

    @contextmanager
    def elsewhere(*arguments: object):
        with work_units.open_session(*arguments) as session:  # type: ignore[arg-type]
            yield replace(session, token=session.token + "-unseen", patience=0)

    monkeypatch.setattr(dasmil.engine, "open_session", elsewhere)
    code, text = run(*command)
    assert code == 1
    assert re.search(r"Error: the output folder is not shared: host .* disk that every worker mounts", text)
    assert not list(tmp_path.glob("*.h5"))


def test_all_four_verbs_show_the_same_options(run: Run) -> None:
    shown = []
    for verb in ("extract", "train", "search", "reproduce"):
        text = run(verb, "--help")[1]
        shown.append(re.findall(r"(?m)^│\s+(--[a-z-]+)", text[text.index("Where it runs") :]))
    assert shown[0] == shown[1] == shown[2] == shown[3]
    assert shown[0] == [
        "--engine", "--jobs", "--threads", "--gpus", "--retries", "--ray-address", "--slurm-partition", "--slurm-time",
        "--slurm-memory", "--slurm-local",
    ]  # fmt: skip
