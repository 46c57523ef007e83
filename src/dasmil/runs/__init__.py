"""The run directory: its one reader, its one writer, its schemas."""

from dasmil.runs.answers import Answers
from dasmil.runs.baselines import (
    baseline_answers,
    baseline_predictions,
    baseline_record,
    read_baselines,
    write_baselines,
)
from dasmil.runs.covariates import read_covariates, write_covariates
from dasmil.runs.domain import read_domain, write_domain
from dasmil.runs.held_out import (
    LabelledSet,
    held_out,
    held_out_set,
    labelled_set,
    patient_folds,
    read_clinical,
    recalibrated,
    recalibration_of,
    save_recalibration,
    write_clinical,
)
from dasmil.runs.layout import (
    REPORT,
    find_model,
    fold_folder,
    fold_folders,
    is_begun,
    is_finished,
    model_files,
    runs_below,
    seed_models,
)
from dasmil.runs.library import LibrarySummary, read_library
from dasmil.runs.loading import load_model
from dasmil.runs.localisation import read_localisation, write_localisation
from dasmil.runs.maps import MapFacts, StoredMap, read_maps, write_maps
from dasmil.runs.origin import BuiltIn, Camelyon16, InMemory, Origin, OwnCohort, origin_from
from dasmil.runs.predictions import Predictions, prediction_rows
from dasmil.runs.progress import last_written, run_folders, run_progress
from dasmil.runs.run import Run, Seed, origin_of, read_config, read_summary, seed_of
from dasmil.runs.schema import (
    BaselineScores,
    CovariateRecord,
    CovariateScore,
    DataRecord,
    OriginRecord,
    RunConfig,
    Scores,
    SeedStatus,
    SeenBags,
    Summary,
)
from dasmil.runs.speakers import Speaker, of_seed, speaker_for, speakers
from dasmil.runs.verdict import Verdict, verdict, verdict_of
from dasmil.runs.writer import (
    RunWriter,
    check_kind,
    forget_folds,
    keep_study,
    last_checkpoint,
    note_in_data,
    versions,
    write_fold_summary_file,
    write_seen,
)

__all__ = [
    "REPORT", "Answers", "BaselineScores", "BuiltIn", "Camelyon16", "CovariateRecord", "CovariateScore",
    "DataRecord", "InMemory", "LabelledSet", "LibrarySummary", "MapFacts", "Origin", "OriginRecord", "OwnCohort",
    "Predictions", "Run", "RunConfig", "RunWriter", "Scores", "Seed", "SeedStatus", "SeenBags", "Speaker",
    "StoredMap", "Summary", "Verdict", "baseline_answers", "baseline_predictions", "baseline_record", "check_kind",
    "find_model", "fold_folder", "fold_folders", "forget_folds", "held_out", "held_out_set", "is_begun",
    "is_finished", "keep_study", "labelled_set", "last_checkpoint", "last_written", "load_model", "model_files",
    "note_in_data", "of_seed", "origin_from", "origin_of", "patient_folds", "prediction_rows", "read_baselines",
    "read_clinical", "read_config", "read_covariates", "read_domain", "read_library", "read_localisation",
    "read_maps", "read_summary", "recalibrated", "recalibration_of", "run_folders", "run_progress", "runs_below",
    "save_recalibration", "seed_models", "seed_of", "speaker_for", "speakers", "verdict", "verdict_of", "versions",
    "write_baselines", "write_clinical", "write_covariates", "write_domain", "write_fold_summary_file",
    "write_localisation", "write_maps", "write_seen",
]  # fmt: skip
