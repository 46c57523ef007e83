"""`dasmil publish`: a run's models with a model card, in a folder or on the hub."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

app = App(name="publish", help="Write a run's models with a model card to a folder, or upload them.")


@app.default
def publish(
    run: Path,
    *,
    out: Path | None = None,
    push_to_hub: str | None = None,
    public: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Write the models of a run, their configuration and a model card to a folder; upload them only when asked to.

    Examples: dasmil publish runs/mine --out share/mine; dasmil publish runs/mine --push-to-hub lab/mine

    Parameters
    ----------
    run
        Run directory.
    out
        New folder for model.safetensors, config.json and README.md.
    push_to_hub
        Upload to this repository (OWNER/NAME) of the Hugging Face hub, with the login of huggingface_hub.
    public
        With --push-to-hub: make a new repository public; without it, it is private.
    """
    from dasmil.errors import InputError
    from dasmil.study import hub

    if out is None and push_to_hub is None:
        raise InputError("nothing to do: give --out FOLDER, or --push-to-hub OWNER/NAME")
    if public and push_to_hub is None:
        raise InputError("--public is for --push-to-hub: give both, or leave it out")
    if out is not None:
        print(hub.save_pretrained(run, out))
    if push_to_hub is not None:
        print(hub.push_to_hub(run, push_to_hub, private=not public))
    return 0
