"""Models of the field against the numbers of their authors' programs (float64, evaluation mode, dropout off).

``published.json`` and ``recent.json`` (models of 2024 to 2026) hold, per entry, the parameters in the program's order
under our names and with its shapes ("a|b": the rows of one tensor are those of several of ours; "a@2": rows of ours
from several of theirs, this is the third; "a^T": theirs is stored transposed),
what it was asked and what it computed. Inputs and parameters are given by formula:

- instances i = 0 .. n - 1, features sin(0.7 i + 0.3 j + 0.1 i j), centres
  (128 + 90 sin(1.3 i), 128 + 90 cos(2.1 i)) px; of models that read a grid of cells, row 7 i mod 13 and column
  (3 i + 4 floor(i / 13)) mod 17 of it;
- element m of tensor t: sin(0.37 m + t + 1) / sqrt(fan), fan = product of all axes but the first if there are two axes
  or more, else 1; ``exceptions`` of an entry replace this.

The programs have a logit for each of two classes, ours have one: the tests ask for one per class. Tolerance: 1e-10 of
max(1, |value|).
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from dasmil import create_model
from dasmil.models import MILModel
from dasmil.models.acmil import hide_strongest
from dasmil.models.clam import svm_loss
from dasmil.models.nnmil import column_order
from dasmil.models.psa_mil import PSAMIL
from dasmil.types import Output

pytestmark = pytest.mark.usefixtures("recomputed")
GOLDEN: dict[str, Any] = {
    entry: found
    for name in ("published", "recent")
    for entry, found in json.loads((Path(__file__).parent / f"{name}.json").read_text()).items()
}
CASES = [(entry, case) for entry, found in GOLDEN.items() for case in found.get("cases", {})]


def close(found: Any, expected: Any) -> None:
    found = torch.as_tensor(found, dtype=torch.float64).detach()
    expected = torch.as_tensor(expected, dtype=torch.float64)
    assert found.shape == expected.shape
    assert ((found - expected).abs() / expected.abs().clamp(min=1)).max() < 1e-10


@pytest.fixture(autouse=True)
def _a_logit_for_each_class(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MILModel, "n_logits", property(lambda self: getattr(self, "logits_asked", self.n_classes)))


def options_of(entry: str, case: str) -> tuple[str, dict[str, Any]]:
    """The model's name and its options in this case."""
    return OPTIONS[GOLDEN[entry]["source"]](entry, case, GOLDEN[entry]["options"])


