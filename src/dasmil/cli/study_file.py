"""A command as a file: its options under headings in TOML, read with line numbers, written from the command line.

The options are those of the parser: a new option of a command can be given in a file, and is written into one, without
a word about it here.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

from cyclopts import App, CycloptsError

from dasmil.errors import DataError, InputError, one_line, shown, unknown_name

COMMAND = "command"
# Headings under which options are written; anything else goes under settings. Any heading may hold any option.
_HEADINGS = {
    "data": (
        "data", "protocol", "mnist_dir", "bags", "features", "reference", "bag_column", "x_column", "y_column",
        "one_hot", "feature_columns", "unit", "mpp", "tile_um", "scale_table", "per_patient", "max_instances", "strict",
        "roi", "roi_class", "exclude", "exclude_class",
    ),
    "labels": (
        "labels", "slide_table", "slide_column", "label_column", "patient_column", "classes", "map", "positive",
        "time_column", "event_column",
    ),
    "task": ("task",),
    "model": ("model", "models", "preset", "run", "runs"),
    "splits": ("folds", "split_seed", "split_column", "test", "split"),
    "settings": (),
    "engine": (
        "engine", "jobs", "threads", "gpus", "retries", "ray_address", "slurm_partition", "slurm_time", "slurm_memory",
        "slurm_local",
    ),
    "outputs": ("out", "output", "json", "log", "tensorboard"),
}  # fmt: skip
_PATTERNS = ("slides",)  # texts that stand for paths: folders, files, patterns of names
_ONCE = ("resume", "force")  # of the moment, not of the study
MOST_BYTES, MOST_NAMES = 10_000_000, 500
_STRING = re.compile(r"\"[^\"\n]*\"|'[^'\n]*'")
_DEEP = re.compile(r"(?<![\w-])(?:[\w-]++[ \t]*+\.[ \t]*+){50}")
_KEY = re.compile(r"\s*(?:\"([^\"]*)\"|'([^']*)'|([\w-]+))\s*[.=]")


@dataclass(frozen=True)
class FileOption:
    """One option of a command, as the parser has it."""

    key: str
    flag: str
    names: tuple[str, ...]
    is_switch: bool
    off: str | None
    many: bool
    greedy: bool  # takes all values that follow its name
    is_path: bool
    positional: bool


@dataclass(frozen=True)
class Study:
    """A command and its options by name, with the line of each in the file that says them."""

    path: Path
    verb: str
    options: Mapping[str, Any]
    lines: Mapping[str, int]

    def where(self, key: str) -> str:
        """The file and the line of an option."""
        return f"{self.path}, line {self.lines[key]}" if key in self.lines else str(self.path)


def options_of(app: App, verb: str) -> dict[str, FileOption]:
    """The options of a command by name (underscores), from its parser."""
    found: dict[str, FileOption] = {}
    for argument in app[verb].assemble_argument_collection():
        names = tuple(name for name in argument.names if name.startswith("-"))
        variadic = argument.is_var_positional()
        if not names and not variadic:
            continue
        key = (argument.field_info.names[0] if variadic else names[0].lstrip("-")).replace("-", "_")
        types = str(argument.hint)
        found[key] = FileOption(
            key=key,
            flag="" if variadic else names[0],
            names=names,
            is_switch=argument.is_flag(),
            off=argument.negatives[0] if argument.negatives else None,
            many=variadic or argument.token_count()[1],
            greedy=bool(argument.parameter.consume_multiple),
            is_path=key in _PATTERNS or argument.hint is Path or Path in get_args(argument.hint) or "pathlib" in types,
            positional=argument.index is not None,
        )
    return found


def read_study(app: App, verbs: Sequence[str], path: Path) -> Study:
    """The command that a file says; every name is checked, and a wrong one is named with its line."""
    if not path.is_file():
        raise InputError(f"no file {path}: expected a study in TOML, as --write-config writes it")
    text, content = _content(path)
    numbers = _line_numbers(text)
    verb = content.pop(COMMAND, None)
    if not isinstance(verb, str) or verb not in verbs:
        place = f"{path}, line {numbers.get((COMMAND,), 1)}"
        if verb is None:
            raise DataError(f'{place}: no {COMMAND}; the file begins with one, for example {COMMAND} = "train"')
        raise _at(place, unknown_name(COMMAND, verb, verbs))
    known = options_of(app, verb)
    options: dict[str, Any] = {}
    lines: dict[str, int] = {}
    for name, value in content.items():
        heading = name in _HEADINGS and isinstance(value, dict)
        for key, inner in value.items() if heading else [(name, value)]:
            option = key.replace("-", "_")
            line = numbers.get((name, key) if heading else (key,), 0)
            place = f"{path}, line {line}"
            if option not in known:
                raise _at(place, unknown_name(f"option of {verb}", key, known))
            if option in options:
                raise DataError(f"{place}: {key} is given twice, first in line {lines[option]}; keep one")
            _check_value(place, known[option], inner)
            options[option], lines[option] = _resolved(known[option], inner, path.parent), line
            table = (name, key) if heading else (name,)
            lines |= {f"{option}.{part}": numbers.get((*table, part), 0) for part in _parts(inner)}
    return Study(path, verb, options, lines)


def overruled(app: App, study: Study, tokens: Sequence[str]) -> Study:
    """The study with options of a command line in place of its own; tables are joined."""
    if not tokens:
        return study
    given = parsed(options_of(app, study.verb), tokens)
    both = {
        k: {**study.options[k], **v} if isinstance(v, dict) and isinstance(study.options.get(k), dict) else v
        for k, v in given.items()
    }
    return replace(study, options={**study.options, **both})


def tokens_of(app: App, study: Study) -> list[str]:
    """The command line that a study stands for, parsed once to see that every value fits."""
    known = options_of(app, study.verb)
    tokens: list[str] = []
    for key, value in study.options.items():
        tokens += _tokens(known[key], value)
    try:
        app.parse_args([study.verb, *tokens], exit_on_error=False, print_error=False)
    except CycloptsError as error:
        argument = getattr(error, "argument", None)
        names = argument.names if argument is not None else ()
        key = next((key for key in study.options if known[key].flag in names), "")
        raise DataError(f"{study.where(key)}: {one_line(str(error))}") from None
    _check_settings(study)
    return [study.verb, *tokens]


def written(app: App, verb: str, tokens: Sequence[str]) -> str:
    """The file that repeats a command line; paths are made absolute."""
    options = parsed(options_of(app, verb), tokens)
    homes = {key: heading for heading, keys in _HEADINGS.items() for key in keys}
    lines = ["# Repeat with: dasmil run FILE", f"{COMMAND} = {json.dumps(verb)}"]
    for heading in _HEADINGS:
        here = {key: value for key, value in options.items() if homes.get(key, "settings") == heading}
        plain = {key: value for key, value in here.items() if not isinstance(value, dict)}
        if plain:
            lines += ["", f"[{heading}]", *(f"{key} = {_toml(value)}" for key, value in plain.items())]
        for key, value in here.items():
            if isinstance(value, dict):
                lines += ["", f"[{heading}.{key}]", *(f"{_key(name)} = {_toml(part)}" for name, part in value.items())]
    return "\n".join(lines) + "\n"


def parsed(known: Mapping[str, FileOption], tokens: Sequence[str]) -> dict[str, Any]:
    """Options by name out of a command line that the parser takes."""
    by_name = {name: option for option in known.values() for name in option.names}
    loose = [option for option in known.values() if option.positional or not option.flag]
    found: dict[str, Any] = {}
    rest = list(tokens)
    while rest:
        name, equals, joined = rest[0].partition("=")
        option = by_name.get(name) if rest[0].startswith("-") else None
        del rest[0]
        if option is None:  # a value without a name: the next that takes one
            option = next((o for o in loose if o.key not in found or o.many), None)
            if option is None:
                raise InputError(f"{shown(name)} is no option, so the command cannot be written as a file")
            text = name + equals + joined
        elif option.is_switch:
            found[option.key] = name != option.off
            continue
        elif equals or rest:
            text = joined if equals else rest.pop(0)
        else:
            raise InputError(f"{name} needs a value")
        texts = [text]
        while option.greedy and not equals and rest and not rest[0].startswith("-"):
            texts.append(rest.pop(0))
        values = [str(Path(text).absolute()) if option.is_path else _plain(text) for text in texts]
        if option.many:
            found.setdefault(option.key, []).extend(values)
        else:
            found[option.key] = values[0]
    return {key: _assignments(value) for key, value in found.items() if key not in _ONCE}


def _assignments(value: Any) -> Any:
    """Texts such as hidden=20 as a table of names and values; anything else as it is."""
    if not isinstance(value, list) or not all(isinstance(v, str) and re.fullmatch(r"[\w-]+=.*", v) for v in value):
        return value
    return {name: _plain(text) for name, _, text in (part.partition("=") for part in value)}


def _plain(text: str) -> Any:
    """A number where the text is one and would be written the same way again, else the text."""
    for kind in (int, float):
        try:
            value = kind(text)
        except ValueError:
            continue
        if value == value and abs(value) != float("inf") and not (text.startswith("0") and text[1:].isdigit()):
            return value
    return {"true": True, "false": False}.get(text, text)


def _toml(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, bool | str):
        return json.dumps(value, ensure_ascii=False)
    return repr(value)


def _key(name: str) -> str:
    return name if re.fullmatch(r"[\w-]+", name, re.ASCII) else json.dumps(name)


def _tokens(option: FileOption, value: Any) -> list[str]:
    if option.is_switch:
        return [option.flag] if value else [option.off] if option.off else []
    if isinstance(value, dict):
        return [part for name, inner in value.items() for part in (option.flag, f"{name}={_text(inner)}")]
    if option.many:
        values = value if isinstance(value, list) else [value]
        return [part for inner in values for part in ([option.flag] if option.flag else []) + [_text(inner)]]
    return [f"{option.flag}={_text(value)}"]


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(_text, value))
    return json.dumps(value) if isinstance(value, bool) else str(value)


def _check_value(place: str, option: FileOption, value: Any) -> None:
    """The kind of value; what it may be within that kind is the parser's to say."""
    if option.is_switch:
        if not isinstance(value, bool):
            raise DataError(f"{place}: {option.key} is {shown(value)}, expected true or false")
    elif isinstance(value, dict):
        if not option.many or not option.flag:
            raise DataError(f"{place}: {option.key} is a table, expected one value")
        if len(value) > MOST_NAMES:
            raise DataError(f"{place}: {option.key} holds {len(value):,} names, expected at most {MOST_NAMES:,}")
        if any(isinstance(inner, dict) for inner in value.values()):
            raise DataError(f"{place}: {option.key} holds a table within a table, expected names and values")
    elif isinstance(value, list):
        if any(isinstance(inner, dict | list) for inner in value):
            raise DataError(f"{place}: {option.key} holds lists within a list, expected values")
    elif isinstance(value, bool) or not isinstance(value, str | int | float):
        raise DataError(f"{place}: {option.key} is {shown(value)}, expected text or a number")


