"""The toy bags of the tests of training, and what damages a run."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent.parent / "train"), str(Path(__file__).parent)]
