"""Which cells the tables have, and that each is what the paper's row says."""

from __future__ import annotations

import pytest

from dasmil.errors import InputError
from dasmil.models import create_model
from dasmil.paper.cells import (
    ABLATIONS,
    DATASETS,
    DISTANCE_ROWS,
    FIELD_ROWS,
    TABLE_MODELS,
    make_cell,
    table_cells,
    table_rows,
)
from dasmil.paper.tables import expected

OURS = ("fixed-phi", "identity-phi", "self-pair", "disc-rel-sa")  # rows without printed figures


def model_of(row: str):
    plan = make_cell("ablations", row, "mnist-collage", "published").plan()
    return create_model(plan["model"], preset=plan["preset"], **plan["options"])


def test_the_collage_table_has_every_model_on_both_sets_with_five_seeds() -> None:
    cells = table_cells("collage", "published")
    assert {(c.row, c.dataset) for c in cells} == {(m, d) for m in (*TABLE_MODELS, *DISTANCE_ROWS) for d in DATASETS}
    assert len(cells) == 40
    assert all(c.seeds == (0, 1, 2, 3, 4) for c in cells)
    assert [c.row for c in cells[:4:2]] == ["das-mil", "sa"]
    assert [c.row for c in cells[-10::2]] == ["transmil", "sa-alibi", "sa-rope", "sa-bias", "das-mil-radius"]


@pytest.mark.parametrize("table", ["collage", "tuned"])
def test_other_ways_to_tell_distance_are_trained_as_the_model_that_they_change(table: str) -> None:
    plans = {
        row: make_cell(table, row, "mnist-collage", "published").plan() for row in (*DISTANCE_ROWS, "sa", "das-mil")
    }
    for row, base in (("sa-alibi", "sa"), ("sa-rope", "sa"), ("sa-bias", "sa"), ("das-mil-radius", "das-mil")):
        assert plans[row]["training"] == plans[base]["training"]
        assert plans[row]["seeds"] == [0, 1, 2, 3, 4]
    assert plans["sa-bias"]["options"] == {**plans["sa"]["options"], "bias": "bins", "bias_init": 0.0}
    assert plans["das-mil-radius"]["options"] == {**plans["das-mil"]["options"], "radius": 128.0}


def test_published_models_are_trained_as_self_attention_in_the_tuned_table_alone() -> None:
    assert table_rows("tuned") == (*table_rows("collage"), *FIELD_ROWS)
    sa = make_cell("tuned", "sa", "mnist-collage", "published").plan()
    for row in FIELD_ROWS:
        plan = make_cell("tuned", row, "mnist-collage", "published").plan()
        assert (plan["model"], plan["options"]) == (row, {})
        assert all(plan[key] == sa[key] for key in ("training", "seeds", "preset"))
    with pytest.raises(InputError, match="row of the table collage"):
        table_cells("collage", "published", rows=["psa-mil"])


def test_every_printed_row_has_a_cell() -> None:
    for metric in ("balanced_accuracy", "auroc"):
        assert set(expected()["collage"][metric]) <= set(table_rows("collage"))
    assert set(table_rows("ablations")) - set(expected()["ablations"]) == set(OURS)
    assert set(expected()["ablations"]) < set(table_rows("ablations"))


@pytest.mark.parametrize("model", TABLE_MODELS)
def test_the_paper_recipe_trains_fifty_epochs_at_the_appendix_settings(model: str) -> None:
    plan = make_cell("collage", model, "mnist-collage", "published").plan()
    assert plan["training"]["epochs"] == 50
    assert plan["training"]["lr"] in (1e-3, 1e-4)
    assert plan["preset"] == "mnist-collage"


def test_the_full_model_of_the_ablations_is_trained_once() -> None:
    assert make_cell("ablations", "kqv", "mnist-collage", "clean") == make_cell(
        "collage", "das-mil", "mnist-collage", "clean"
    )


def test_discrete_distances_are_trained_as_published_and_as_the_equations_say() -> None:
    published = make_cell("collage", "disc-rel-sa", "mnist-collage", "published").plan()
    equations = make_cell("ablations", "disc-rel-sa", "mnist-collage", "published").plan()
    assert published["model"] == equations["model"] == "disc-rel-sa"
    assert published["training"] == equations["training"]
    assert (published["options"], equations["options"]) == ({"qk_twice": True}, {"qk_twice": False})
    assert "qk_twice" not in make_cell("tuned", "disc-rel-sa", "mnist-collage", "published").plan()["options"]


@pytest.mark.parametrize("row", [row for row in ABLATIONS if row != "disc-rel-sa"])
def test_an_ablation_has_the_parameters_of_its_name(row: str) -> None:
    model = model_of(row)
    names = {name.rpartition(".")[2] for name, p in model.named_parameters() if p.requires_grad}
    letters = (
        ""
        if row == "kqv-frozen"
        else "kqv"
        if row in ("fixed-phi", "identity-phi", "self-pair")
        else row.partition("+")[0].partition("-")[0]
    )
    words = {"k": "key_embed", "q": "query_embed", "v": "value_embed"}
    assert {words[c] for c in letters} == names & set(words.values())
    assert ("theta" in names) == ("phi" not in row)
    assert model.config["product_term"] == row.endswith("+product")
    assert (model.config["phi"] == "identity") == (row == "identity-phi")
    assert model.config["self_pair"] == (row == "self-pair")


def test_the_tuned_recipe_is_the_same_for_all_but_for_theta_and_beta() -> None:
    plans = {m: make_cell("tuned", m, "mnist-collage", "published").plan() for m in TABLE_MODELS}
    for key in ("epochs", "schedule", "augment", "feature_dropout"):
        assert len({plan["training"][key] for plan in plans.values()}) == 1
    assert plans["das-mil"]["seeds"] == list(range(10))
    model = create_model("das-mil", preset="mnist-collage", **plans["das-mil"]["options"])
    assert sum(p.numel() for p in model.parameters()) == 17_355


def test_a_wrong_row_names_the_nearest() -> None:
    with pytest.raises(InputError, match="Did you mean 'das-mil'"):
        table_cells("collage", "published", rows=["dasmil"])
    with pytest.raises(InputError, match="row of the table ablations"):
        table_cells("ablations", "published", rows=["sa"])