def _resolved(option: FileOption, value: Any, folder: Path) -> Any:
    """Paths of a file count from the folder that it is in."""
    if not option.is_path or isinstance(value, dict):
        return value
    if isinstance(value, list):
        return [str((folder / str(inner)).absolute()) for inner in value]
    return str((folder / str(value)).absolute())


def _check_settings(study: Study) -> None:
    """Names of settings of training and options of the model, each with its line."""
    from dasmil.study.settings import gather_settings

    given = study.options.get("set")
    model = study.options.get("model", "das-mil")
    if not isinstance(given, dict) or "models" in study.options:
        return
    for name, value in given.items():
        try:
            gather_settings(str(model), None, None, {}, {name.replace("-", "_"): value})
        except InputError as error:
            raise _at(study.where(f"set.{name}" if "unknown setting" in str(error) else "model"), error) from None


def _parts(value: Any) -> list[str]:
    return list(value) if isinstance(value, dict) else []


def _content(path: Path) -> tuple[str, dict[str, Any]]:
    """The text of a study and what it says; one that is far larger or deeper than a study is not parsed."""
    if path.stat().st_size > MOST_BYTES:
        raise DataError(f"{path} is larger than {MOST_BYTES // 10**6} MB, expected a study in TOML")
    try:
        text = path.read_bytes().decode("utf-8-sig").replace("\r\n", "\n")
        if _DEEP.search(_STRING.sub("x", text)):  # the parser's time and memory grow with the square of the depth
            raise DataError(f"{path} is no study: its tables are nested too deeply")
        return text, tomllib.loads(text)
    except UnicodeDecodeError:
        raise DataError(f"{path} is not UTF-8 text, expected a study in TOML") from None
    except DataError:
        raise
    except (ValueError, RecursionError) as error:  # also of whole numbers with thousands of digits
        raise DataError(f"{path} is no TOML: {one_line(str(error) or 'nested too deeply')}") from None


def _line_numbers(text: str) -> dict[tuple[str, ...], int]:
    """The line that gives a key below a heading, or opens the table of that name."""
    found: dict[tuple[str, ...], int] = {}
    opened: tuple[str, ...] = ()
    for number, line in enumerate(text.split("\n"), start=1):
        if header := re.fullmatch(r"\s*\[([^\[\]]+)\]\s*(#.*)?", line):
            opened = tuple(part.strip().strip("\"'") for part in header[1].split("."))
            found.setdefault(opened, number)
        elif key := _KEY.match(line):
            found.setdefault((*opened, next(part for part in key.groups() if part is not None)), number)
    return found


def _at(place: str, error: Exception) -> DataError:
    return DataError(f"{place}: {error}")
