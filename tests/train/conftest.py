"""Toy bags as fixtures, so that every test of training shares one small problem."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
