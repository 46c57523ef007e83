"""The real entry point: quick help, exit codes, one-line errors."""

import subprocess
import sys
from pathlib import Path

import pytest

from dasmil.cli import VERBS


def dasmil(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from dasmil.cli import main; main()", *arguments]
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
