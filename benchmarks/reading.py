"""`dasmil bench reading`: how often training reads its files, and how long it takes until the first epoch is done."""

from __future__ import annotations

import json as json_module
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from benchmarks.figures import Figures
from benchmarks.measure import in_fresh_process

BAGS, INSTANCES, FEATURES = 100, 2000, 1024


def main(*, bags: int = BAGS, threads: int | None = None, json: Annotated[bool, Parameter(negative="")] = False) -> int:
    """From a folder of feature files to the first epoch: 100 bags of 2,000 instances with 1,024 features.

    Example: dasmil bench reading

    Parameters
    ----------
    bags
        Number of bags, two classes, a patient each.
    threads
        Threads of PyTorch.
    json
        Print the figures as JSON.
    """
    with tempfile.TemporaryDirectory() as folder:
        _write(Path(folder), bags)
        found = in_fresh_process("benchmarks.reading", folder, threads=threads)
    title = f"gated-ab-mil on {bags} files of {INSTANCES:,} instances x {FEATURES:,} features, CPU time"
    figures = Figures("reading", title, details=found)
    figures.add("opens of a file, at most", found["opens"], goal="opens")
    figures.add("readings of its features, at most", found["readings"], goal="readings")
    figures.add("every file read once with h5py", found["bare_seconds"], "s")
    figures.add("until the bags are split", found["split_seconds"], "s")
    figures.add("until the first epoch is done", found["epoch_seconds"], "s")
    figures.add("training, test set and baselines", found["seconds"], "s")
    figures.add("peak memory", found["peak_gb"], "GB")
    return figures.show(json=json)


def _write(folder: Path, bags: int) -> None:
    """Random features, a few of them larger in every second bag; no two bags of one size."""
    import torch

    from dasmil.data.store import write_bag
    from dasmil.types import Bag

    (folder / "features").mkdir()
    generator, lines = torch.Generator().manual_seed(0), ["slide,label,patient"]
    for k in range(bags):
        n = INSTANCES - bags // 2 + k
        features = torch.randn(n, FEATURES, generator=generator)
        features[:50, :4] += 2.0 * (k % 2)
        coords = torch.stack([torch.arange(n) % 50, torch.arange(n) // 50], 1) * 100.0
        write_bag(folder / "features" / f"s{k}.h5", Bag(features, coords, "um", f"s{k}"))
        lines.append(f"s{k},{'tumor' if k % 2 else 'normal'},p{k}")
    (folder / "labels.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _measure(folder: Path) -> dict[str, float]:
    from contextlib import nullcontext

    import h5py

    import dasmil
    from dasmil.study.progress import NoWatcher
    from dasmil.train import Progress
    from dasmil.train.plan import peak_memory

    started = time.process_time()
    for path in sorted((folder / "features").iterdir()):
        with h5py.File(path) as file:
            file["features"][...]  # pyright: ignore[reportIndexIssue]
    bare = time.process_time() - started
    opens, readings = _counted(h5py)
    marks: dict[str, float] = {}

    class Seen(NoWatcher):
        def epoch(self, progress: Progress) -> None:
            marks.setdefault("epoch", time.process_time())

        def note(self, text: str) -> None:
            if text.startswith("Split"):
                marks["split"] = time.process_time()

    dasmil.train_cohort  # noqa: B018  (imports are not what is measured)
    started = time.process_time()
    dasmil.train_cohort(
        dasmil.CohortSpec(bags=folder / "features", labels=folder / "labels.csv"), "gated-ab-mil", out=folder / "run",
        epochs=1, warmup_epochs=0.0, test=True, note=Seen().note, watch=lambda _: nullcontext(Seen()),
    )  # fmt: skip
    return {
        "opens": max(opens.values()), "readings": max(readings.values()), "bare_seconds": bare,
        "split_seconds": marks["split"] - started, "epoch_seconds": marks["epoch"] - started,
        "seconds": time.process_time() - started, "peak_gb": peak_memory() / 1e9,
    }  # fmt: skip


def _counted(h5py: Any) -> tuple[Counter[str], Counter[str]]:
    """From now on, how often each file is opened, and how often its features are read."""
    opens, readings = Counter[str](), Counter[str]()
    opened, read = h5py.File.__init__, h5py.Dataset.__getitem__

    def counting_opens(file: Any, name: Any, mode: str = "r", *args: Any, **options: Any) -> None:
        if mode == "r" and isinstance(name, str | Path):
            opens[str(name)] += 1
        opened(file, name, mode, *args, **options)

    def counting_readings(dataset: Any, *args: Any, **options: Any) -> Any:
        if dataset.name == "/features":
            readings[dataset.file.filename] += 1
        return read(dataset, *args, **options)

    h5py.File.__init__, h5py.Dataset.__getitem__ = counting_opens, counting_readings
    return opens, readings


if __name__ == "__main__":
    print(json_module.dumps(_measure(Path(sys.argv[1]))))
