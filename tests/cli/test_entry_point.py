"""The real entry point: quick help, exit codes, one-line errors."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from dasmil.cli import VERBS, main
from dasmil.data.store import write_bag
from dasmil.types import Bag


def dasmil(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dasmil", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_help_names_every_verb() -> None:
    result = dasmil("--help")
    assert result.returncode == 0
    for verb in VERBS:
        assert verb in result.stdout


def test_help_imports_no_heavy_package() -> None:
    script = (
        "import sys; from dasmil.cli import app; app(['--help'], result_action='return_value', exit_on_error=False);"
        "heavy = {'torch', 'numpy', 'matplotlib', 'h5py', 'scipy'};"
        "print('HEAVY', sorted({m.split('.')[0] for m in sys.modules} & heavy))"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert "HEAVY []" in result.stdout


def test_importing_the_package_imports_nothing_but_python() -> None:
    script = (
        "import sys; before = set(sys.modules); import dasmil;"
        "print(sorted({m.split('.')[0] for m in set(sys.modules) - before} - {'dasmil'} - sys.stdlib_module_names))"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout.strip() == "[]"


def test_a_verbose_version_tells_what_computes() -> None:
    import torch

    from dasmil import __version__
    from dasmil.ops.das_attention.native import told as kernel

    result = dasmil("--version", "--verbose")
    assert result.returncode == 0, result.stderr
    told = dict(line.split(": ", 1) for line in result.stdout.splitlines())
    assert told["versions"].startswith(f"dasmil {__version__}, torch {torch.__version__}, python ")
    assert int(told["threads"]) >= 1
    assert told["CPU kernel"] == kernel()
    assert told["device"] == "cpu" or torch.cuda.is_available() or torch.backends.mps.is_available()
    assert dasmil("--version").stdout.strip() == __version__


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_help_of_every_verb_shows_an_example_and_imports_no_torch(verb: str) -> None:
    script = (
        "import atexit, sys; from dasmil.cli import main; sys.argv[1:] = sys.argv[1:] + ['--help'];"
        "atexit.register(lambda: print('TORCH', 'torch' in sys.modules)); main()"
    )
    result = subprocess.run(
        [sys.executable, "-c", script, verb], capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode == 0, result.stderr
    assert "TORCH False" in result.stdout
    assert f"dasmil {verb} " in result.stdout.replace("Usage: dasmil", "")


def test_help_of_the_demo_has_a_line_for_each_example() -> None:
    lines = [line.strip() for line in dasmil("demo", "--help").stdout.splitlines()]
    assert "dasmil demo --out demo/" in lines
    assert "dasmil demo --slides --out demo-slides/" in lines


def test_a_mistyped_verb_is_wrong_use_with_a_suggestion() -> None:
    result = dasmil("benhc")
    assert result.returncode == 2
    assert "bench" in result.stdout + result.stderr
    assert "Traceback" not in result.stderr


@pytest.fixture(scope="module")
def cohort(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("codes")
    (folder / "bags").mkdir()
    (folder / "broken").mkdir()
    (folder / "broken" / "s0.h5").write_bytes(b"no HDF5")
    (folder / "run").mkdir()
    (folder / "run" / "config.json").write_text("{}")
    (folder / "study.toml").write_text('command = "train"\nlr = [[1]]\n')
    (folder / "same").mkdir()
    for k in range(8):
        write_bag(folder / "same" / f"s{k}.h5", Bag(torch.ones(4, 3), torch.zeros(4, 2), "um", f"s{k}"))
        write_bag(folder / "bags" / f"s{k}.h5", Bag(torch.full((4, 3), k + 1.0), torch.zeros(4, 2), "um", f"s{k}"))
    for name, classes in (("labels.csv", 2), ("one.csv", 1)):
        (folder / name).write_text("slide,label\n" + "".join(f"s{k},c{k % classes}\n" for k in range(8)))
    return folder


SAME = "train --bags same --out out --labels labels.csv"
TRAIN = "train --bags bags --out out --epochs 1 --labels "


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (TRAIN + "labels.csv --lr inf", 2, "lr"),
        (TRAIN + "labels.csv --set hidden=-1", 2, "hidden is -1, expected"),
        (TRAIN + "labels.csv --set hiden=3", 2, "Did you mean 'hidden'?"),
        (TRAIN + "labels.csv --folds 100", 2, "100 folds were asked for, but there are only 8"),
        (TRAIN + "labels.csv --seeds 0", 2, "seeds are 0, expected a number from 1"),
        (TRAIN + "labels.csv --split-seed=-1", 2, "the seed of the split is -1"),
        (TRAIN + "labels.csv --label-column kind", 2, "no column 'kind' for the label"),
        (TRAIN + "none.csv", 2, "no label table none.csv"),
        (SAME, 1, "same slides: 8 slides"),
        (SAME + " --lr inf", 2, "lr"),
        (SAME + " --model auto --set hidden=3", 2, "hidden"),
        (SAME + " --set hidden=-1", 2, "hidden is -1, expected"),
        (SAME + " --seeds 0", 2, "seeds are 0"),
        (SAME + " --split-seed=-1", 2, "the seed of the split is -1"),
        ("plan", 2, "nothing to plan"),
        ("explain", 2, "no run was given"),
        ("predict none --bags bags", 2, "none does not exist"),
        ("run none.toml", 2, "no file none.toml"),
        (TRAIN + "one.csv", 1, "found 8 of class 'c0' only"),
        ("train --bags broken --out out --labels labels.csv", 1, "s0"),
        ("predict run --bags bags", 1, "config.json"),
        ("run study.toml", 1, "lr holds lists within a list"),
    ],
)
def test_wrong_use_is_exit_code_2_and_faulty_data_1(
    words: str, code: int, said: str, cohort: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(cohort)
    monkeypatch.setattr(sys, "argv", ["dasmil", *words.split()])
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)  # main() sets its own
    with pytest.raises(SystemExit) as ended:
        main()
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("Error: ")]
    assert len(errors) == 1
    assert said in errors[0]
    assert ended.value.code == code
    assert not (cohort / "out").exists()


def test_a_path_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "s.png").write_text("x")
    result = dasmil("extract", str(tmp_path / "s.png"), "-o", str(tmp_path / "file" / "bags"), "--encoder", "null")
    assert result.returncode == 1
    place = tmp_path / "file" / "bags"
    expected = f"Error: {place}: nothing can be written there (Not a directory); choose another folder"
    assert result.stderr.splitlines()[-1] == expected
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("number", "said"),
    [
        ("ENOSPC", "Error: /x: No space left on device; free some space and run the same command again"),
        ("EROFS", "Error: /x: Read-only file system; choose another folder"),
        ("EIO", "Error: /x: Input/output error; check the disk, or the connection to it"),
        ("EINVAL", "Traceback"),  # a fault that is not the user's path or disk is seen whole
    ],
)
def test_disks_that_refuse_are_one_line_whoever_meets_them(number: str, said: str) -> None:
    script = (
        "import errno, os, sys, dasmil.cli as cli; number = getattr(errno, sys.argv.pop());"
        "cli.app = lambda *_, **__: (_ for _ in ()).throw(OSError(number, os.strerror(number), '/x')); cli.main()"
    )
    result = subprocess.run(
        [sys.executable, "-c", script, number], capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode == 1
    assert result.stderr.startswith(said)


@pytest.mark.parametrize("verb", ["train", "search", "compare", "evaluate", "plan"])
def test_options_of_a_cohort_stand_under_headings(verb: str) -> None:
    """Seventy options in one list are read by nobody."""
    heading, found = "", {}
    for line in dasmil(verb, "--help").stdout.splitlines():
        if line.startswith("╭─"):
            heading = line.strip("╭─╮ ")
        words = line.strip("│ ").split()
        if words and words[0].startswith("--"):
            found[words[0]] = heading
    assert found["--bags"] == found["--labels"] == found["--mpp"] == "Your bags"
    assert found["--bag-column"] == found["--one-hot"] == "Tables of cells"
    assert found["--time-column"] == found["--target-columns"] == "Survival, numbers, several targets"
