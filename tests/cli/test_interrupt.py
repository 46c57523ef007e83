"""Ctrl-C where Python would drop it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

CODE = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)

class Finalised:
    def __del__(self):
        raise KeyboardInterrupt

import dasmil.cli

def work(tokens):
    Finalised()  # Ctrl-C falls into its end, where nobody can catch it
    time.sleep(30)
    return 0

dasmil.cli.call = work
sys.argv = ["dasmil", "models"]
dasmil.cli.main()
"""


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
def test_an_interrupt_that_falls_into_a_finaliser_still_ends_the_command() -> None:
    found = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=False)
    assert found.returncode == 130
    assert found.stderr == "Interrupted.\n"
