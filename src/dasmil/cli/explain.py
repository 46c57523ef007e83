"""`dasmil explain`: which instances, at which distances, decided."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from dasmil.cli.cohort_arguments import BagArguments

app = App(name="explain", help="Explain a prediction: which instances decided, at which distances?")
Flag = Annotated[bool, Parameter(negative="")]


@app.default
def explain(
    *run: Path,
    bag: str | None = None,
    slide: Path | None = None,
    data: str | None = None,
    protocol: str = "clean",
    split: str | None = None,
    index: int | None = None,
    output: Annotated[Path | None, Parameter(name=["--output", "-o"])] = None,
    seed: int | None = None,
    score: str = "contribution",
    method: str = "auto",
    target: int | None = None,
    attention: bool | None = None,
    top: int = 100,
    distances: Flag = False,
    space_test: Flag = False,
    key_instances: Flag = False,
    faithfulness: Flag = False,
    annotations: Path | None = None,
    annotation_class: str | None = None,
    gradient_bags: int = 0,
    limit: int | None = None,
    mnist_dir: Path | None = None,
    json: Flag = False,
    cohort: BagArguments = BagArguments(),  # noqa: B008
) -> int:
    """Explain one bag, or ask a whole run what it learned.

    Example: dasmil explain runs/mine --bag slide1.h5 --slide slide1.svs -o out/

    Example: dasmil explain runs/mine --bag patient-17

    One bag gives a page (explanation.html) with map, pairs and distances, and the same as PNG, CSV, JSON and GeoJSON
    (for QuPath).
    Further questions: --distances, --space-test, --key-instances, --annotations.
    --bags gives other bags than those of the run: to find --bag in, or with --labels for --space-test. They are read as
    the run's own were (columns, features, classes); what is given here counts before that.

    Parameters
    ----------
    run
        Run directory of dasmil train, or a model file; with --key-instances several, or folders of runs.
    bag
        The bag to explain: its feature file, or its name in the run's predictions.csv (so a patient with all slides, or
        a bag of a table of cells), or its name among those of --bags.
    slide
        The slide of the bag, for the picture under the map. Without it the map has a plain background.
    data
        Instead of --bag: a built-in data set (default: that of the run), with --split and --index.
    protocol
        Protocol of the built-in data set.
    split
        Split of the built-in data set (default: test; test-large for --space-test and --key-instances).
    index
        Number of the bag in the split, from 0.
    output
        Folder for the files (default for one bag: explanation-BAG); other questions write files only when it is given.
    seed
        Seed of the model (default: the first). In a cross-validation, the fold that did not train on the bag explains
        it.
    score
        Score on the map: contribution, pairs, support, distance, taken, attention or winner-attention.
    method
        auto, exact or integrated-gradients.
    target
        Class to explain (default: 1, or the predicted one of several).
    attention
        Also compute the attention that every instance receives from all others (default: up to 20,000 instances).
    top
        Pairs to list.
    distances
        Print and plot the learned distances of all seeds.
    space_test
        Shuffle, scale, rotate and mirror the coordinates of labelled bags and compare AUROC; on a cohort of your own
        this opens its locked test set, which is counted; each fold of a cross-validation scores its test bags.
    key_instances
        AUROC of the instance scores against known key instances. Runs that are in --output already are skipped.
        Your own cohort needs files with a dataset key_instances; its locked test set is opened and counted.
    faithfulness
        Remove instances in the order of their contributions and ask the model again, for up to 50 bags that were held
        out (--limit: another number): a page with flipping curves and a CSV, in --output (default: faithfulness).
    annotations
        Folder of annotations named after their slides (QuPath's GeoJSON, ASAP's XML, CSV points): AUROC, Dice and FROC
        of the scores of all bags that the run has scored, each by a model that did not train on it; kept with the run
        and in its report.
    annotation_class
        With --annotations: classes that count, separated by commas; default all.
    gradient_bags
        With --key-instances: score integrated gradients too, on this many bags (slow).
    limit
        With --space-test, --key-instances, --faithfulness and --annotations: only the first this many bags.
    mnist_dir
        Folder with the four MNIST idx files.
    json
        Print the result as JSON.
    """
    from dasmil.cli import explain_questions as ask
    from dasmil.cli.display import say
    from dasmil.errors import InputError
    from dasmil.study.explaining import make_folder
    from dasmil.study.questions import LabelledBags

    if not run:
        raise InputError("no run was given: dasmil explain RUN --bag slide1.h5, see dasmil explain --help")
    first, *others = run
    if others and not key_instances:
        raise InputError(f"{len(run)} runs were given, but only --key-instances takes several: name one")
    asked = [name for name, wanted in (("--distances", distances), ("--space-test", space_test),
             ("--key-instances", key_instances), ("--faithfulness", faithfulness),
             ("--annotations", annotations is not None), ("--bag", bag is not None)) if wanted]  # fmt: skip
    if len(asked) > 1:
        raise InputError(f"{' and '.join(asked)} ask different questions: give one of them")
    if output is not None and (distances or space_test or key_instances or annotations):
        make_folder(output)
    if distances:
        return ask.distances(first, output, json)
    source = LabelledBags(data, protocol, split, cohort, limit, mnist_dir, say)
    if space_test:
        return ask.space(first, source, output, json)
    if key_instances:
        from dasmil.cli.explain_keys import keys

        return keys(run, source, gradient_bags, output, json)
    if faithfulness:
        from dasmil.cli.explain_faithfulness import ask_faithfulness

        return ask_faithfulness(first, seed, limit, mnist_dir, output, json)
    if annotations is not None:
        from dasmil.cli.explain_annotations import against_annotations

        return against_annotations(first, annotations, annotation_class, seed, limit, mnist_dir, output, json)
    wanted = True if score == "attention" else attention
    options = {"method": method, "target": target, "top": top, "attention": wanted}
    return ask.one_bag(first, bag, index, source, seed, slide, output, score, json, options)
