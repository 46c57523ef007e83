"""What a bag file says beside its arrays: attributes that others read must be of the kind that they are read as."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from dasmil.errors import DataError, shown

# Other names are kept as they are: nobody here counts on them.
_NUMBERS = ("tile_um", "mpp", "tile_px", "collage_px", "threshold_px", "slide_width_px", "slide_height_px")
_LISTS = ("slides", "feature_names", "instance_label_names", "section_names", "targets")


def described(path: Path, attributes: dict[str, Any]) -> dict[str, Any]:
    """The attributes as they are, if those that are known by name are numbers or lists as they should be."""
    for name in _NUMBERS:
        value = attributes.get(name)
        if value is None:
            continue
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not math.isfinite(value) or value <= 0:
            raise DataError(f"{path}: {name} is {shown(value)}, expected a positive number; write the bag again")
    for name in _LISTS:
        value = attributes.get(name)
        plain = isinstance(value, list | tuple) and all(isinstance(item, str | int | float) for item in value)
        if value is not None and not plain:
            raise DataError(f"{path}: {name} is {shown(value)}, expected a list of names; write the bag again")
    return attributes


def json_names(path: Path, attributes: dict[str, Any]) -> list[str]:
    """The names of the attributes that are kept as JSON."""
    text = attributes.get("json_attributes", "[]")
    try:
        names = json.loads(text)
        if isinstance(names, list):
            return [str(name) for name in names]
    except (TypeError, ValueError, RecursionError):
        pass
    raise DataError(f"{path}: attribute 'json_attributes' is {shown(text)}, expected a JSON list of attribute names")
