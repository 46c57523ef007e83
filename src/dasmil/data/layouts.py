"""The layouts in which feature files can be written."""

from __future__ import annotations

from typing import Literal

Format = Literal["dasmil", "stamp", "trident", "clam"]