def clam(entry: str, case: str, given: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    options = {"n_classes": given["n_classes"], "dropout": 0.0, "subtyping": case.endswith("subtyping")}
    return entry[:7], {**options, "instance_loss": "svm" if "_svm" in case else "ce"}


def dsmil(entry: str, case: str, given: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    return "dsmil", {"value_layer": given["passing_v"]}


def dtfd(entry: str, case: str, given: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    distil = {"AFS": "afs", "MaxS": "max", "MaxMinS": "max-min", "MAS": "mas"}[case.split("_")[1]]
    return "dtfd-mil", {"split": "blocks", "distil": distil, "kept": 2 if case.endswith("_P2") else 1}


def ilra(entry: str, case: str, given: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    names = {"features": "hidden_feat", "heads": "num_heads", "layers": "num_layers", "rank": "topk", "norm": "ln"}
    return "ilra-mil", {ours: given[theirs] for ours, theirs in names.items()}


def transformer(entry: str, case: str, given: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    names = {"features": "embed_dim", "heads": "num_heads", "layers": "num_attention_layers", "mlp": "encoder_mlp_dim"}
    return "transformer-mil", {ours: given[theirs] for ours, theirs in names.items() if theirs in given}


def stamp(entry: str, case: str, given: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The running mean of distances is our distance_scale; a mask hides the class token from the instances."""
    names = {"features": "dim_model", "heads": "n_heads", "layers": "n_layers", "mlp": "dim_feedforward"}
    alibi = {"alibi": "after", "distance_scale": 57.0} if given["use_alibi"] else {"alibi": "none"}
    return "stamp-vit", {o: given[t] for o, t in names.items()} | alibi | {"token_seen": case.endswith("_nomask")}


def long_mil(entry: str, case: str, given: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    return "long-mil", {"step": 896.0, "local_heads": "first"}


def psa(entry: str, case: str, given: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    decay = {"Gaussian": "gaussian", "Exponential": "exponential", "InverseQuadratic": "inverse-quadratic"}
    return "psa-mil", {"decay": decay[given["decay"]], "layers": given["depth"], "tile": 28.0}


def sm_abmil(entry: str, case: str, given: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    alpha = None if given["sm_alpha"] == "trainable" else given["sm_alpha"]
    options = {"where": given["sm_where"], "mode": given["sm_mode"], "alpha": alpha}
    return "sm-abmil", {**options, "hidden": 16, "radius": 60.0, "swapped": True}


def patch_gcn(entry: str, case: str, given: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    return "patch-gcn", {"features": 16, "n_classes": 4, "neighbours": given["neighbours"]}


def camil(entry: str, case: str, given: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    names = {"heads": "heads", "head_features": "dim_head", "landmarks": "landmarks", "hidden": "pool_dim"}
    options = {ours: given[theirs] for ours, theirs in names.items()}
    return "camil", {**options, "local_features": given["local_attention_dim"], "fusion": "program"}


def wikg(entry: str, case: str, given: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    pool = {"attn": "attention"}.get(given["pool"], given["pool"])
    return "wikg", {"features": 16, "join": given["agg_type"], "pooling": pool, "product_of_sums": True}


def rrt(entry: str, case: str, given: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    names = {"regions": "region_num", "kernel": "epeg_k", "representatives": "crmsa_k", "cross_heads": "crmsa_heads"}
    names |= {"cross_mlp": "crmsa_mlp", "shortcut": "all_shortcut"}
    return "rrt-mil", {ours: given[theirs] for ours, theirs in names.items() if theirs in given}


def mean_mlp(entry: str, case: str, given: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    return "mean-mlp", {"hidden": given["hidden"]}


def feather(entry: str, case: str, given: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    return "feather", {"features": given["embed_dim"], "hidden": given["attn_dim"]}


def acmil(entry: str, case: str, given: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    return "acmil", {"attention": "gated" if entry == "acmil-ga" else "heads", "branches": given["n_token"]}


def aem(entry: str, case: str, given: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    return "aem", {"attention": "gated" if entry == "aem-abmil" else "heads", "entropy_weight": given["lambda"]}


def nnmil(entry: str, case: str, given: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    options = {"windows": 1 if case.endswith("_eval1") else 4, "select": not case.endswith("_plain")}
    return "nnmil", {"hidden": given["hidden_dim"], "dropout": 0.0, **options}


def abmilx(entry: str, case: str, given: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    options = {"heads": given["n_heads"], "norm": given["mil_norm"] == "ln", "mlp": given["ffn"]}
    options |= {"bias": given["mil_bias"], "shared": "attn_plus_embed_new" not in given}
    return "abmilx", {**options, "features": given["inner_dim"]}


def gabmil(entry: str, case: str, given: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    mixing = "both" if "both" in entry else "grid" if "grid" in entry else "block"
    return "gabmil", {"mixing": mixing, "window": int(entry[-1]), "tile": 1024.0}


def snuffy(entry: str, case: str, given: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    return "snuffy", {"heads": given["num_heads"], "chosen": given["big_lambda"], "layers": given["depth"]}


def mamba(entry: str, case: str, given: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    second = {"Mamba": "none", "BiMamba": "reversed", "SRMamba": "reordered"}[given["type"]]
    rate = {"rate": int(case.split("rate")[1])} if "rate" in case else {}
    return "mamba-mil", {"features": given["d_model"], "layers": given["layer"], "second": second, **rate}


def mamba_2d(entry: str, case: str, given: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    grid = {"tile": 512.0, "height": 13, "width": 17}
    return "2dmamba-mil", {"features": given["mambamil_dim"], "layers": given["layers"], **grid}


def span(entry: str, case: str, given: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    return "span", {"heads": given["heads"], "tile": 224.0, "as_published": True, "dropout": 0.0}


def dgr(entry: str, case: str, given: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    return "dgr-mil", {"features": given["L"], "vectors": given["n_lesion"], "dropout": 0.0}


OPTIONS = {
    "clam": clam, "dsmil": dsmil, "dtfd": dtfd, "ilra": ilra, "transformer-mil-lab": transformer, "stamp": stamp,
    "long-mil": long_mil, "psa": psa, "sm-abmil": sm_abmil, "patch-gcn": patch_gcn, "camil": camil, "wikg": wikg,
    "rrt": rrt, "simlp": mean_mlp, "feather": feather, "acmil": acmil, "aem": aem, "nnmil": nnmil, "abmilx": abmilx,
    "gabmil": gabmil, "snuffy": snuffy, "mambamil": mamba, "2dmamba": mamba_2d,
    "span": span, "dgr-mil": dgr,
}  # fmt: skip


def bag(entry: str, case: str) -> tuple[Tensor, Tensor]:
    n, features = GOLDEN[entry]["cases"][case]["n"], inputs_of(entry)
    i, j = torch.arange(n, dtype=torch.float64), torch.arange(features, dtype=torch.float64)
    x = torch.sin(0.7 * i[:, None] + 0.3 * j + 0.1 * i[:, None] * j)
    if GOLDEN[entry]["source"] in TILE:
        row, column = 7 * i % 13, (3 * i + 4 * (i // 13)) % 17
        if GOLDEN[entry]["source"] == "span":  # its first axis is the row of the others
            row, column = (i // 6, i % 6) if case.endswith("_block") else (column, row)
        return x, torch.stack([column, row], dim=1) * TILE[GOLDEN[entry]["source"]] + 300
    coords = torch.stack([128 + 90 * torch.sin(1.3 * i), 128 + 90 * torch.cos(2.1 * i)], dim=1)
    return x, coords * (64 if case.endswith("_far") else 40 if case.endswith("_near") else 1)


TILE = {"gabmil": 1024, "2dmamba": 512, "span": 224}
"""Pixels of a cell of models that read a grid."""


def inputs_of(entry: str) -> int:
    return {"camil": 512, "span": 256}.get(entry, 32)


def one_logit(entry: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if entry.endswith("1logit") or GOLDEN[entry]["source"] in ("psa", "camil", "sm-abmil", "snuffy"):
        monkeypatch.setattr(MILModel, "logits_asked", 1, raising=False)


def model_by_formula(entry: str, case: str, monkeypatch: pytest.MonkeyPatch) -> MILModel:
    name, options = options_of(entry, case)
    one_logit(entry, monkeypatch)
    model = create_model(name, in_features=inputs_of(entry), **options).double().eval()
    parameters = dict(model.named_parameters())
    filled: dict[str, int] = {}
    for t, (place, shape) in enumerate(GOLDEN[entry]["parameters"]):
        fan = math.prod(shape[1:]) if len(shape) >= 2 else 1
        if place == "-":  # what the program has and never uses
            continue
        values = torch.sin(0.37 * torch.arange(math.prod(shape), dtype=torch.float64) + t + 1) / math.sqrt(fan)
        if place in GOLDEN[entry].get("exceptions", {}):
            values = torch.tensor(GOLDEN[entry]["exceptions"][place], dtype=torch.float64)
        if place.endswith("^T"):
            values = values.view(shape).T
        names = place.removesuffix("^T").split("|")
        for own, part in zip(names, values.reshape(-1).chunk(len(names)), strict=True):
            own, _, number = own.partition("@")
            if case.endswith("_plain") and ".gate." in own:  # nnMIL's gate, which this case does not use
                continue
            start = int(number or 0) * part.numel()
            with torch.no_grad():
                parameters[own].view(-1)[start : start + part.numel()] = part
            filled[own] = filled.get(own, 0) + part.numel()
    assert filled == {name: p.numel() for name, p in parameters.items()}
    return model.train() if case.endswith(("_masked", "_train")) else model


def draw_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """What training cases drew: 0, 1, 2, ... instead of random numbers, the columns (5 k) mod 32."""
    in_order = lambda shape, like: torch.arange(shape[-1]).expand(*shape).to(like)  # noqa: E731
    monkeypatch.setattr("dasmil.models.acmil.uniform", in_order)
    monkeypatch.setattr("dasmil.models.nnmil.some", lambda n, count: 5 * torch.arange(count) % n)


def run(entry: str, case: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Output, Tensor, Tensor]:
    """The output, the gradient of the logit of class 1, and the features."""
    features, coords = bag(entry, case)
    features.requires_grad_()
    draw_in_order(monkeypatch)
    output = model_by_formula(entry, case, monkeypatch)(features, coords)
    logit = output.logit.reshape(-1)
    (gradient,) = torch.autograd.grad(logit[min(1, len(logit) - 1)], features, retain_graph=True)
    return output, gradient, features


NOT_THE_SCORES = {("acmil", "attention_raw"), ("aem", "attention_raw"), ("dsmil", "attention"), ("abmilx", "attention"),
                  ("snuffy", "attention"), ("dgr-mil", "attention")}  # fmt: skip
"""Attention of branches, heads or classes, of which the scores are a mean: tested with the model."""


@pytest.mark.parametrize(("entry", "case"), CASES)
def test_output_and_gradient(entry: str, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = GOLDEN[entry]["cases"][case]
    output, gradient, _ = run(entry, case, monkeypatch)
    close(output.logit.reshape(-1), expected["logits"])
    if "grad_norm" in expected:
        close(gradient.norm(), expected["grad_norm"])
        close(gradient[0, :4], expected["grad_first_row"])
        close(gradient[-1, :4], expected["grad_last_row"])
    for name in ("attention_raw", "pool_attention", "bag_attention", "attention", "attention_mean_over_chunks"):
        if name in expected and (GOLDEN[entry]["source"], name) not in NOT_THE_SCORES:
            weights = torch.tensor(expected[name], dtype=torch.float64)
            weights = weights.softmax(-1) if name == "attention_raw" else weights
            if weights.ndim == 2:  # one row for each branch
                weights = weights[0 if len(weights) == 1 else int(output.logit.argmax())]
            close(output.instance_scores, weights)


@pytest.mark.parametrize(("entry", "case"), [(e, c) for e, c in CASES if e.startswith("clam")])
def test_instance_loss_of_clam(entry: str, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    output, _, _ = run(entry, case, monkeypatch)
    assert output.label_losses is not None
    label = int(case.split("label")[1][0])
    close(output.label_losses[label] / 0.3, GOLDEN[entry]["cases"][case]["instance_loss"])
    assert output.bag_weight == 0.7


def test_smooth_svm() -> None:
    given = GOLDEN["smooth-top1-svm"]
    losses = svm_loss(torch.tensor(given["logits"], dtype=torch.float64), torch.tensor(given["labels"]))
    close(losses.mean(), given["loss"])


@pytest.mark.parametrize(("entry", "case"), [(e, c) for e, c in CASES if e.startswith("dsmil")])
def test_two_streams_of_dsmil(entry: str, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = GOLDEN[entry]["cases"][case]
    output, _, _ = run(entry, case, monkeypatch)
    assert output.side_logits is not None
    close(output.side_logits.reshape(-1), expected["max_logits"])
    close(output.instance_scores, torch.tensor(expected["attention"], dtype=torch.float64).mean(-1))
    target = torch.tensor([0.0, 1.0] if len(expected["logits"]) == 2 else [1.0], dtype=torch.float64)
    losses = [F.binary_cross_entropy_with_logits(z.reshape(-1), target) for z in (output.logit, output.side_logits)]
    close(output.bag_weight * losses[0] + output.side_weight * losses[1], expected["loss_label1"])


@pytest.mark.parametrize(("entry", "case"), [(e, c) for e, c in CASES if e.startswith("dtfd")])
def test_two_tiers_of_dtfd(entry: str, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = GOLDEN[entry]["cases"][case]
    output, _, _ = run(entry, case, monkeypatch)
    assert output.side_logits is not None
    close(output.side_logits, expected["tier1_logits"])
    one = torch.ones(4, dtype=torch.int64)
    close(F.cross_entropy(output.side_logits, one, reduction="sum") * output.side_weight, expected["loss1_label1"])
    close(F.cross_entropy(output.logit[None], one[:1]), expected["loss2_label1"])


@pytest.mark.parametrize(("entry", "case"), [(e, c) for e, c in CASES if e.startswith("psa")])
def test_lengths_of_psa(entry: str, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = GOLDEN[entry]["cases"][case]
    features, coords = bag(entry, case)
    model = model_by_formula(entry, case, monkeypatch)
    assert isinstance(model, PSAMIL)
    output = model(features, coords)
    assert [row["neighbours"] for row in model.learned_radii()] == expected["local_count"]
    close(output.aux_loss, -0.001 * expected["diversity_entropy"])
    if "grad_lambda" in expected and GOLDEN[entry]["options"]["depth"] == 1:
        share = model.get_parameter("aggregator.blocks.0.attention.share")
        close(torch.autograd.grad(output.logit, share)[0], expected["grad_lambda"])
    name, options = options_of(entry, case)
    fresh = create_model(name, in_features=32, **options).get_parameter("aggregator.blocks.0.attention.share")
    assert fresh.tolist() == pytest.approx(GOLDEN[entry]["init_lambda"], abs=1e-6)


def of_source(source: str) -> list[tuple[str, str]]:
    return [(entry, case) for entry, case in CASES if GOLDEN[entry]["source"] == source]


def numbers(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


ONE = torch.tensor([1])


@pytest.mark.parametrize(("entry", "case"), of_source("acmil"))
def test_branches_of_acmil(entry: str, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = GOLDEN[entry]["cases"][case]
    output, _, features = run(entry, case, monkeypatch)
    assert output.side_logits is not None
    assert output.aux_loss is not None
    close(output.side_logits, expected["branch_logits"])
    close(output.aux_loss, expected["diversity_loss"])
    sides = F.cross_entropy(output.side_logits, ONE.expand(5), reduction="sum")
    close(F.cross_entropy(output.logit[None], ONE) + output.side_weight * sides + output.aux_loss,
          expected["loss_label1"])  # fmt: skip
    aggregator: Any = model_by_formula(entry, case, monkeypatch).aggregator
    if "masked_instances" in expected:
        shown = torch.ones(5, len(features), dtype=torch.bool)
        shown.scatter_(1, torch.tensor(expected["masked_instances"]), False)
        scores = hide_strongest(aggregator.attend(features, None)[1], 10, 0.6)
        assert torch.equal(scores > float("-inf"), shown)
    elif entry == "acmil-ga":
        close(aggregator.attend(features, None)[1], expected["attention_raw"])
    else:
        close(aggregator.scores(aggregator.enter(features).relu(), None), expected["attention_raw"])
        close(output.instance_scores, numbers(expected["attention_raw"]).softmax(-1).mean((0, 1)))


@pytest.mark.parametrize(("entry", "case"), of_source("aem"))
def test_entropy_of_aem(entry: str, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = GOLDEN[entry]["cases"][case]
    output, _, _ = run(entry, case, monkeypatch)
    assert output.aux_loss is not None
    close(output.aux_loss / 0.1, expected["negative_entropy"])
    close(F.cross_entropy(output.logit[None], ONE) + output.aux_loss, expected["loss_label1_lambda0.1"])
    scores = numbers(expected["attention_raw"]).softmax(-1)
    close(output.instance_scores, scores if scores.ndim == 1 else scores.mean(0))


@pytest.mark.parametrize(("entry", "case"), of_source("abmilx"))
def test_heads_of_abmilx(entry: str, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    features, _ = bag(entry, case)
    aggregator: Any = model_by_formula(entry, case, monkeypatch).aggregator
    close(aggregator.attend(features, None)[1], GOLDEN[entry]["cases"][case]["attention"])


@pytest.mark.parametrize(("entry", "case"), [(e, c) for e, c in of_source("nnmil") if "_eval" in c])
def test_windows_of_nnmil(entry: str, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = GOLDEN[entry]["cases"][case]
    model: Any = model_by_formula(entry, case, monkeypatch)
    assert list(column_order(32)) == GOLDEN[entry]["permutation_of_the_columns_cpu_seed42"]
    p = model.window_logits(*bag(entry, case)).softmax(-1)
    assert len(p) == expected["chunks"]
    close(p.var(0), expected["variance_of_probabilities"])
    close(torch.special.entr(p.mean(0)).sum() - torch.special.entr(p).sum(-1).mean(), expected["mutual_information"])


@pytest.mark.parametrize(("entry", "case"), of_source("snuffy"))
def test_two_streams_of_snuffy(entry: str, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = GOLDEN[entry]["cases"][case]
    output, _, features = run(entry, case, monkeypatch)
    assert output.side_logits is not None
    aggregator: Any = model_by_formula(entry, case, monkeypatch).aggregator
    logits = aggregator.instances(features)
    close(logits.squeeze(-1), expected["instance_logits"])
    x, chosen = features, aggregator.chosen(logits)
    for layer in aggregator.layers[:-1]:
        x = layer(x, chosen)
    weights, written = aggregator.layers[-1].attention.weights(x, chosen), numbers(expected["attention"])
    close(weights.transpose(0, 1).sort(-1).values, written.sort(-1).values)
    loss = [F.binary_cross_entropy_with_logits(z, torch.ones_like(z)) for z in (output.logit[None], output.side_logits)]
    close(output.bag_weight * loss[0] + output.side_weight * loss[1], expected["loss_label1"])
    close((output.logit.sigmoid() + output.side_logits.sigmoid().squeeze()) / 2, expected["probability"])


@pytest.mark.parametrize(("entry", "case"), of_source("feather"))
def test_slide_features_of_feather(entry: str, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    features, coords = bag(entry, case)
    model = model_by_formula(entry, case, monkeypatch)
    found = model.aggregator(features, coords, None, None).embedding
    close(found[:8], GOLDEN[entry]["cases"][case]["slide_features_first8"])


@pytest.mark.parametrize(("entry", "case"), of_source("2dmamba"))
def test_cells_of_2dmamba(entry: str, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention is over all cells: scores of the instances are known up to the same sum."""
    expected = GOLDEN[entry]["cases"][case]
    output, _, _ = run(entry, case, monkeypatch)
    assert output.instance_scores is not None
    raw = numbers(expected["attention_raw_of_instances"])
    close(output.instance_scores.log() - output.instance_scores[0].log(), raw - raw[0])
    assert expected["attention_raw_of_cell_0_0"] == expected["attention_raw_of_instances"][0]
    assert float(output.instance_scores.detach().sum()) < len(raw) / (13 * 17) * 1.1


@pytest.mark.parametrize(("entry", "case"), of_source("span"))
def test_stages_of_span(entry: str, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The logits of the large entry hardly depend on the windows; what the stages give does."""
    expected = GOLDEN[entry]["cases"][case]
    features, coords = bag(entry, case)
    aggregator: Any = model_by_formula(entry, case, monkeypatch).aggregator
    cells = ((coords - coords.amin(0)) / 224).round().long()
    order = (cells[:, 0] * 100 + cells[:, 1]).argsort()
    stages = aggregator.stages(features[order], cells[order])
    assert [len(tokens.x) for tokens, _, _ in stages] == expected["tokens_per_stage"]
    close(torch.cat([g for _, g, _ in stages])[:, :4], expected["global_token_first4_per_stage"])
    tokens = stages[-1][0]
    assert tokens.cells.tolist() == expected["last_stage_cells"]
    first4 = numbers(expected["last_stage_first4"])
    close(tokens.x[: len(first4), :4] if len(first4) == len(tokens.x) else tokens.x[:3, :4], first4)


@pytest.mark.parametrize(("entry", "case"), of_source("dgr-mil"))
def test_vectors_of_dgr_mil(entry: str, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = GOLDEN[entry]["cases"][case]
    output, _, features = run(entry, case, monkeypatch)
    aggregator: Any = model_by_formula(entry, case, monkeypatch).aggregator
    x, lesions = aggregator.phi(features), aggregator.phi(aggregator.vectors)
    close(aggregator.diversity(lesions), expected["diversity_loss"])
    close(aggregator.triplet(lesions, aggregator.centres), expected["triplet_loss"])
    close(output.aux_loss, 0.1 * expected["diversity_loss"])
    bag_loss = F.binary_cross_entropy_with_logits(output.logit, numbers([0.0, 1.0]))
    close(bag_loss + 0.1 * (expected["diversity_loss"] + expected["triplet_loss"]), expected["loss_label1"])
    moved = 0.4 * aggregator.centres[1] + 0.6 * x.mean(0)
    close(moved[:4], expected["positive_centre_after_first4"])
    assert output.label_losses is not None
    centres = torch.stack([aggregator.centres[0], moved])
    close(output.label_losses[1], 0.1 * aggregator.triplet(lesions, centres))
    close(output.instance_scores, expected["attention"][0])


COUNTED = [(entry, key) for entry, found in GOLDEN.items() for key in found.get("counts", {})]


@pytest.mark.parametrize(("entry", "key"), COUNTED)
def test_parameter_counts(entry: str, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The published sizes, at two classes with a logit each."""
    given = GOLDEN[entry]
    name, options = options_of(entry, next(iter(given["cases"])))
    one_logit(entry, monkeypatch)
    kept = ("value_layer", "alibi", "join", "pooling", "kernel", "representatives", "cross_mlp", "attention", "shared")
    kept += ("norm", "mlp", "bias", "heads", "mixing", "window") if given["source"] in ("abmilx", "gabmil") else ()
    kept += ("second",) if given["source"] == "mambamil" else ("layers",) if given["source"] == "2dmamba" else ()
    options = {k: v for k, v in options.items() if k in kept}
    if "mlp2048" in key:
        options["mlp"] = 2048
    size = int(key.removeprefix("in").split("_")[0])
    model = create_model(name, in_features=size, **options)
    left_out = model.classifier if key.endswith("without_classifier") else torch.nn.Module()
    found = sum(p.numel() for p in model.parameters()) - sum(p.numel() for p in left_out.parameters())
    assert found == given["counts"][key]
