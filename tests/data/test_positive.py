"""The positive class: by the usual words, in whatever way they are written."""

from __future__ import annotations

import pytest

from dasmil.data.labels import class_names
from dasmil.data.positive import positive_text


@pytest.mark.parametrize(
    ("negative", "positive"),
    [
        ("nonMSIH", "MSIH"), ("WT", "MUT"), ("WT", "BRAF"), ("Normal", "Tumor"), ("wild-type", "Mutated"),
        ("non-responder", "responder"), ("MSS", "MSI-H"), ("no", "yes"), ("low", "high"), ("0", "1"),
        ("negative", "HER2"), ("benign", "malignant"), ("false", "true"), ("-", "+"), ("no tumour", "tumour"),
        ("a", "b"), ("2", "10"), ("control", "disease"),
    ],
)  # fmt: skip
def test_the_positive_class_is_the_finding(negative: str, positive: str) -> None:
    assert class_names([positive, negative]) == class_names([negative, positive]) == (negative, positive)
    assert class_names([positive, negative], positive=negative) == (positive, negative)


def test_it_is_said_why() -> None:
    assert positive_text(("WT", "MUT")) == "Positive: MUT, by its name (--positive WT for the other)"
    assert positive_text(("0", "1")) == "Positive: 1, the larger number (--positive 0 for the other)"
    assert "only because it is later in the alphabet" in positive_text(("lobular", "tubular"))
    assert positive_text(("a", "b"), "as given") == "Positive: b, as given"
    assert positive_text(("a", "b", "c")) == ""
