"""Many slides, some broken, through `dasmil extract`: every good one becomes a bag, every broken one a reason.

    python scripts/broken_slides.py --slides 1000 --share 0.05 --jobs 2

Copies of the slide of the tests; the broken ones are spoiled in ten ways. Prints counts, seconds and kinds of reasons.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

SLIDE = Path(__file__).parents[1] / "tests/data/CMU-1-Small-Region.svs"


def tag(data: bytes, number: int, value: int) -> bytes:
    """The slide with another value in a tag of its first directory."""
    out, at = bytearray(data), struct.unpack_from("<I", data, 4)[0]
    for i in range(struct.unpack_from("<H", data, at)[0]):
        entry = at + 2 + 12 * i
        if struct.unpack_from("<H", data, entry)[0] == number:
            struct.pack_into("<HII", out, entry + 2, 4, 1, value)
    return bytes(out)


def spoiled(data: bytes, way: int, r: random.Random) -> bytes:
    """One of ten ways in which a slide is broken."""
    half = len(data) // 2
    return (
        lambda: b"",
        lambda: data[: r.randrange(1000, half)],
        lambda: b"This is no slide.\n" * 100,
        lambda: b"PK\x03\x04" + data[4:],
        lambda: data[:8] + bytes(len(data) - 8),
        lambda: data[:4] + struct.pack("<I", len(data) + 1000) + data[8:],
        lambda: tag(data, 256, 2**31 - 1),
        lambda: tag(data, 322, 2**31 - 1),
        lambda: tag(data, 259, 4711),
        lambda: data.replace(b"MPP = 0.4990", b"MPP = 0.0000"),
    )[way]()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slides", type=int, default=1000)
    parser.add_argument("--share", type=float, default=0.05)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    data, r = SLIDE.read_bytes(), random.Random(given.seed)
    broken = r.sample(range(given.slides), round(given.share * given.slides))
    with tempfile.TemporaryDirectory(prefix="broken-slides-") as folder:
        slides, out = Path(folder, "slides"), Path(folder, "bags")
        slides.mkdir()
        first = slides / "whole.tmp"
        first.write_bytes(data)
        for i in range(given.slides):
            path = slides / f"slide-{i:04d}.svs"
            if i in broken:
                path.write_bytes(spoiled(data, broken.index(i) % 10, r))
            else:
                os.link(first, path)
        first.unlink()
        began = time.perf_counter()
        command = [Path(sys.executable).with_name("dasmil"), "extract", slides, "-o", out]
        command += ["--encoder", "null", "--stain", "none", "--jobs", str(given.jobs)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        seconds = time.perf_counter() - began
        rows = json.loads((out / "summary.json").read_text())["slides"]
        bags = {path.stem for path in out.glob("*.h5")}
    failed = {Path(row["path"]).stem: str(row["reason"]) for row in rows if row["status"] == "failed"}
    wrong = {f"slide-{i:04d}" for i in broken}
    print(f"{given.slides:,} slides, {len(broken)} broken: {len(bags):,} bags, {len(failed)} reasons, {seconds:.0f} s")
    print(f"exit code {done.returncode}; every good slide has a bag and no broken one: {bags == named(given) - wrong}")
    print(f"a reason for every broken slide and for no other: {failed.keys() == wrong}")
    print(f"tracebacks on the terminal: {done.stderr.count('Traceback')}")
    for reason, count in Counter(text.split(": ", 1)[-1][:100] for text in failed.values()).most_common():
        print(f"  {count:3d}  {reason}")
    return 0 if bags == named(given) - wrong and failed.keys() == wrong else 1


def named(given: argparse.Namespace) -> set[str]:
    return {f"slide-{i:04d}" for i in range(given.slides)}


if __name__ == "__main__":
    sys.exit(main())
