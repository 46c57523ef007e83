"""What others hand over beside feature files: study files, published models, checkpoints, bags from Python; seeded."""

from __future__ import annotations

import io
import json
import random
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import dasmil
from dasmil.cli import VERBS, app, call
from dasmil.cli.study_file import options_of as options
from dasmil.cli.study_file import parsed, read_study, tokens_of
from dasmil.errors import DasmilError, DataError, InputError
from dasmil.study.hub import from_pretrained, save_pretrained

STORED = Path(__file__).parent.parent / "runs" / "stored"
ODD: tuple[Any, ...] = (
    None, True, -1, 0, 10**9, 1.5, "", "text", "../..", [], [1], [[]], {}, {"a": 1}, float("nan"), 2**70, "x" * 5000,
    "\0",
)  # fmt: skip


def clear(error: DasmilError) -> None:
    assert str(error)
    assert "\n" not in str(error)
    assert len(str(error)) <= 2000


STUDY = [
    'command = "train"', "[data]", 'bags = "b"', "[labels]", 'labels = "l.csv"', "[settings]", "epochs = 1",
    "[settings.set]", "hidden = 8", "[outputs]", 'out = "o"',
]  # fmt: skip
VALUES = (
    "1", "-1", "1.5", "nan", '""', '"x"', "true", "[]", "[[1]]", "{}", "{a = {b = 1}}", "1979-05-27", "07:32:00",
    "9" * 5000, "1e400", '"--out"', '"\\u0000"', "'''\na\n'''", "0x10",
)  # fmt: skip
KEYS = ("out", "bags", "epochs", "set", "command", "resume", "jobs", "nope", "slides", '"a b"', "a.b", "models", "help")


