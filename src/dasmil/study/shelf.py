"""What the viewer shows of a run or of a folder: the bags, and the models that explain them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dasmil.errors import InputError, unknown_name
from dasmil.models import read_model
from dasmil.runs import Answers, OriginRecord, Predictions, Run, Speaker, of_seed, speakers, verdict
from dasmil.study.ground import open_ground
from dasmil.study.notes import Note, silent
from dasmil.study.reading import run_loader, unlabelled_bags
from dasmil.study.spec import BagSpec
from dasmil.types import Bag
from dasmil.viewer.shelf import Entry, Picture, Shelf, Voice
from dasmil.vocabulary import A_CLASS

FindPicture = Callable[[Bag], Picture | None]
Sets = Mapping[int, Mapping[str, str]]  # of a voice: the set that each bag was in


def run_shelf(
    run: Path,
    others: Sequence[Path],
    seed: int | None,
    split: Sequence[str] | None,
    mnist_dir: Path | None,
    find_picture: FindPicture,
) -> Shelf:
    """The bags that a run has scored, with all its models and those of other runs to compare with."""
    stored = Run.read(run)
    found = speakers(run)
    of_one = of_seed(found, _first_seed(found) if seed is None else seed, run)
    chosen = [k for k, speaker in enumerate(found) if speaker in of_one]
    beside = {other: speakers(other) for other in others}
    sets = _sets(found, [speaker for own in beside.values() for speaker in own])
    entries = _entries(stored, found, chosen, split, mnist_dir, find_picture, sets)
    data = stored.origin.get("name") or Path(stored.origin.get("bags", "own bags")).name
    who = f"{len(stored.folds)} folds, each bag by the one that held it out" if stored.folds else found[chosen[0]].title
    classes = stored.origin.get("classes")
    return Shelf(
        f"{stored.model} on {data}", f"{run.name}, {who}", [*_voices(found), *_other_voices(beside)], entries,
        tuple(map(str, classes)) if classes else None, _caveat(stored),
    )  # fmt: skip


def _caveat(stored: Run) -> str:
    return verdict(stored).caveat or ""


def _first_seed(found: Sequence[Speaker]) -> int:
    return min(speaker.seed.number for speaker in found if speaker.seed is not None)


def _voices(found: Sequence[Speaker], prefix: str = "") -> list[Voice]:
    """A voice for every model; where the target is no class, for every output of it."""
    voices = []
    for speaker in found:
        for output in _outputs(speaker):
            task = speaker.task
            meaning = A_CLASS if task is None or output is None else task.meaning(output)
            title = f"{prefix}{speaker.title}" + (f": {meaning.what}" if meaning != A_CLASS else "")
            target = 1 if task is not None and task.outputs == 1 else output
            voices.append(Voice(title, lambda s=speaker: read_model(s.model_file), speaker.kept, target, meaning))
    return voices


def _outputs(speaker: Speaker) -> list[int | None]:
    """What can be explained of a model: of classes the one that it tells, else every output."""
    return [None] if speaker.task is None else list(range(speaker.task.outputs))


def _first_voice(found: Sequence[Speaker], number: int) -> int:
    """Which voice is the first of a model."""
    return sum(len(_outputs(speaker)) for speaker in found[:number])


def _other_voices(beside: Mapping[Path, Sequence[Speaker]]) -> list[Voice]:
    return [voice for other, own in beside.items() for voice in _voices(own, f"{other.name}, ")]


def _entries(
    stored: Run,
    found: Sequence[Speaker],
    chosen: Sequence[int],
    split: Sequence[str] | None,
    mnist_dir: Path | None,
    find_picture: FindPicture,
    used: Sets,
) -> list[Entry]:
    """A line for every bag of these sets; of a cross-validation each bag once, by the fold that held it out."""
    folds = found[chosen[0]].fold is not None
    scored = [(k, _scored(stored, found[k])) for k in chosen if found[k].seed is not None]
    known = sorted({name for _, sets in scored for name in sets}, key=lambda s: (not s.startswith("test"), s))
    for name in split or ():
        if name not in known:
            raise unknown_name("split", name, known)
    load = run_loader(found[chosen[0]].origin, mnist_dir)
    wanted = split or ([name for name in known if name.startswith("test")] if folds else known)
    entries: dict[tuple[str, str], Entry] = {}
    for name in wanted:
        for voice, sets in scored:
            for entry in _scored_entries(found, voice, name, sets, load, find_picture, used):
                entries.setdefault((name, entry.bag_id), entry)
    return list(entries.values())


def _scored(stored: Run, speaker: Speaker) -> dict[str, Predictions] | dict[str, Answers]:
    """What a seed has scored; classes at the threshold of its run."""
    assert speaker.seed is not None
    if stored.task is not None:
        return speaker.seed.answered
    part = stored.parts[speaker.fold or 0]
    place = list(part.seeds).index(speaker.seed.number)
    return {name: part.decided(name)[place] for name in speaker.seed.scored}


def _scored_entries(
    found: Sequence[Speaker],
    voice: int,
    name: str,
    sets: Mapping[str, Any],
    load: Callable[[str, str], Bag],
    find_picture: FindPicture,
    used: Sets,
) -> list[Entry]:
    if name not in sets:
        return []
    rows = sets[name]
    if isinstance(rows, Answers):
        return _answered_entries(found, voice, name, rows, load, find_picture, used)
    best = rows.probabilities.max(1) if rows.probabilities.ndim > 1 else rows.probabilities
    return [
        Entry(
            bag_id=bag_id,
            load=lambda bag_id=bag_id: load(name, bag_id),
            picture=find_picture,
            label=int(rows.labels[i]) if rows.labels[i] >= 0 else None,
            prediction=int(rows.predictions[i]),
            probability=float(best[i]),
            split=name,
            patient=rows.patient_ids[i],
            voice=voice,
            sets={voice: known[bag_id] for voice, known in used.items() if bag_id in known},
        )
        for i, bag_id in enumerate(rows.bag_ids)
    ]


def _answered_entries(
    found: Sequence[Speaker],
    speaker: int,
    name: str,
    rows: Answers,
    load: Callable[[str, str], Bag],
    find_picture: FindPicture,
    used: Sets,
) -> list[Entry]:
    """Bags of a run whose target is no class: what is known of them in words, and the first thing that is said."""
    task = found[speaker].task
    assert task is not None
    said = task.answers(rows.outputs)
    first = said if said.ndim == 1 else said[:, 0]
    return [
        Entry(
            bag_id=bag_id,
            load=lambda bag_id=bag_id: load(name, bag_id),
            picture=find_picture,
            truth=task.known_text(rows.values[i]),
            probability=float(first[i]),
            split=name,
            patient=rows.patient_ids[i],
            voice=_first_voice(found, speaker),
            sets={voice: known[bag_id] for voice, known in used.items() if bag_id in known},
        )
        for i, bag_id in enumerate(rows.bag_ids)
    ]


def _sets(own: Sequence[Speaker], others: Sequence[Speaker]) -> Sets:
    """What bags were to every voice; to one of another run only where its data are the same, by which names count."""
    data, found = _data(own[0]), [*own, *others]
    return {
        _first_voice(found, number) + k: speaker.sets
        for number, speaker in enumerate(found)
        if number < len(own) or (data and _data(speaker) == data)
        for k in range(len(_outputs(speaker)))
    }


def _data(speaker: Speaker) -> tuple[Any, ...] | None:
    """What tells the data of a run: a built-in set and how it was made, or the folder or table of a cohort."""
    origin = speaker.origin
    if name := origin.get("name"):
        return name, origin.get("protocol"), origin.get("options")
    bags = (origin.get("cohort") or {}).get("bags")
    return None if bags is None else (bags,)


def folder_shelf(
    path: Path,
    others: Sequence[Path],
    seed: int | None,
    bags: Path,
    given: Mapping[str, Any],
    find_picture: FindPicture,
    data: OriginRecord | None = None,
    note: Note = silent,
) -> Shelf:
    """Bags that a model or a run has not scored; data: what the run notes about its own, which they are read alike."""
    found = speakers(path)
    number = 0 if seed is None else found.index(of_seed(found, seed, path)[0])
    voice = _first_voice(found, number)
    cohort = unlabelled_bags(BagSpec(bags=bags, **given), data, note)
    entries = [
        Entry(bag.bag_id, lambda k=k: cohort[k], find_picture, patient=bag.patient_id, voice=voice)
        for k, bag in enumerate(cohort.entries)
    ]
    classes = found[number].origin.get("classes")
    name = path.name if data is None else Run.read(path).model
    voices = [*_voices(found), *_other_voices({other: speakers(other) for other in others})]
    return Shelf(
        f"{name} on {bags.name}", str(bags), voices, entries,
        tuple(map(str, classes)) if classes else None,
    )  # fmt: skip


def pictures_in(slides: Path | None) -> FindPicture:
    """Finds the picture under a bag: its collage, or the slide of the same name in a folder."""

    def find(bag: Bag) -> Picture | None:
        found = open_ground(bag, slides)
        return None if found is None else Picture(*found)

    return find


def make_shelf(
    run: Path | None = None,
    *,
    model: Path | None = None,
    bags: Path | None = None,
    slides: Path | None = None,
    compare: Sequence[Path] = (),
    seed: int | None = None,
    split: Sequence[str] | None = None,
    mnist_dir: Path | None = None,
    note: Note = silent,
    **given: Any,
) -> Shelf:
    """The shelf that `dasmil view` serves; given: mpp, tile_um, scale_table, per_patient, slide_table of ``bags``."""
    if (run is None) == (model is None):
        raise InputError("give a run directory, or --model FILE with --bags FOLDER (one of the two)")
    if model is not None and bags is None:
        raise InputError("--model needs --bags, the folder of feature files to show")
    if split and bags is not None:
        raise InputError("--split names sets of the run, but --bags gives other bags to show: leave one of them out")
    if bags is None and (given.get("per_patient") or given.get("slide_table") is not None):
        raise InputError("--per-patient and --slide-table join slides of --bags: give these too, or leave them out")
    if slides is not None and not slides.is_dir():
        raise InputError(f"{slides} is not a folder: --slides takes the folder that holds the slides")
    find_picture = pictures_in(slides)
    if run is not None and bags is None:
        return run_shelf(run, compare, seed, split, mnist_dir, find_picture)
    assert bags is not None
    if run is not None:
        return folder_shelf(run, compare, seed, bags, given, find_picture, Run.read(run).origin, note)
    assert model is not None
    return folder_shelf(model, compare, None, bags, given, find_picture, note=note)
