"""What a study that is submitted takes from earlier ones, and must not repeat of them."""

from collections.abc import Sequence
from pathlib import Path

from pomona.core.errors import ConfigError
from pomona.core.toml import Tree
from pomona_federation.agreement import StudyAgreement
from pomona_federation.server.registry_admin import entries
from pomona_federation.study import JUDGING, EvaluationStudy, Study, SurveyStudy, TrainingStudy


def completed(
    study: EvaluationStudy, source: StudyAgreement, kit: Path, folder: Path
) -> EvaluationStudy:
    """The evaluation with hash and members of the study whose models it evaluates.

    Section task, the network and the seed are taken from that study, unless they are given.

    Args:
        study: as in its file; ``evaluate.of`` names a study.
        source: the terms of that study.
        kit: the server's.
        folder: that study's.

    Raises ConfigError if no silo has taken part in it.
    """
    trained = source.study
    if not isinstance(trained, TrainingStudy):
        raise ConfigError(
            f"evaluate.of = {study.evaluate.of!r} is of kind {trained.kind}, which does not train "
            "models"
        )
    clients = {
        entry.name: client
        for client, entry in enumerate(entries(kit, None if source.from_kit else folder))
        if entry.joined is not None and not entry.revoked
    }
    if not clients:
        raise ConfigError(f"no silo has a model of {study.evaluate.of} yet; let it run first")
    terms = study.evaluate.model_copy(update={"agreement": source.agreement, "models": clients})
    run: Tree = {key: trained.run[key] for key in JUDGING if key in trained.run} | study.run
    changes = {"evaluate": terms, "run": run, "task": study.task or trained.task}
    return study.model_copy(update=changes)


def require_other_seed(study: Study, earlier: Sequence[Study | None]) -> None:
    """Require that a study with secure aggregation names its seed, if it would take that of an
    earlier one by default.

    With one seed, each silo whose rows stay repeats its first change, to the bit, and refuses to
    have it summed over other silos or sample counts.

    Raises ConfigError with a seed that none has.
    """
    seeds = {seed: s.name for s in earlier if s and (seed := _summed_seed(s)) is not None}
    if _summed_seed(study) == 0 in seeds and "seed" not in getattr(study, "run", {}):
        raise ConfigError(
            f"run.seed is 0 unless set, as in {seeds[0]}, whose changes were summed too: silos "
            "repeat their first change, and refuse to sum it if a silo's rows, the silos, or "
            f"max_norm have changed since; set seed = {max(seeds) + 1} in [run]"
        )


def _summed_seed(study: Study) -> int | None:
    """The seed of a study with secure aggregation; None for any other."""
    if isinstance(study, SurveyStudy) or "secure_aggregation" not in study.run:
        return None
    return int(study.run.get("seed", 0))
