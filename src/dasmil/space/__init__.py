"""Does space matter, at which length, and how sure are we? Contacts of types of instances against composition."""

from dasmil.space.adds import Adds, how_much
from dasmil.space.contacts import length_grid
from dasmil.space.outcome import FEWEST, Outcome, outcome_of_patients
from dasmil.space.pairs import PairFinding, find_pairs
from dasmil.space.patients import Patients
from dasmil.space.power import PlantedPower, planted_power
from dasmil.space.result import LEVEL, SpaceStudy, p_text
from dasmil.space.sections import Section, type_pairs

__all__ = [
    "FEWEST", "LEVEL", "Adds", "Outcome", "PairFinding", "Patients", "PlantedPower", "Section", "SpaceStudy",
    "find_pairs", "how_much", "length_grid", "outcome_of_patients", "p_text", "planted_power", "type_pairs",
]  # fmt: skip
