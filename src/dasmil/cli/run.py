"""`dasmil run`: the command that a file says."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

app = App(name="run", help="Run a study file.")


@app.default
def run(
    study: Path,
    *more: Annotated[str, Parameter(allow_leading_hyphen=True)],
    check: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Run a study file: one command with its options under headings, in TOML.

    Every command writes such a file with --write-config FILE, and train, search and compare keep one in --out
    (study.toml). Paths in it count from the folder of the file. Names and values are checked before anything is done,
    and a wrong one is named with its line.

    Examples: dasmil run study.toml; dasmil run study.toml --out runs/again --seeds 5

    Parameters
    ----------
    study
        The file: command = "train", and options as in `dasmil train --help`, with underscores.
    more
        Further options of that command, which override the file.
    check
        Only check the file, and print the command that it stands for.
    """
    import shlex

    from dasmil.cli import VERBS, call
    from dasmil.cli import app as dasmil
    from dasmil.cli.study_file import overruled, read_study, tokens_of

    found = read_study(dasmil, [verb for verb in VERBS if verb != "run"], study)
    tokens = tokens_of(dasmil, overruled(dasmil, found, more))
    if check:
        print(shlex.join(["dasmil", *tokens]))
        return 0
    return call(tokens)
