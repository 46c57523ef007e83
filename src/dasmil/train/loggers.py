"""Curves for those who keep them elsewhere: Weights & Biases, MLflow, TensorBoard; nothing unless it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, get_args

from dasmil.errors import InputError, MissingDependencyError, unknown_name
from dasmil.runs import Seed
from dasmil.train.state import Progress

LoggerName = Literal["tensorboard", "wandb", "mlflow"]
LOGGERS: tuple[str, ...] = get_args(LoggerName)
Listener = Callable[[Progress], None]


def make_logger(name: str, folder: Path, seed_path: Callable[[int], Path], settings: Mapping[str, Any]) -> Listener:
    """The listener of that name. folder: of the run; settings: what to note beside the curves.

    wandb and mlflow go where their own settings say (WANDB_MODE=offline, MLFLOW_TRACKING_URI); without one, wandb
    stays offline in the run's folder and mlflow writes files there.
    """
    if name == "tensorboard":
        from dasmil.train.tensorboard import EventWriter

        return EventWriter(seed_path)
    if name == "wandb":
        return WandbLog(folder, settings)
    if name == "mlflow":
        return MlflowLog(folder, settings)
    raise unknown_name("logger", name, LOGGERS)


@contextmanager
def logged(name: str | None, folder: Path, settings: Mapping[str, Any]) -> Iterator[Callable[[Listener], Listener]]:
    """Gives a function that adds the logger of that name to a listener; it is closed at the end. None: adds nothing."""
    if name is None:
        yield lambda listener: listener
        return
    logger = make_logger(name, folder, lambda seed: Seed.of(folder, seed).path, settings)

    def both(listener: Listener) -> Listener:
        def tell(progress: Progress) -> None:
            listener(progress)
            logger(progress)

        return tell

    try:
        yield both
    finally:
        if close := getattr(logger, "close", None):
            close()


class WandbLog:
    """One run of Weights & Biases for a training; a curve per seed and column."""

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        import os

        try:
            import wandb  # pyright: ignore[reportMissingImports]
        except ImportError:
            raise MissingDependencyError("wandb", "wandb", "--log wandb") from None
        where = folder.absolute() / "wandb"
        where.mkdir(parents=True, exist_ok=True)
        try:
            self._run: Any = wandb.init(
                project=os.environ.get("WANDB_PROJECT", "dasmil"), name=folder.name, dir=str(where),
                mode=os.environ.get("WANDB_MODE", "offline"), config=dict(settings),  # type: ignore[arg-type]
                settings=wandb.Settings(silent=True),
            )  # fmt: skip
        except Exception as error:  # of the login, the network and its service process
            raise InputError(f"--log wandb could not begin: {error}; WANDB_MODE=offline needs no account") from None

    def __call__(self, progress: Progress) -> None:
        found = {f"seed-{seed}/{name}": value for seed, name, value in _values(progress)}
        self._run.log({**found, "epoch": progress.epoch})

    def close(self) -> None:
        """Finish the run."""
        self._run.finish()


class MlflowLog:
    """One MLflow run for a training; a metric per seed and column."""

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        import os

        try:
            from mlflow.tracking import MlflowClient  # pyright: ignore[reportMissingImports]
        except ImportError:
            raise MissingDependencyError("mlflow-skinny", "mlflow", "--log mlflow") from None
        uri = os.environ.get("MLFLOW_TRACKING_URI")
        if uri is None:
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # newer versions ask for a database otherwise
            uri = (folder.absolute() / "mlruns").as_uri()
        try:
            self._client: Any = MlflowClient(tracking_uri=uri)
            name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "dasmil")
            known = self._client.get_experiment_by_name(name)
            experiment = self._client.create_experiment(name) if known is None else known.experiment_id
            self._run = self._client.create_run(experiment, run_name=folder.name).info.run_id
            for key, value in settings.items():
                self._client.log_param(self._run, key, str(value)[:250])
        except Exception as error:  # of the store, which may be a server
            raise InputError(f"--log mlflow could not begin at {uri}: {error}") from None

    def __call__(self, progress: Progress) -> None:
        for seed, name, value in _values(progress):
            self._client.log_metric(self._run, f"seed-{seed}/{name}", value, step=progress.epoch)

    def close(self) -> None:
        """Finish the run."""
        self._client.set_terminated(self._run)


def _values(progress: Progress) -> list[tuple[int, str, float]]:
    """Seed, column and value of an epoch."""
    pairs = zip(progress.seeds, progress.rows, strict=True)
    return [(seed, name, float(value)) for seed, row in pairs for name, value in row.items() if name != "epoch"]
