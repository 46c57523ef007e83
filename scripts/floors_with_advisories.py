"""Lists the lower bounds of pyproject.toml that let in a version with a known advisory; exit code 1 if there are any.

    python scripts/floors_with_advisories.py [pyproject.toml]

The table is kept by hand, because nothing here asks the network. It has what matters to a user of this package; a tool
with a data base of advisories (pip-audit) knows more.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

FIXED = {
    "jinja2": ("3.1.6", "CVE-2025-27516, leaving the sandbox of a template"),
    "numcodecs": ("0.16.6", "arrays of others could unpickle"),
    "pillow": ("11.3", "CVE-2025-48379, writing behind a buffer"),
    "pyarrow": ("14.0.1", "CVE-2023-47248, code from a file"),
    "scikit-learn": ("1.5", "CVE-2024-5206, training text kept in a model"),
    "setuptools": ("78.1.1", "CVE-2025-47273, writing outside the folder"),
    "starlette": ("0.49.1", "CVE-2025-62727, a header that takes all time"),
    "torch": ("2.10", "CVE-2025-32434 and later reports, weights_only was bypassed"),
}
"""Package -> the first version without the advisories that we know, and the latest of them."""


def too_low(project: Path) -> Iterator[str]:
    """A line for every requirement whose floor is below the first fixed version."""
    declared = tomllib.loads(project.read_text(encoding="utf-8"))
    extras = declared["project"].get("optional-dependencies", {})
    texts = [*declared["build-system"]["requires"], *declared["project"]["dependencies"]]
    texts += [text for extra in extras.values() for text in extra]
    for text in dict.fromkeys(texts):
        wanted = Requirement(text)
        name = re.sub(r"[-_.]+", "-", wanted.name).lower()
        if name not in FIXED:
            continue
        floors = [Version(part.version) for part in wanted.specifier if part.operator in (">=", "==", "~=")]
        fixed, why = FIXED[name]
        if max(floors, default=Version("0")) < Version(fixed):
            yield f"{text}: versions before {fixed} have {why}"


if __name__ == "__main__":
    found = list(too_low(Path(sys.argv[1] if len(sys.argv) > 1 else "pyproject.toml")))
    print("\n".join(found) or "no floor lets in a version with an advisory that we know")
    sys.exit(bool(found))
