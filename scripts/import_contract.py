"""The import rules of docs/architecture.md as a contract of import-linter: an arrow that is not drawn is forbidden.

`lint-imports` finds it by the line `contract_types` of pyproject.toml. To change a rule, change the drawing.
"""

from __future__ import annotations

import re
from pathlib import Path

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, fields, output

NO_ROOMS = ("__main__",)  # the door of `python -m`


def allowed_imports(text: str) -> dict[str, set[str]]:
    """Rooms by what they may import, from lines such as `    nn <- ground floor, ops`."""
    rows = dict(re.findall(r"^    (\w+) +<- (.+)$", text, flags=re.MULTILINE))
    ground = {room for room, names in rows.items() if names in ("(nothing)", "errors")}
    meanings = {"(nothing)": set(), "ground floor": ground, "(all)": set(rows)}
    return {
        room: set().union(*(meanings.get(name, {name}) for name in names.split(", "))) - {room}
        for room, names in rows.items()
    }


class Drawing(Contract):
    """Every import between two rooms is an arrow of the drawing, and every room has a row in it."""

    type_name = "drawing"
    page = fields.StringField()

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        package = str(self.session_options["root_packages"][0])
        allowed = allowed_imports(Path(str(self.page)).read_text(encoding="utf-8"))
        broken = []
        for module in sorted(graph.modules - {package}):
            room = module.split(".")[1]
            if room in NO_ROOMS:
                continue
            if room not in allowed:
                broken.append(f"{module}: the room {room} has no row in {self.page}")
                continue
            for imported in sorted(graph.find_modules_directly_imported_by(module) - {package}):
                other = imported.split(".")[1]
                if other != room and other not in allowed[room]:
                    broken.append(f"{module} -> {imported}")
        return ContractCheck(kept=not broken, metadata={"broken": broken})

    def render_broken_contract(self, check: ContractCheck) -> None:
        output.print(f"Imports that {self.page} does not show:")
        for line in check.metadata["broken"]:
            output.print(f"- {line}")
