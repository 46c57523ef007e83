"""The command line: one file per verb, imported only when the verb is called."""

from __future__ import annotations

import errno
import os
import sys

from cyclopts import App, CycloptsError

from dasmil import __version__
from dasmil.errors import DasmilError

app = App(
    name="dasmil",
    version=__version__,
    suppress_keyboard_interrupt=False,  # main() says what happened
    help="Learn from bags of instances that have positions: tiles of a slide, cells of a tissue section.",
)

VERBS = {
    "demo": "Train DAS-MIL and plain self-attention on a toy problem and show the difference.",
    "view": "Look at bags and what decided, in the browser.",
    "compare": "Compare models on the same splits, with paired intervals.",
    "search": "Choose settings on validation bags, then train the best.",
    "plan": "Predict memory and time of training on a cohort.",
    "extract": "Turn slides into bags of features, one file per slide.",
    "predict": "Predict bags with a trained run.",
    "explain": "Say which instances, at which distances, decided.",
    "evaluate": "Score a trained run on labelled bags.",
    "train": "Train a model on bags, several seeds at once.",
    "encoders": "List the encoders that `extract` can use.",
    "doctor": "Check a folder of features, and its label table, before training.",
    "models": "List the models: their paper, their use of positions, their parameters.",
    "reproduce": "Make the paper's tables and figures again, beside the printed figures.",
    "bench": "Measure speed and memory side by side, as ratios.",
}
for _verb, _help in VERBS.items():
    app.command(f"dasmil.cli.{_verb}:app", name=_verb, help=_help)


def main() -> None:
    """Entry point: exit code 0, 1 (failed), 2 (wrong use) or 130 (interrupted)."""
    try:
        verb = sys.argv[1] if len(sys.argv) > 1 else ""
        if verb in VERBS and app[verb].default_command is not None:
            app[verb].help = None  # show the verb's docstring, with its examples, not the line of the list above
        result = app(exit_on_error=False)
        code = result if isinstance(result, int) else 0
    except CycloptsError:  # already shown, with the nearest command or option
        code = 2
    except DasmilError as error:
        print(f"Error: {error}", file=sys.stderr)
        code = 1
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        code = 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except OSError as error:
        if error.errno not in _DISK_ADVICE:  # not the user's disk or path: a fault of ours, to be seen whole
            raise
        place = f"{error.filename}: " if error.filename else ""
        print(f"Error: {place}{error.strerror}; {_DISK_ADVICE[error.errno]}", file=sys.stderr)
        code = 1
    sys.exit(code)


_SPACE = "free some space and run the same command again; what was finished is kept"
_RIGHTS = "choose another folder, or change who may write there"
_PATH = "check the path, or choose another folder"
_DISK_ADVICE = {
    errno.ENOSPC: _SPACE, errno.EDQUOT: _SPACE, errno.EACCES: _RIGHTS, errno.EPERM: _RIGHTS, errno.EROFS: _RIGHTS,
    errno.ENOTDIR: _PATH, errno.EISDIR: _PATH, errno.ENAMETOOLONG: _PATH,
}  # fmt: skip
