"""`dasmil plan`: what training will cost in time and memory, before it is started."""

from __future__ import annotations

import json as json_module
import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter, Token

from dasmil.cli.cohort_arguments import CohortArguments

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dasmil.data.cohort import Cohort
    from dasmil.data.doctor_tasks import TaskShowing
    from dasmil.data.showing import Showing
    from dasmil.tasks import Task
    from dasmil.train.plan import Measurement, Plan

app = App(name="plan", help="Predict memory and time of training on a cohort.")


def _numbers(_type: Any, tokens: Sequence[Token]) -> list[int]:
    """Whole numbers, one by one or separated by commas."""
    words = [word.strip() for token in tokens for word in token.value.rstrip(", ").split(",")]
    if wrong := [word for word in words if not re.fullmatch(r"[+-]?[0-9]{1,15}", word)]:
        raise ValueError(f"{wrong[0]!r} is no whole number; expected 4000 12000 or 4000,12000")
    return [int(word) for word in words]


@app.default
def plan(
    *,
    cohort: CohortArguments = CohortArguments(),  # noqa: B008
    sizes: Annotated[list[int] | None, Parameter(consume_multiple=True, negative="", converter=_numbers)] = None,
    in_features: int = 768,
    spacing_um: float = 100.0,
    model: str = "das-mil",
    preset: str | None = None,
    recipe: str | None = None,
    seeds: int = 1,
    set: Annotated[list[str] | None, Parameter(name="--set", negative="")] = None,
    memory_gb: float | None = None,
    threads: int | None = None,
    check: Annotated[bool, Parameter(negative="")] = False,
    space: Annotated[bool, Parameter(negative="")] = False,
    auroc: float | None = None,
    c_index: float | None = None,
    event_share: float | None = None,
    against: float | None = None,
    half_width: float | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Predict peak memory and time per epoch for a cohort and a model, and the largest bag that fits.

    A few small bags are trained in processes of their own; their cost is extended to the cohort's bag sizes.

    Example: dasmil plan --bags features/ --labels labels.csv --model das-mil --preset camelyon16

    Example: dasmil plan --auroc 0.8 --event-share 0.3 --half-width 0.05

    Parameters
    ----------
    sizes
        Instead of a cohort: bag sizes, for example --sizes 4000 12000 100000 or --sizes 4000,12000,100000 (with
        --in-features).
    in_features
        Features per instance, with --sizes.
    spacing_um
        Distance of neighbouring instances, with --sizes and a radius (--set radius=...): cost follows the neighbours.
    model
        One of `dasmil models`.
    preset
        Sizes of the model as in the paper: camelyon16.
    recipe
        A set of settings.
    seeds
        Runs that train together.
    set
        Any option of the model or setting of training, as name=value.
    memory_gb
        Memory that may be used; default: what is free now.
    threads
        Threads of PyTorch.
    check
        Also train on the largest bag (random numbers of that size) and print predicted against measured.
    space
        Plan `dasmil space` instead of training: its time, and the smallest differences that the cohort can show.
    auroc
        Plan a study instead of training: the expected AUROC. Prints how many patients it needs (one bag a patient).
    c_index
        The same for an expected C-index.
    event_share
        With --auroc or --c-index: share of patients who are positive, or have the event.
    against
        With --auroc or --c-index: the value to be told from (default: 0.5, chance), at a power of 80 %.
    half_width
        With --auroc or --c-index: in place of --against, half the width that the 95 % interval may have.
    json
        Print the plan as JSON.
    """
    from dasmil.cli.assignments import parse_assignments
    from dasmil.cli.display import Display
    from dasmil.errors import InputError
    from dasmil.study.settings import gather_settings
    from dasmil.train.job import Given, Outline, prepare
    from dasmil.train.plan import make_plan, measure

    if any(given is not None for given in (auroc, c_index, event_share, against, half_width)):
        return _plan_study(auroc, c_index, event_share, against, half_width, json)
    if space:
        return _plan_space(cohort, json)
    _check_sizes(sizes, cohort, in_features, spacing_um)
    chosen = gather_settings(model, recipe, preset, {}, parse_assignments(set or []))
    radius, neighbours = chosen.options.get("radius"), None
    shows: Sequence[Showing | TaskShowing] = []
    told, task = "", None
    if sizes:
        shape: tuple[int, ...] = (in_features,)
        neighbours = None if radius is None else math.pi * (radius / spacing_um) ** 2
    elif cohort.bags is not None:
        from dasmil.data.cohort import bag_sizes

        loaded = cohort.load()
        sizes, shape = bag_sizes(loaded)
        if radius is not None:
            from dasmil.data.distances import neighbours_within

            neighbours = neighbours_within(loaded, radius)
            spacing_um = radius * (math.pi / neighbours) ** 0.5
        task, (shows, told) = loaded.task, _told(loaded)
    else:
        raise InputError("nothing to plan: give --bags FOLDER, or --sizes with numbers of instances")
    outline = Outline(len(sizes), shape, "um", task=None if task is None else task.record())
    given = Given(chosen.preset, chosen.options, chosen.training)
    job = prepare(model, outline, given)
    with Display(quiet=json) as display:
        found = make_plan(
            job, sizes, seeds=seeds, memory_gb=memory_gb, threads=threads, spacing=spacing_um,
            on_probe=lambda number, total: display.line(f"probe {number + 1}/{total}"),
        )  # fmt: skip
    answer = {"model": model, "bags": len(sizes), "largest": max(sizes), "neighbours": neighbours, **found.as_json()}
    answer["shows"] = [part.as_json() for part in shows]
    if check:
        answer["check"] = _compared(found, measure(job, max(sizes), seeds=seeds, threads=threads, spacing=spacing_um))
    if json:
        print(json_module.dumps(answer, indent=2))
        return 0
    counts = f"{min(sizes):,}" if min(sizes) == max(sizes) else f"{min(sizes):,} to {max(sizes):,}"
    print(
        f"{len(sizes):,} bag{'s' if len(sizes) > 1 else ''} of {counts} instances with {_instances(shape)}; "
        f"{model}, {seeds} seed{'s' if seeds > 1 else ''}"
    )
    if neighbours is not None:
        print(f"within the radius   {neighbours:,.0f} instances, of {radius:,g} um around one")
    _print(found, answer.get("check"), told)
    return 0


def _check_sizes(sizes: list[int] | None, cohort: CohortArguments, in_features: int, spacing_um: float) -> None:
    """Refuse sizes that contradict other options or are none."""
    from dasmil.errors import InputError

    if sizes and cohort.bags is not None:
        raise InputError("--sizes and --bags were given: plan for one of them")
    if sizes and min(sizes) < 1:
        raise InputError(f"--sizes has {min(sizes)}, expected bags of at least 1 instance")
    if in_features < 1:
        raise InputError(f"--in-features is {in_features}, expected at least 1")
    if not spacing_um > 0:
        raise InputError(f"--spacing-um is {spacing_um:g}, expected a length above 0")


def _plan_study(
    auroc: float | None,
    c_index: float | None,
    event_share: float | None,
    against: float | None,
    half_width: float | None,
    json: bool,
) -> int:
    """How many patients a study of an AUROC or a C-index needs."""
    import dataclasses

    from dasmil.errors import InputError
    from dasmil.stats.sample_size import auroc_study, auroc_width, c_index_study, c_index_width

    if (auroc is None) == (c_index is None):
        raise InputError("a study is planned for one of --auroc and --c-index, the value that is expected: give one")
    if event_share is None:
        raise InputError("--event-share is missing: the share of patients who are positive (or have the event)")
    if against is not None and half_width is not None:
        raise InputError("--against and --half-width were given: plan for one of them")
    study, width = (auroc_study, auroc_width) if auroc is not None else (c_index_study, c_index_width)
    expected = auroc if auroc is not None else c_index
    assert expected is not None
    if half_width is not None:
        found = width(expected, event_share, half_width)
    else:
        found = study(expected, event_share, against=0.5 if against is None else against)
    if json:
        print(json_module.dumps(dataclasses.asdict(found), indent=2))
        return 0
    what = "positive" if auroc is not None else "with the event"
    print(f"{found.patients:,} patients, {found.events:,} of them {what}, {found.purpose}")
    return 0


def _plan_space(cohort: CohortArguments, json: bool) -> int:
    """What `dasmil space` costs and what it can show; without looking at which patient has which outcome."""
    import dataclasses

    from dasmil.cli.display import Display
    from dasmil.engine.progress import duration
    from dasmil.errors import InputError
    from dasmil.report.space import power_text
    from dasmil.study.space import PERMUTATIONS, space_plan

    if cohort.bags is None:
        raise InputError("nothing to plan: --space needs --bags, with positions and types of instances")
    with Display(quiet=json) as display:
        found = space_plan(cohort, note=display.note, line=display.line)
    if json:
        power = [{**dataclasses.asdict(one), "pair": [found.types[k] for k in one.pair]} for one in found.power]
        print(json_module.dumps({"seconds": found.seconds, "patients": found.patients, "power": power}, indent=2))
        return 0
    print(f"counting contacts   {duration(found.seconds)} ({PERMUTATIONS} permutations of {found.sections} sections)")
    print(power_text(found.power, found.patients, found.unit))
    return 0


def _told(cohort: Cohort) -> tuple[Sequence[Showing | TaskShowing], str]:
    """What the cohort's test bags can show; of another task than classes, what is asked as well."""
    from dasmil.data.showing import showing_text, what_shows

    if cohort.task is not None:
        return _told_of_task(cohort, cohort.task)
    shows = what_shows(cohort.patients, cohort.labels, cohort.splits, cohort.classes)
    return shows, showing_text(shows, cohort.classes)


def _told_of_task(cohort: Cohort, task: Task) -> tuple[list[TaskShowing], str]:
    """The same with one bag a patient, its first."""
    import numpy as np

    from dasmil.data.doctor_tasks import showing_lines, what_task_shows

    rows = {patient: i for i, patient in reversed(list(enumerate(cohort.patients)))}
    order = sorted(rows.values())
    known = [dict(cohort.entries[i].targets or ()) for i in order]
    values = np.array([[np.nan if (v := own.get(c)) is None else v for c in task.columns] for own in known])
    place = {bag: number for number, bag in enumerate(order)}
    splits = {name: [place[i] for i in part if i in place] for name, part in cohort.splits.items()}
    shows = what_task_shows(task, [cohort.patients[i] for i in order], values, splits)
    return shows, "\n".join([f"{task.text}.", *showing_lines(task, shows)])


def _instances(shape: tuple[int, ...]) -> str:
    """What one instance is."""
    return f"{shape[0]} features" if len(shape) == 1 else f"pictures of {' x '.join(map(str, shape))}"


def _compared(plan: Plan, measured: Measurement) -> dict[str, Any]:
    """What the plan says of a bag of this size, and what was measured."""
    return {
        "n": measured.n,
        "seconds": {
            "predicted": plan.seconds(measured.n),
            "measured": measured.seconds_per_bag / max(1.0, measured.cores),
        },
        "bytes": {
            "predicted": plan.probes[-1].base_bytes + plan.step_bytes(measured.n),
            "measured": measured.base_bytes + measured.step_bytes,
        },
    }


def _print(found: Plan, check: dict[str, Any] | None, told: str) -> None:
    from dasmil.engine.progress import duration
    from dasmil.train.plan import LARGEST_ANSWER

    gb = 2**30
    print(f"time per epoch      {duration(found.seconds_per_epoch)}")
    fastest, slowest = (duration(value) for value in found.seconds_in_all)
    span = fastest if fastest == slowest else f"{fastest} to {slowest}"
    choosing = f", {found.starts} starts in the first ones; again for each restart" if found.starts > 1 else ""
    print(f"training            {span} ({found.epochs} epochs{choosing})")
    print(f"peak memory         {found.peak_bytes / gb:.2f} GB ({found.held_bytes / gb:.2f} GB of it bags)")
    more = " or more" if found.largest_bag == LARGEST_ANSWER else ""
    print(f"largest bag         {found.largest_bag:,}{more} instances fit into {found.memory_limit / gb:.1f} GB")
    if told:
        print(told)
    if found.peak_bytes > found.memory_limit:
        print("This does not fit: use --max-instances, fewer --seeds, or a machine with more memory.")
    if check is not None:
        for what, pair in check.items():
            if isinstance(pair, dict):
                size, unit = (gb, "GB") if what == "bytes" else (1, "s")
                expected, seen = (pair[key] / size for key in ("predicted", "measured"))
                values = f"predicted {expected:.3g} {unit}, measured {seen:.3g} {unit}, ratio {expected / seen:.2f}"
                print(f"check, {check['n']:,} instances: {values}")
