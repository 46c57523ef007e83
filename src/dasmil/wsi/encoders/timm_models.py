"""Any model of timm or of the Hugging Face hub, with its own preprocessing: timm:NAME and hf-hub:REPO."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dasmil.errors import DataError, InputError
from dasmil.wsi.encoders.foundation import FOUNDATION, Foundation
from dasmil.wsi.encoders.network import NetworkEncoder
from dasmil.wsi.encoders.timm_import import import_timm
from dasmil.wsi.encoders.transformers_names import renamed
from dasmil.wsi.encoders.weights import Weights, load_weights, misfit, read_weights

_HUB_FILES = ("model.safetensors", "pytorch_model.bin")


class ClassAndMean(nn.Module):
    """The class token beside the mean of the patch tokens, of a transformer that gives all its tokens."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.network(images)
        first_patch = int(self.network.num_prefix_tokens)  # pyright: ignore[reportArgumentType]
        return torch.cat([tokens[:, 0], tokens[:, first_patch:].mean(1)], dim=1)


def create_timm(name: str, weights: str | Path | None, device: str | torch.device) -> NetworkEncoder:
    """timm:NAME, for example timm:resnet50.a1_in1k; its weights are downloaded unless a file is given."""
    timm = import_timm()
    model = name.removeprefix("timm:")
    architecture = model.partition(".")[0]
    if not timm.is_model(architecture):
        near = difflib.get_close_matches(architecture, timm.list_models(), n=3)
        hint = f" Did you mean {', '.join(near)}?" if near else ""
        raise InputError(
            f"unknown timm model {model!r}.{hint} All names: python -c 'import timm; print(timm.list_models())'"
        )
    try:
        network = timm.create_model(model, pretrained=False, num_classes=0)
    except RuntimeError as error:  # a tag that the architecture does not have
        raise InputError(f"timm cannot build {model!r}: {error}") from error
    return _finish(name, network, weights, device)


def create_hub(name: str, weights: str | Path | None, device: str | torch.device) -> NetworkEncoder:
    """hf-hub:REPO; a known foundation model is built from our table, any other by its repository's configuration."""
    repo = name.removeprefix("hf-hub:")
    known = FOUNDATION.get(repo.lower())
    if known is not None:
        return _foundation(name, known, weights, device)
    timm = import_timm()
    try:
        network = timm.create_model(name, pretrained=False, num_classes=0)
    except Exception as error:  # the hub's client raises errors of many kinds, none of which is a bug of ours
        raise _download_error(name, repo, "its configuration", error) from error
    return _finish(name, network, weights, device, repo=repo)


def _foundation(name: str, known: Foundation, weights: str | Path | None, device: str | torch.device) -> NetworkEncoder:
    loaded = read_weights(weights or download(name, known.repo, known.file))
    network = known.build()
    load_weights(name, network, loaded, renamed(loaded.state) if known.transformers else None)
    return NetworkEncoder(
        name,
        ClassAndMean(network) if known.pooling == "class+mean" else network,
        dim=known.dim,
        input_px=known.input_px,
        mean=known.mean,
        std=known.std,
        device=device,
        sha256=loaded.sha256,
        licence=known.licence,
        note="built from its model card; the project has not run it",
    )


def _finish(
    name: str, network: nn.Module, weights: str | Path | None, device: str | torch.device, repo: str | None = None
) -> NetworkEncoder:
    timm = import_timm()
    config: dict[str, Any] = timm.data.resolve_model_data_config(network)
    height, width = config["input_size"][1:]
    if height != width:
        raise InputError(f"encoder {name!r}: takes images of {height} x {width} px; tiles are square")
    published: Mapping[str, Any] = getattr(network, "pretrained_cfg", None) or {}
    if weights is None:
        repo = repo or published.get("hf_hub_id")
        if not repo:
            raise InputError(f"encoder {name!r}: timm knows no weights for it; give --weights FILE")
        weights = download(name, str(repo))
    loaded = read_weights(weights)
    note = _load(name, network, loaded, published)
    return NetworkEncoder(
        name,
        network,
        input_px=height,
        mean=config["mean"],
        std=config["std"],
        interpolation="bilinear" if config["interpolation"] == "bilinear" else "bicubic",
        device=device,
        sha256=loaded.sha256,
        licence=str(published.get("license") or "see the model's page"),
        note=note,
    )


def _load(name: str, network: nn.Module, loaded: Weights, published: Mapping[str, Any]) -> str:
    """Load weights without their classifier, as they are or through timm's own conversion; says which."""
    heads = published.get("classifier") or _classifier(str(published.get("architecture", "")))
    heads = (heads,) if isinstance(heads, str) else tuple(heads)
    state = {
        key: value
        for key, value in loaded.state.items()
        if not any(key.startswith(f"{head}.") for head in heads) or key in network.state_dict()
    }
    if misfit(network, state) is None:
        load_weights(name, network, loaded, state)
        return ""
    convert = getattr(sys.modules[type(network).__module__], "checkpoint_filter_fn", None)
    if convert is not None:
        try:
            converted = convert(dict(state), network)
        except Exception:  # weights of another network: the misfit below says what is wrong with them
            converted = state
        if misfit(network, converted) is None:
            load_weights(name, network, loaded, converted)
            return "weights converted by timm's checkpoint filter"
    load_weights(name, network, loaded, state)  # raises, with what does not fit
    return ""


def _classifier(architecture: str) -> Any:
    """What the architecture calls its classifier, where a repository's configuration does not say."""
    config = import_timm().get_pretrained_cfg(architecture) if architecture else None
    return getattr(config, "classifier", None) or ()


def download(name: str, repo: str, file: str | None = None) -> Path:
    """The weights file of a repository, from the hub or its local cache; file: its name, if it is none of the usual."""
    import huggingface_hub
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    repo, _, revision = repo.partition("@")
    files = _HUB_FILES if file is None else (file,)
    for file in files:
        try:
            return Path(huggingface_hub.hf_hub_download(repo, file, revision=revision or None))
        except LocalEntryNotFoundError as error:  # also an EntryNotFoundError, but means: no connection
            raise _download_error(name, repo, file, error) from error
        except EntryNotFoundError:
            continue
        except Exception as error:
            raise _download_error(name, repo, file, error) from error
    raise DataError(f"encoder {name!r}: the repository {repo} has neither {' nor '.join(files)}; give --weights FILE")


def _download_error(name: str, repo: str, what: str, error: Exception) -> DataError:
    kind = type(error).__name__
    status = getattr(getattr(error, "response", None), "status_code", None)
    if kind == "GatedRepoError" or status in (401, 403):
        return DataError(
            f"encoder {name!r}: no access to {repo}. Accept its licence at huggingface.co/{repo}, log in with "
            "`hf auth login`, and try again; or give --weights FILE"
        )
    no_connection = "no connection, and not downloaded before"
    reason = no_connection if kind == "LocalEntryNotFoundError" else f"{kind}: {' '.join(str(error).split())[:200]}"
    return DataError(
        f"encoder {name!r}: could not get {what} from huggingface.co/{repo} ({reason}). "
        "Download the weights elsewhere and give --weights FILE"
    )
