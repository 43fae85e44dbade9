"""Completing a submitted evaluation with the data of the study that it evaluates, for silos to agree to."""

from pathlib import Path

from pomona.core.errors import ConfigError
from pomona.core.toml import Tree
from pomona_federation.agreement import StudyAgreement
from pomona_federation.server.members.registry_admin import entries
from pomona_federation.study import JUDGING, EvaluationStudy, TrainingStudy


def completed(study: EvaluationStudy, source: StudyAgreement, kit: Path, folder: Path) -> EvaluationStudy:
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
            f"evaluate.of = {study.evaluate.of!r} is of kind {trained.kind}, which leaves silos no models"
        )
    joined = {
        entry.name: place
        for place, entry in enumerate(entries(kit, None if source.own else folder))
        if entry.joined is not None and not entry.revoked
    }
    if not joined:
        raise ConfigError(f"no silo has a model of {study.evaluate.of} yet; let it run first")
    terms = study.evaluate.model_copy(update={"agreement": source.agreement, "models": joined})
    run: Tree = {key: trained.run[key] for key in JUDGING if key in trained.run} | study.run
    changes = {"evaluate": terms, "run": run, "task": study.task or trained.task}
    return study.model_copy(update=changes)
