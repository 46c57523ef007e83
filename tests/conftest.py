"""Tests run in parallel processes: each keeps to one thread unless it asks for more; Ctrl-C reaches its children."""

import os
import signal

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

torch.set_num_threads(1)

# A shell that starts the tests with & or nohup makes them ignore Ctrl-C, and every process they start would inherit it:
# the tests of interrupted commands would wait forever. A handler of Python's own is not inherited.
signal.signal(signal.SIGINT, signal.default_int_handler)
