"""The locked requirements are those of pyproject.toml, pinned and with hashes, and the container installs them."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PROJECT = Path(__file__).parents[2]
EXTRAS = ("slides", "timm", "tables", "search")


def locked() -> dict[str, tuple[str, list[str]]]:
    """Version and hashes of every package of requirements.lock."""
    text = (PROJECT / "requirements.lock").read_text().replace("\\\n", " ")
    found: dict[str, tuple[str, list[str]]] = {}
    for line in filter(None, (line.partition("#")[0].strip() for line in text.splitlines())):
        name, version = re.match(r"([a-z0-9-]+)==(\S+)", line).groups()  # pyright: ignore[reportOptionalMemberAccess]
        found[name] = (version, re.findall(r"--hash=sha256:([0-9a-f]{64})(?:\s|$)", line))
    return found


def test_every_requirement_is_locked_within_its_range() -> None:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    asked = [*project["dependencies"], *(one for extra in EXTRAS for one in project["optional-dependencies"][extra])]
    known = locked()
    assert len(known) > len(asked)
    for requirement in map(Requirement, asked):
        version, _ = known[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version), (requirement.name, version)
    assert all(hashes for _, hashes in known.values())


def test_torch_is_the_tested_build() -> None:
    pins = (Requirement(line) for line in (PROJECT / "constraints.txt").read_text().splitlines() if "==" in line)
    known = locked()
    assert {pin.name: str(pin.specifier) for pin in pins} == {
        name: f"=={known[name][0]}" for name in ("torch", "torchvision", "triton")
    }


def test_the_container_installs_what_is_locked() -> None:
    assert "--require-hashes -r /src/requirements.lock" in (PROJECT / "Dockerfile").read_text()