@pytest.mark.parametrize("seed", range(4))
def test_a_study_file_is_a_command_or_one_message(seed: int, tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    for case in range(40):
        draw = random.Random(f"{seed}/{case}")
        lines = list(STUDY)
        for _ in range(draw.choice((1, 2, 4))):
            at = draw.randrange(len(lines))
            if draw.random() < 0.5:
                lines.insert(at, f"{draw.choice(KEYS)} = {draw.choice(VALUES)}")
            elif "=" in lines[at]:
                lines[at] = f"{lines[at].partition('=')[0]}= {draw.choice(VALUES)}"
            else:
                lines[at] = draw.choice(("[data]", "[[data]]", "[x.y]", "[", "=", "\0", "[command]"))
        path.write_text("\n".join(lines))
        try:
            tokens_of(app, read_study(app, [verb for verb in VERBS if verb != "run"], path))
        except DasmilError as error:
            clear(error)


def test_study_files_beyond_all_measure_are_refused_at_once(tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    many = "".join(f"k{i} = 1\n" for i in range(20_000))
    for text, message in (
        ('command = "train"\na' + ".a" * 50_000 + " = 1", "nested too deeply"),
        ('command = "train"\n"a"' + '."a"' * 50_000 + " = 1", "nested too deeply"),
        ('command = "train"\nepochs = ' + "9" * 10_000, "is no TOML: .*limit"),
        (f'command = "train"\n[settings.set]\n{many}', "line 2: set holds 20,000 names, expected at most 500"),
        ('command = "train"\n' + "# x\n" * 3_000_000, "is larger than 10 MB"),
    ):
        path.write_text(text)
        with pytest.raises(DataError, match=message):
            call(["run", str(path), "--check"])
    path.write_text('command = "train"\nout = "o"\nbags = "' + "a.b" * 200 + '"\n')  # dots of a path are no tables
    assert call(["run", str(path), "--check"]) == 0
    with pytest.raises(InputError, match="--epochs needs a value"):
        parsed(options(app, "train"), ["--epochs"])


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_pretrained(STORED / "folds", tmp_path_factory.mktemp("published") / "whole")


@pytest.mark.parametrize("seed", range(4))
def test_a_published_folder_gives_predictions_or_one_message(published: Path, seed: int, tmp_path: Path) -> None:
    bag = dasmil.load_cohort(STORED / "bags")[0]
    for case in range(15):
        draw = random.Random(f"{seed}/{case}")
        folder = tmp_path / str(case)
        shutil.copytree(published, folder)
        known = json.loads((folder / "config.json").read_text())
        key = draw.choice(list(known))
        names = ([""], ["."], ["../x"], ["/etc/passwd"], ["config.json"], ["README.md"], ["model.safetensors"] * 9999)
        known[key] = draw.choice(names) if key == "models" else draw.choice(ODD)
        if draw.random() < 0.3:
            model = folder / "model.safetensors"
            model.write_bytes(model.read_bytes()[: draw.randrange(4000)])
        (folder / "config.json").write_text(json.dumps(known))
        try:
            assert len(from_pretrained(folder).predict([bag])) == 1
        except DasmilError as error:
            clear(error)


def checkpoint() -> dict[str, Any]:
    shapes: dict[str, tuple[int, ...]] = {
        "attention_net.0.weight": (8, 6), "attention_net.0.bias": (8,), "attention_net.3.attention_a.0.weight": (4, 8),
        "attention_net.3.attention_a.0.bias": (4,), "attention_net.3.attention_b.0.weight": (4, 8),
        "attention_net.3.attention_b.0.bias": (4,), "attention_net.3.attention_c.weight": (2, 4),
        "attention_net.3.attention_c.bias": (2,), "classifiers.0.weight": (1, 8), "classifiers.0.bias": (1,),
        "classifiers.1.weight": (1, 8), "classifiers.1.bias": (1,), "instance_classifiers.0.weight": (2, 8),
        "instance_classifiers.0.bias": (2,), "instance_classifiers.1.weight": (2, 8),
        "instance_classifiers.1.bias": (2,),
    }  # fmt: skip
    return {name: torch.zeros(shape) for name, shape in shapes.items()}


def changed(value: torch.Tensor, draw: random.Random) -> Any:
    return draw.choice(
        (
            lambda: value.half(), lambda: value.long(), lambda: value > 0, lambda: value.to(torch.complex64),
            lambda: value.to_sparse(), lambda: value[:0], lambda: value[0], lambda: torch.tensor(1.0),
            lambda: value[None], lambda: torch.zeros(1).expand(10**6, 10**6), lambda: value.to("meta"), lambda: None,
            lambda: "x", lambda: torch.zeros(3, 7), lambda: torch.zeros(0),
            lambda: torch.quantize_per_tensor(value, 0.1, 0, torch.qint8),
        )
    )()  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", range(4))
def test_a_checkpoint_of_others_is_a_model_or_one_message(seed: int, tmp_path: Path) -> None:
    path = tmp_path / "m.pt"
    for case in range(40):
        draw = random.Random(f"{seed}/{case}")
        tensors = checkpoint()
        name = draw.choice(list(tensors))
        if draw.random() < 0.7:
            tensors[name] = changed(tensors[name], draw)
        else:
            tensors[draw.choice(("x", "", "classifiers.99.weight", "instance_classifiers.7.bias"))] = tensors.pop(name)
        buffer = io.BytesIO()
        torch.save(tensors, buffer)
        data = buffer.getvalue()
        path.write_bytes(data if draw.random() < 0.8 else data[: draw.randrange(len(data))])
        try:
            model = dasmil.load_published(path)
            assert model(torch.zeros(9, 6), torch.zeros(9, 2)).logit.numel() <= 2
        except DasmilError as error:
            clear(error)


def test_bags_from_python_are_checked_at_the_door() -> None:
    cohort = dasmil.load_cohort(STORED / "bags")
    bags = [cohort[i] for i in range(4)]
    for wrong in (None, 3, "bags", iter(bags), {0: bags[0]}, [], [None], np.zeros(3)):
        with pytest.raises(InputError, match="bags"):
            dasmil.BagDataset(wrong)  # type: ignore[arg-type]
        with pytest.raises(InputError, match="bags"):
            dasmil.MILClassifier().fit(wrong, [0, 1])  # type: ignore[arg-type]
    data = dasmil.BagDataset([*bags, None])  # type: ignore[list-item]
    for index in (4, slice(0, 2), 1.5, None):
        with pytest.raises(InputError, match="expected"):
            data[index]  # type: ignore[index]
    with pytest.raises(InputError, match="without bags"):
        dasmil.collate_bags([])
    with pytest.raises(InputError, match=r"seeds are 1\.5, expected a number"):
        dasmil.fit("mean-pool", [replace(bag, label=k % 2) for k, bag in enumerate(bags)], seeds=1.5)  # type: ignore[arg-type]
    model = dasmil.create_model("mean-pool", in_features=3)
    for wrong in ((model, None), ("model.safetensors", bags[0])):
        with pytest.raises(InputError, match="expected a model"):
            dasmil.explain(*wrong)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="targets are 'list', expected numbers by name"):
        replace(bags[0], targets=[1.0])  # type: ignore[arg-type]
    for y in ([None, 1] * 2, [float("nan"), 1.0] * 2, [{}, 1] * 2, [[0], [0, 1]] * 2, 3):
        with pytest.raises(InputError, match=r"^y "):
            dasmil.MILClassifier().fit(bags, y)  # type: ignore[arg-type]
    for name, value in (("seeds", 0), ("seeds", 1.5), ("random_state", -1), ("options", [1]), ("settings", {1: 2})):
        with pytest.raises(InputError, match=name):
            dasmil.MILClassifier(**{name: value}).fit(bags, [0, 1] * 2)  # type: ignore[arg-type]
