"""An option that is a field of a configuration has its default and its help text from there."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import pytest
from cyclopts import App, Argument

from dasmil.cli import app
from dasmil.cli.options import filled, options
from dasmil.errors import InputError
from dasmil.wsi.config import ExtractConfig, RunOptions, TissueConfig


@dataclass(frozen=True)
class Lamp:
    """A lamp."""

    colour: str = "white"
    """Colour of the light."""
    watts: float = 40.0
    """Power in watts."""
    lit: bool = False
    """Switch it on."""

    def __post_init__(self) -> None:
        if self.watts <= 0:
            raise InputError(f"watts is {self.watts:g}, expected more than 0")


@options(leave_out=("colour",), flags={"watts": "--power"})
class LampOptions(Lamp):
    """A lamp on the command line."""


def arguments(verb: str) -> dict[str, Argument]:
    return {argument.name: argument for argument in app[verb].assemble_argument_collection(parse_docstring=True)}


def test_fields_become_options_with_their_default_and_text() -> None:
    lamps = App()
    found: list[Lamp] = []

    @lamps.default
    def command(lamp: LampOptions = LampOptions()) -> None:  # noqa: B008
        found.append(filled(Lamp, lamp, colour="red"))

    known = {argument.name: argument for argument in lamps.assemble_argument_collection(parse_docstring=True)}
    assert {name: argument.parameter.help for name, argument in known.items() if name.startswith("--")} == {
        "--power": "Power in watts.",
        "--lit": "Switch it on.",
    }
    lamps(["--power", "60", "--lit"], result_action="return_value")
    lamps([], result_action="return_value")
    assert found == [Lamp("red", 60.0, True), Lamp("red")]
    with pytest.raises(InputError, match="watts is -1, expected more than 0"):
        lamps(["--power", "-1"], result_action="return_value", exit_on_error=False)


def test_extract_takes_its_options_from_its_configuration() -> None:
    """Changing a default in wsi/config.py changes it on the command line."""
    known = arguments("extract")
    left_out = {"encoder", "tissue", "roi", "exclude", "masks"}
    for config in (ExtractConfig, TissueConfig, RunOptions):
        for one in fields(config):
            if one.name not in left_out:
                name = "--tissue-fraction" if one.name == "fraction" else "--" + one.name.replace("_", "-")
                assert known[name].field_info.default == one.default
                assert known[name].parameter.help


def test_doctor_describes_the_options_of_a_cohort_as_training_does() -> None:
    doctor, train = arguments("doctor"), arguments("train")
    shared = [name for name in doctor if name in train and name not in ("--bags", "--device", "--json")]
    assert len(shared) > 20
    told: dict[str, Any] = {name: doctor[name].parameter.help for name in shared}
    assert told == {name: train[name].parameter.help for name in shared}
    assert not doctor.keys() & {"--covariates", "--max-instances"}
