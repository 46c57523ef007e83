"""What all models of a table in the paper have in common; what is theirs alone stands in each model's ``presets``."""

from __future__ import annotations

import math
from typing import Any

PRESETS: dict[str, dict[str, Any]] = {
    # Collages of 256 x 256 px; distances are divided by their diagonal.
    "mnist-collage": {"encoder": "mnist-cnn", "distance_scale": 256 * math.sqrt(2), "unit": "px"},
    # CTransPath features. The distance scale is left to the data: the published constant is an unexplained one.
    "camelyon16": {"in_features": 768, "unit": "um"},
}
