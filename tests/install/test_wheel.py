"""The wheel carries the kernels: built from a copy of the sources, installed away from them, and used there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from dasmil.ops.das_attention.native import available, told

PROJECT = Path(__file__).parents[2]


def run(*command: str | Path, cwd: Path) -> str:
    environment = {**os.environ, "PYTHONPATH": "", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=900, check=False, env=environment)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def built(place: Path) -> Path:
    """A wheel from what the sdist has, and from nothing that an installation has left in the tree."""
    left = shutil.ignore_patterns("_kernel*", "__pycache__", "*.egg-info")
    shutil.copytree(PROJECT / "src", place / "sources" / "src", ignore=left)
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(PROJECT / name, place / "sources" / name)
    pip = (sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", place / "made")
    run(*pip, place / "sources", cwd=place)
    (wheel,) = (place / "made").iterdir()
    return wheel


def installed(wheel: Path, place: Path) -> Path:
    """The Python of a new environment that has the wheel, and borrows the packages of this one for the rest."""
    run(sys.executable, "-m", "venv", "--without-pip", place / "venv", cwd=place)
    python = place / "venv" / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps", wheel, cwd=place)
    packages = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=place).strip())
    (packages / "borrowed.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")))
    return python


@pytest.mark.skipif(not available(), reason="the kernel was not built: no C++ compiler")
def test_the_wheel_carries_kernels_that_work_where_it_is_installed(tmp_path: Path) -> None:
    """One test: building takes half a minute."""
    wheel = built(tmp_path)
    name, _, python_tag, abi, platform = wheel.stem.split("-")
    assert (name, python_tag, abi) == ("dasmil", "py3", "none")  # one wheel for every Python of the platform
    assert platform != "any"
    names = zipfile.ZipFile(wheel).namelist()
    kernels = sorted(name.rsplit(".", 1)[0] for name in names if "/_kernel" in name)
    assert kernels == ["dasmil/ops/conv_pool/_kernel", "dasmil/ops/das_attention/_kernel"]
    for data in ("py.typed", "viewer/static/index.html", "data/mnist/digits.npz", "train/recipes/paper.toml"):
        assert f"dasmil/{data}" in names

    python = installed(wheel, tmp_path)
    script = (
        "import sys, dasmil; from pathlib import Path; from dasmil.ops import conv_pool, library;"
        "from dasmil.ops.das_attention.native import told; home = Path(dasmil.__file__).parent;"
        "assert library.library_path(home / 'ops' / 'das_attention').is_relative_to(sys.prefix);"
        "assert conv_pool.load() is not None; print(told())"
    )
    assert run(python, "-c", script, cwd=tmp_path).strip() == told()

    shutil.copytree(PROJECT / "tests" / "ops", tmp_path / "ops")
    chosen = "native and (test_odd_sizes or test_options)"
    parity = ("-m", "pytest", "-p", "no:cacheprovider", "--import-mode=importlib", "ops/test_backends.py", "-k", chosen)
    said = run(python, *parity, cwd=tmp_path)
    assert int(said.rsplit(" passed", 1)[0].split()[-1]) >= 2 * 31  # two instruction sets at least
    assert " failed" not in said
    demo = run(python.with_name("dasmil"), "demo", "--quick", "--out", tmp_path / "demo", cwd=tmp_path)
    assert demo.splitlines()[-1] == str(tmp_path / "demo" / "report.html")
