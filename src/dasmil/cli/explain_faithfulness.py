"""`dasmil explain RUN --faithfulness`: are the instances with the highest contributions those that the model needs?"""

from __future__ import annotations

import json as json_module
from pathlib import Path


def ask_faithfulness(
    run: Path, seed: int | None, limit: int | None, mnist_dir: Path | None, output: Path | None, json: bool
) -> int:
    """Measure flipping curves, write page and CSV, and print the table of the cohort."""
    from dataclasses import asdict

    from dasmil.cli.display import say
    from dasmil.cli.explain_questions import print_table
    from dasmil.files import finite
    from dasmil.report.faithfulness import verdict_text
    from dasmil.study.faithfulness import faithfulness

    found = faithfulness(run, seed=seed, limit=limit, mnist_dir=mnist_dir, note=say)
    page, table = found.write(output if output is not None else Path("faithfulness"))
    if json:
        cohort = [asdict(one) for one in found.cohort]
        print(json_module.dumps(finite({"cohort": cohort, "page": str(page), "table": str(table)}), indent=2))
        return 0
    print(verdict_text(found.cohort[0]))
    print_table(
        ("order of removal", "gap to random", "95 % interval", "bags"),
        [(one.order, f"{one.gap:+.3f}", f"{one.low:+.3f} to {one.high:+.3f}", str(one.bags)) for one in found.cohort],
    )
    print(table)
    print(page)
    return 0
