"""A command as a file: written, read with line numbers, and repeated to the same result."""

from __future__ import annotations

import shlex
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch

from dasmil.cli import VERBS, app, call, main
from dasmil.cli.study_file import options_of, parsed, read_study, tokens_of, written
from dasmil.data.store import write_bag
from dasmil.errors import DasmilError, DataError, InputError
from dasmil.types import Bag

COMMANDS = [verb for verb in VERBS if verb != "run"]


def study(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "study.toml"
    path.write_text(text, encoding="utf-8")
    return path


FULL = """\
# What we do
command = "train"

[data]
bags = "features"
mpp = 0.25

[labels]
labels = "labels.csv"
positive = "MSIH"

[model]
model = "das-mil"

[splits]
folds = 5

[settings]
seeds = 3
baselines = false

[settings.set]
hidden = 20
early_stopping = 0

[outputs]
out = "runs/mine"
"""


def test_a_file_stands_for_a_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = study(tmp_path, FULL)
    assert call(["run", str(path), "--check"]) == 0
    command = capsys.readouterr().out
    expected = (
        f"dasmil train --bags={tmp_path}/features --mpp=0.25 --labels={tmp_path}/labels.csv --positive=MSIH "
        f"--model=das-mil --folds=5 --seeds=3 --no-baselines --set hidden=20 --set early_stopping=0 "
        f"--out={tmp_path}/runs/mine"
    )
    assert shlex.split(command) == shlex.split(expected)
    call(["run", str(path), "--check", "--seeds", "1", "--set", "hidden=4", "--out", "elsewhere"])
    again = shlex.split(capsys.readouterr().out)
    assert "--seeds=1" in again
    assert "hidden=4" in again
    assert "early_stopping=0" in again
    assert f"--out={Path.cwd()}/elsewhere" in again


WRONG = [
    ("model = 1\n", 'study.toml, line 1: no command; the file begins with one, for example command = "train"'),
    ('command = "trian"\n', r"line 1: unknown command 'trian'. Did you mean 'train'\?|line 1: unknown command"),
    ('command = "train"\n\n[settings]\nepoch = 3\n', r"line 4: unknown option of train 'epoch'"),
    ('command = "train"\n[settings]\nepochs = "many"\n[outputs]\nout = "o"\n', "line 3: .*--epochs.*many"),
    ('command = "train"\n[outputs]\nout = "o"\n[data]\nprotocol = "dirty"\n', "line 5: .*--protocol"),
    ('command = "train"\n\nepochs = 3\n', r"study\.toml: .*--out requires an argument"),
    ('command = "train"\nout = "o"\n[settings]\nresume = "yes"\n', "line 4: resume is 'yes', expected true or false"),
    ('command = "train"\nout = "o"\nepochs = [[1]]\n', "line 3: epochs holds lists within a list"),
    ('command = "train"\nout = "o"\nepochs = true\n', "line 3: epochs is True, expected text or a number"),
    ('command = "train"\nout = "o"\n[epochs]\na = 1\n', "line 3: epochs is a table, expected one value"),
    ('command = "train"\nout = "o"\n[outputs]\nout = "p"\n', "line 4: out is given twice, first in line 2"),
    ('command = "train"\nout = "o"\n\n[set]\nlr = 0.1\nhiden = 3\n', "line 6: unknown setting of training or option"),
    ('command = "train"\nout = "o"\nmodel = "das"\n[set]\nlr = 0.1\n', "line 3: unknown model 'das'"),
    ('command = "train"\nout = \n', r"is no TOML: .*line 2"),
    ("[" * 5000, "is no TOML"),
    ('command = "train"\nout = "\\ud800"\n', "is no TOML"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "message"), WRONG)
def test_what_is_wrong_is_said_with_its_line(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(DasmilError, match=message):
        call(["run", str(study(tmp_path, text)), "--check"])


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no file .*nowhere\.toml"):
        call(["run", str(tmp_path / "nowhere.toml")])
    (tmp_path / "a.toml").write_bytes(b"command = '\xff'")
    with pytest.raises(DataError, match="is not UTF-8 text"):
        call(["run", str(tmp_path / "a.toml")])


EVERY = [
    ("train", "--data mnist-collage --out o --set hidden=20 --set pooling=max --seeds 5 --no-baselines --test"),
    ("search", "--bags f --labels l.csv --grid lr=1e-2,1e-3 --grid pooling=max,mean --folds 5 --out o"),
    ("compare", "a b --out o --space-test"),
    ("predict", "r --bags f --mpp 0.25 -o p.csv"),
    ("evaluate", "r --bags f --labels 007.csv --classes 0,1 --json"),
    ("extract", "/slides --out bags --encoder efficientnet-lite0"),
    ("doctor", "features --labels l.csv --tile-um=256"),
    ("plan", "--bags f --labels l.csv --mpp nominal"),
    ("plan", "--sizes 4000 12000 --in-features 16"),
]


@pytest.mark.parametrize(("verb", "line"), EVERY)
def test_a_written_file_gives_the_same_options_again(verb: str, line: str, tmp_path: Path) -> None:
    tokens = shlex.split(line)
    text = written(app, verb, tokens)
    assert tomllib.loads(text)["command"] == verb
    again = read_study(app, COMMANDS, study(tmp_path, text))
    known = options_of(app, verb)
    assert again.options == parsed(known, tokens)
    first = app.parse_args([verb, *tokens], exit_on_error=False, print_error=False)[1]
    second = app.parse_args(tokens_of(app, again), exit_on_error=False, print_error=False)[1]
    for name, value in first.arguments.items():
        plain = [type(part)(Path(part).absolute()) for part in value] if isinstance(value, tuple) else value
        plain = plain.absolute() if isinstance(plain, Path) else plain
        found = second.arguments[name]
        if name not in ("cohort", "given", "bags_given"):  # their paths are made absolute in the file
            assert (list(found) if isinstance(found, tuple) else found) == plain, name


def test_what_belongs_to_the_moment_is_not_written() -> None:
    assert "resume" not in written(app, "train", ["--out", "o", "--resume"])


def made_cohort(folder: Path) -> None:
    rng = np.random.default_rng(0)
    (folder / "f").mkdir()
    rows = ["slide,label,split"]
    for i in range(16):
        features = rng.normal(size=(5, 3)).astype(np.float32)
        features[:, 0] += 2.0 * (i % 2)
        coords = rng.uniform(0, 50, (5, 2)).astype(np.float32)
        write_bag(folder / "f" / f"s{i:02d}.h5", Bag(torch.from_numpy(features), torch.from_numpy(coords), "um", "b"))
        rows.append(f"s{i:02d},{i % 2},{'train' if i < 12 else 'val'}")
    (folder / "labels.csv").write_text("\n".join(rows))


def test_a_run_keeps_the_file_that_repeats_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Train with options, then by the file that was written, then by the one in the run: the same weights each time."""
    made_cohort(tmp_path)
    monkeypatch.chdir(tmp_path)
    line = "train --bags f --labels labels.csv --model mean-pool --epochs 2 --no-baselines --set clip=1.5 --out first"
    monkeypatch.setattr(sys, "argv", ["dasmil", *shlex.split(line), "--write-config", "study.toml"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    assert call(["run", "study.toml", "--out", "second"]) == 0
    (tmp_path / "away").mkdir()
    monkeypatch.chdir(tmp_path / "away")
    assert call(["run", str(tmp_path / "first" / "study.toml"), "--out", str(tmp_path / "third")]) == 0
    capsys.readouterr()
    weights = [(tmp_path / run / "seed-0" / "model.safetensors").read_bytes() for run in ("first", "second", "third")]
    assert weights[0] == weights[1] == weights[2]
    kept = tomllib.loads((tmp_path / "first" / "study.toml").read_text())
    assert kept["settings"]["set"] == {"clip": 1.5}
    assert kept["data"]["bags"] == str(tmp_path / "f")


def test_write_config_needs_a_command_and_a_name(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="needs the name of a file"):
        call(["train", "--write-config", "--out", "o"])
    with pytest.raises(InputError, match="writes the file of a command such as train"):
        call(["run", "study.toml", f"--write-config={tmp_path}/a.toml"])
