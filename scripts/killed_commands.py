"""`dasmil extract` and `dasmil train`, killed at random moments: the same command again must end as if nothing was.

    python scripts/killed_commands.py --kills 100 --seed 0

Each command is killed (SIGKILL, no chance to clean up) up to five times in one folder, then run to its end. Its files
must equal those of an undisturbed run, but for times, and no hidden file may be left. Linux only: a command is a fork
of this process, so that no time is lost on imports, and the moment is drawn from the computing time that it needs.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import h5py
import numpy as np
import torch

import dasmil
from dasmil.cli import main as dasmil_main
from dasmil.data.store import write_bag

SLIDE = Path(__file__).parents[1] / "tests/data/CMU-1-Small-Region.svs"
PASSING = {"seconds", "status", "counts", "dasmil_version"}
"""What may differ: how long it took, and whether a slide was done now or before."""


def make_inputs(folder: Path) -> None:
    """Six slides, and a cohort of 24 small bags."""
    (folder / "slides").mkdir()
    (folder / "bags").mkdir()
    for i in range(6):
        shutil.copy(SLIDE, folder / "slides" / f"s{i}.svs")
    draw = np.random.default_rng(0)
    with open(folder / "labels.csv", "w", encoding="utf-8") as file:
        file.write("slide,label,patient\n")
        for i in range(24):
            values = draw.normal(size=(30, 6)).astype("f4")
            values[:3] += 2.5 * (i % 2)
            coords = torch.from_numpy((draw.integers(0, 12, (30, 2)) * 256.0 + 128).astype("f4"))
            bag = dasmil.Bag(torch.from_numpy(values), coords, "um", f"b{i}", metadata={"tile_um": 256.0, "mpp": 0.5})
            write_bag(folder / "bags" / f"b{i}.h5", bag)
            file.write(f"b{i},{'tumour' if i % 2 else 'normal'},p{i}\n")


def commands(folder: Path) -> dict[str, Callable[[Path], list[str]]]:
    """The commands by name; each takes the folder that it writes to."""
    cohort = ["--bags", str(folder / "bags"), "--labels", str(folder / "labels.csv"), "--resume"]
    small = ["--epochs", "4", "--seeds", "2", "--threads", "1", "--set", "restarts=1", "--set", "starts=2"]
    tiles = ["--encoder", "null", "--tile-um", "90", "--workers", "1"]
    return {
        "extract": lambda out: ["extract", str(folder / "slides"), "-o", str(out), *tiles],
        "train": lambda out: ["train", *cohort, *small, "--out", str(out)],
    }


def run(words: list[str], log: Path, kill_after: float | None = None) -> tuple[int, float]:
    """Run a command in a fork; returns its exit code (negative: the signal) and its computing time in seconds."""
    child = os.fork()
    if child == 0:
        handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        sys.argv = ["dasmil", *words]
        code = 1
        try:
            dasmil_main()
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        finally:
            sys.stdout.flush()
            os._exit(code)
    while True:
        done, status, used = os.wait4(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime
        if kill_after is not None and computing_time(child) >= kill_after:
            os.kill(child, signal.SIGKILL)
            kill_after = None
        time.sleep(0.002)


def computing_time(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def lasting(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: lasting(part) for key, part in value.items() if key not in PASSING}
    return [lasting(part) for part in value] if isinstance(value, list) else value


def content(file: Path, root: Path) -> str:
    """What a file says, without times and without the name of the folder."""
    if file.suffix == ".h5":
        with h5py.File(file) as h:
            sets = {name: hashlib.sha256(h[name][()].tobytes()).hexdigest() for name in h}  # pyright: ignore
            return repr((sets, sorted((name, str(value)) for name, value in h.attrs.items())))
    if file.suffix == ".json":
        return json.dumps(lasting(json.loads(file.read_text())), sort_keys=True).replace(str(root), "OUT")
    if file.name == "metrics.csv":
        with file.open(newline="") as rows:
            return repr([lasting(dict(row)) for row in csv.DictReader(rows)])
    if file.suffix == ".toml":
        return file.read_text().replace(str(root), "OUT")
    if file.suffix == ".html" or file.name == "checkpoint.safetensors":  # both tell times
        return "there"
    return hashlib.sha256(file.read_bytes()).hexdigest()


def contents(root: Path) -> dict[str, str]:
    return {str(p.relative_to(root)): content(p, root) for p in sorted(root.rglob("*")) if p.is_file()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100, help="of both commands together")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    draw, bad = random.Random(given.seed), 0
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="killed-commands-") as name:
        folder = Path(name)
        make_inputs(folder)
        for title, words in commands(folder).items():
            log, whole = folder / f"{title}.log", folder / f"{title}-whole"
            code, seconds = run(words(whole), log)
            expected, kills, folders = contents(whole), 0, 0
            print(f"{title}: {len(expected)} files, {seconds:.1f} s of computing, exit code {code}", flush=True)
            while kills < given.kills // 2:
                out = folder / f"{title}-killed"
                shutil.rmtree(out, ignore_errors=True)
                for _ in range(draw.randint(1, 5)):
                    kills += run(words(out), log, draw.uniform(0, seconds))[0] == -signal.SIGKILL
                code, _ = run(words(out), log)
                found = contents(out)
                wrong = sorted(f for f in {*found, *expected} if found.get(f) != expected.get(f))
                left = [f for f in found if Path(f).name.startswith(".")]
                folders, bad = folders + 1, bad + bool(wrong or code)
                if wrong or code:
                    print(f"  BAD: exit code {code}, differ {wrong[:5]}, left behind {left[:5]}", flush=True)
            tracebacks = log.read_text(errors="replace").count("Traceback")
            bad += tracebacks
            print(f"{title}: {kills} kills in {folders} folders, {tracebacks} tracebacks", flush=True)
    print("every folder ended as an undisturbed one, nothing left behind" if not bad else f"{bad} BAD")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
