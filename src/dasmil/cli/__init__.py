"""The command line: one file per verb, imported only when the verb is called."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path
from typing import Any

from cyclopts import App, CycloptsError

from dasmil import __version__
from dasmil.errors import DasmilError, InputError, is_text, one_line

app = App(
    name="dasmil",
    version=__version__,
    suppress_keyboard_interrupt=False,  # main() says what happened
    help="Learn from bags of instances that have positions: tiles of a slide, cells of a tissue section.",
    help_epilogue="`dasmil --version --verbose` prints versions, the CPU kernel, threads and the device.",
)

VERBS = {
    "demo": "Train DAS-MIL and plain self-attention on a toy problem and show the difference.",
    "view": "Show bags and what decided in the browser; list all runs of a folder.",
    "compare": "Compare models on the same splits, with paired intervals.",
    "space": "Test whether positions matter, for which types of instances, at which length.",
    "search": "Choose settings on validation bags, then train the best.",
    "plan": "Predict memory and time of training on a cohort.",
    "extract": "Turn slides into bags of features, one file per slide.",
    "predict": "Predict bags with a trained run.",
    "explain": "Explain a prediction: which instances decided, at which distances?",
    "evaluate": "Score a trained run on labelled bags.",
    "figure": "Save plots of a run as SVG, PDF and PNG with their data, and put panels together for a paper.",
    "train": "Train on bags and write a run folder with a report.",
    "report": "Write the report of a run again.",
    "run": "Run a study file; every command writes one with --write-config FILE.",
    "publish": "Write a run's models with a model card to a folder, or upload them.",
    "export": "Write a trained model as ONNX, for programs without PyTorch.",
    "encoders": "List the encoders that `extract` can use.",
    "audit": "Check splits and predictions of another tool for leaks, and score them with intervals.",
    "doctor": "Check features and the label table before training.",
    "models": "List the models: their paper, their use of positions, their parameters.",
    "reproduce": "Reproduce the tables and figures of the paper.",
    "bench": "Measure speed and memory side by side, as ratios.",
}
for _verb, _help in VERBS.items():
    app.command(f"dasmil.cli.{_verb}:app", name=_verb, help=_help)


KEPT = ("train", "search", "compare")
"""Commands that keep the file that repeats them in --out."""
_CONFIG = "--write-config"


def call(tokens: list[str]) -> int:
    """Do a command line. With --write-config FILE it is written first; commands that train keep it in their folder."""
    odd = next((token for token in tokens if not is_text(token)), None)
    if odd is not None:
        raise InputError(f"{odd!r} holds bytes that are not UTF-8, which no file of a run can name: rename it")
    tokens, file = _without_config(tokens)
    verb = tokens[0] if tokens else ""
    if file is not None:
        if verb not in VERBS or verb == "run":
            raise InputError(f"{_CONFIG} writes the file of a command such as train: give one, and not run")
        from dasmil.cli.study_file import written
        from dasmil.files import write_text

        write_text(Path(file), written(app, verb, tokens[1:]))
    result = app(tokens, exit_on_error=False, result_action="return_value")
    if verb in KEPT and isinstance(result, int) and result <= 1:
        from dasmil.cli.study_file import options_of, parsed, written
        from dasmil.runs import keep_study

        out = Path(parsed(options_of(app, verb), tokens[1:]).get("out", ""))
        if out.is_dir():
            keep_study(out, written(app, verb, tokens[1:]))
    return result if isinstance(result, int) else 0


def _without_config(tokens: list[str]) -> tuple[list[str], str | None]:
    """The tokens of a command, and the file of --write-config."""
    for place, token in enumerate(tokens):
        name, equals, value = token.partition("=")
        if name == _CONFIG:
            after = tokens[place + 1 : place + 2]
            if not equals and (not after or after[0].startswith("-")):
                raise InputError(f"{_CONFIG} needs the name of a file")
            rest = tokens[:place] + tokens[place + (1 if equals else 2) :]
            return rest, value if equals else after[0]
    return tokens, None


def main() -> None:
    """Entry point: exit code 0, 1 (failed, or data at fault), 2 (wrong use) or 130 (interrupted)."""
    sys.unraisablehook = _dropped
    for name in ("stdout", "stderr"):  # closed by the caller; the next file that is opened would take its place
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
    try:
        if sorted(sys.argv[1:]) == ["--verbose", "--version"]:
            from dasmil.cli.version import show

            sys.exit(show())
        verb = sys.argv[1] if len(sys.argv) > 1 else ""
        if verb in VERBS and app[verb].default_command is not None:
            app[verb].help = None  # show the verb's docstring, with its examples, not the line of the list above
        code = call(sys.argv[1:])
    except CycloptsError:  # already shown, with the nearest command or option
        code = 2
    except DasmilError as error:
        print(f"Error: {error}", file=sys.stderr)
        code = 2 if isinstance(error, InputError) else 1
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
        print(f"Error: {one_line(f'{place}{error.strerror}; {_DISK_ADVICE[error.errno]}')}", file=sys.stderr)
        code = 1
    sys.exit(code)


def _dropped(event: Any) -> None:
    """Python drops an interrupt that falls into a finaliser: it is sent again a moment later."""
    if not issubclass(event.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(event)
        return
    import signal
    import threading

    again = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT))
    again.daemon = True
    again.start()


_SPACE = "free some space and run the same command again; what was finished is kept"
_RIGHTS = "choose another folder, or change who may read and write there"
_DISK = "check the disk, or the connection to it, and run the same command again"
_PATH = "check the path, or choose another folder"
_FILES = "allow more open files (ulimit -n 1024) and run the same command again"
_DISK_ADVICE = {
    errno.EMFILE: _FILES, errno.ENFILE: _FILES,
    errno.ENOSPC: _SPACE, errno.EDQUOT: _SPACE, errno.EACCES: _RIGHTS, errno.EPERM: _RIGHTS, errno.EROFS: _RIGHTS,
    errno.ENOTDIR: _PATH, errno.EISDIR: _PATH, errno.ENAMETOOLONG: _PATH, errno.ELOOP: _PATH, errno.EIO: _DISK,
    errno.ENXIO: _DISK, errno.ENODEV: _DISK, errno.ESTALE: _DISK, errno.ETIMEDOUT: _DISK,
}  # fmt: skip
