"""Write requirements.lock: every package of the documented install, with the hashes of all files of that version.

usage: python scripts/lock_requirements.py (asks the package index; in the environment whose versions were tested, on
Linux x86-64, where torch needs the most further packages)
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

from packaging.utils import InvalidSdistFilename, InvalidWheelFilename, canonicalize_name, parse_sdist_filename
from packaging.utils import parse_wheel_filename as parse_wheel
from packaging.version import InvalidVersion, Version
from pip._internal.models.index import PyPI

HERE = Path(__file__).resolve().parents[1]
EXTRAS = "slides,timm,tables,search"
LINUX_ONLY = ("nvidia-", "cuda-", "triton")
LINK = re.compile(r'href="[^"#]*?([^"/#]+)#sha256=([0-9a-f]{64})"')
PIP = [sys.executable, "-m", "pip", "--isolated"]


def resolved() -> dict[str, Version]:
    """The packages that pip would install, held to the versions of this environment."""
    frozen = subprocess.run([*PIP, "freeze", "--exclude-editable"], check=True, capture_output=True, text=True).stdout
    with tempfile.TemporaryDirectory() as folder:
        held, report = Path(folder, "held.txt"), Path(folder, "report.json")
        held.write_text("\n".join(line.partition("+")[0] for line in frozen.splitlines() if "==" in line))
        plan = ["install", "--dry-run", "--ignore-installed", "--quiet", "--report", str(report), "-c", str(held)]
        subprocess.run([*PIP, *plan, f"{HERE}[{EXTRAS}]"], check=True)
        found = [one["metadata"] for one in json.loads(report.read_text())["install"]]
    return {canonicalize_name(one["name"]): Version(one["version"]) for one in found if one["name"] != "dasmil"}


def version_of(file: str) -> Version | None:
    """The version that the name of a file says."""
    try:
        return parse_wheel(file)[1] if file.endswith(".whl") else parse_sdist_filename(file)[1]
    except (InvalidWheelFilename, InvalidSdistFilename, InvalidVersion):
        return None


def hashes(name: str, version: Version) -> list[str]:
    """The SHA-256 of all files of a version in the index."""
    with urllib.request.urlopen(f"{PyPI.simple_url}/{name}/", timeout=60) as reply:
        links = LINK.findall(reply.read().decode())
    found = sorted({digest for file, digest in links if version_of(file) == version})
    if not found:
        raise SystemExit(f"the index has no hashed file of {name} {version}")
    return found


def main() -> None:
    lines = ["# Written by scripts/lock_requirements.py: the tested versions, with the hashes of all their files."]
    lines += [f"# dasmil[{EXTRAS}]: pip install --require-hashes -r requirements.lock"]
    for name, version in sorted(resolved().items()):
        where = ' ; sys_platform == "linux"' if name.startswith(LINUX_ONLY) else ""
        lines.append(
            " \\\n    ".join([f"{name}=={version}{where}", *(f"--hash=sha256:{h}" for h in hashes(name, version))])
        )
    (HERE / "requirements.lock").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
