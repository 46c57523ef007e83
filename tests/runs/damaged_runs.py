"""A run directory with one file damaged: values of other kinds, cut, replaced, linked elsewhere."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

DEEP = 50_000
ODD = (
    None, True, -1, 0, 1, 10**9, 1.5, "", "text", "../../..", [], [1], {}, {"a": 1}, "<img src=x onerror=alert(1)>",
    float("nan"), float("inf"), 2**70, [[[]]], "\udcff", "x" * 5000,
)  # fmt: skip
CELLS = (
    "",
    "nan",
    "inf",
    "text",
    "-1",
    "9" * 21,
    "1e400",
    '"',
    '"a',
    "a,b",
    "\0",
    "1.5",
    "<b>",
    "=cmd()",
    "0x10",
    "\u0661",
)


def values_changed(file: Path, draw: random.Random) -> bool:
    """Other values at one or two places of a JSON file, or one cell of a table."""
    if file.suffix == ".csv":
        lines = file.read_text().split("\n")
        row = draw.randrange(len(lines))
        cells = lines[row].split(",")
        cells[draw.randrange(len(cells))] = draw.choice(CELLS)
        lines[row] = ",".join(cells)
        file.write_text("\n".join(lines))
        return True
    if file.suffix != ".json":
        return False
    value = json.loads(file.read_text())
    places: list[tuple[dict | list, str | int]] = []

    def walk(part: object) -> None:
        if isinstance(part, (dict, list)):
            for key in part if isinstance(part, dict) else range(len(part)):
                places.append((part, key))
                walk(part[key])  # pyright: ignore[reportArgumentType, reportCallIssue]

    walk(value)
    for _ in range(draw.choice((1, 1, 2))):
        part, key = draw.choice(places)
        if isinstance(part, dict) and draw.random() < 0.3:
            part.pop(key, None)  # pyright: ignore[reportArgumentType, reportCallIssue]
        else:
            part[key] = draw.choice(ODD)  # pyright: ignore[reportArgumentType, reportCallIssue]
    file.write_text(json.dumps(value))
    return True


def replaced(file: Path, draw: random.Random) -> None:
    """Something else under the name of the file, or nothing."""
    data = file.read_bytes()
    how = draw.randrange(12)
    if how == 0:
        file.unlink()
    elif how == 1:
        file.unlink()
        file.mkdir()
    elif how == 2:
        file.unlink()
        file.symlink_to(draw.choice((Path("/nonexistent"), file, Path("/dev/null"))))
    elif how == 3:
        flipped = bytearray(data)
        for _ in range(draw.choice((1, 4, 64))):
            flipped[draw.randrange(len(flipped))] = draw.randrange(256)
        file.write_bytes(flipped)
    elif how == 4:
        file.write_bytes(data * 2)
    elif how in (5, 6):
        file.write_bytes(data[: draw.randrange(len(data))])
    elif how == 7:
        file.write_bytes(
            draw.choice((b"", b"\0" * 1000, b"\xff\xfe{\0}\0", b"\xef\xbb\xbf" + data, draw.randbytes(500)))
        )
    else:
        deep = ("[" * DEEP + "]" * DEEP, '{"a":' * DEEP + "1" + "}" * DEEP)
        file.write_text(
            draw.choice(("null", "[]", "{}", "3", '"x"', '{"splits": NaN, "seeds": [NaN]}', "a\nb\n", *deep))
        )


def damage(source: Path, target: Path, draw: random.Random) -> str:
    """A copy of a run with one file damaged; says which."""
    shutil.copytree(source, target)
    files = sorted(p for p in target.rglob("*") if p.is_file() and p.suffix != ".html")
    tables = [p for p in files if p.suffix in (".json", ".csv")]
    file = draw.choice(tables if draw.random() < 0.85 else files)
    name = str(file.relative_to(target))
    if draw.random() < 0.6 and values_changed(file, draw):
        return f"values of {name}"
    replaced(file, draw)
    return name
