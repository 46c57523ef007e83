"""The door: public names are imported on first use, and a type checker sees their real types."""

import json
import subprocess
import sys
from pathlib import Path

import dasmil

SCRIPT = """\
import dasmil

bags = [dasmil.read_bag("a.h5"), dasmil.read_bag("b.h5")]
runs = dasmil.fit("das-mil", bags, bags, seeds=1, in_features=8)
model = runs[0].model
reveal_type(bags[0])
reveal_type(model)
reveal_type(dasmil.explain(model, bags[0]))
reveal_type(dasmil.explain(model, bags[0]).pairs)
reveal_type(dasmil.list_models())
dasmil.explain(model)
spec = dasmil.CohortSpec(bags="features", labels="labels.csv")
reveal_type(spec.bags)
reveal_type(dasmil.cross_validate(spec, "das-mil", folds=5, out="runs/a").folds[0].seeds[0].status)
reveal_type(dasmil.explain_bag("runs/a", "slide1").speaker.fold)
reveal_type(dasmil.space_test("runs/a").rows)
"""


def test_public_names_are_there_and_only_those():
    assert sorted(dasmil.__all__) == sorted(["__version__", *dasmil._HOMES])
    for name in dasmil._HOMES:
        assert getattr(dasmil, name).__name__ == name
        assert getattr(dasmil, name).__module__.startswith("dasmil.")


def test_a_type_checker_sees_real_types_in_a_users_script(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    source = str(Path(dasmil.__file__).parent.parent)
    (tmp_path / "pyrightconfig.json").write_text(json.dumps({"extraPaths": [source], "typeCheckingMode": "standard"}))
    command = [sys.executable, "-m", "basedpyright", "--outputjson", "--pythonpath", sys.executable, "-p", tmp_path]
    result = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    found = json.loads(result.stdout)["generalDiagnostics"]
    revealed = {d["range"]["start"]["line"] + 1: d["message"] for d in found if d["severity"] == "information"}
    types = {line: text.split(" is ")[-1].strip('"') for line, text in revealed.items()}
    assert types[6] == "Bag"
    assert types[7] == "MILModel"
    assert types[8] == "Explanation"
    assert types[9] == "tuple[Pair, ...]"
    assert types[10] == "list[str]"
    assert [types[line] for line in (13, 14, 15)] == ["Path | None", "SeedStatus", "int | None"]
    assert types[16] == "tuple[SpaceResult, ...]"
    errors = {d["range"]["start"]["line"] + 1: d["message"] for d in found if d["severity"] == "error"}
    assert list(errors) == [11]
    assert "bag" in errors[11]  # the forgotten argument has its name
