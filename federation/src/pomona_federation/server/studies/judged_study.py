"""Completing a submitted evaluation with the data of the study that it evaluates, for silos to agree to."""

from pathlib import Path

from pomona.core.errors import ConfigError
from pomona.core.toml import Tree
from pomona_federation.agreement import Federation
from pomona_federation.server.members.registry_admin import entries
from pomona_federation.study import Study
from pomona_federation.study_kinds import JUDGING


def completed(study: Study, source: Federation, kit: Path, folder: Path) -> Study:
    """The evaluation with hash and members of the study whose models it evaluates.

    Section task, the network and the seed are taken from that study, unless they are given.

    Args:
        study: as in its file; ``evaluate.of`` names a study.
        source: the terms of that study.
        kit: the server's.
        folder: that study's.

    Raises ConfigError if no silo has taken part in it.
    """
    assert study.evaluate
    if source.kind != "train":
        raise ConfigError(f"evaluate.of = {study.evaluate.of!r} is of kind {source.kind}, which leaves silos no models")
    joined = {
        entry.name: place
        for place, entry in enumerate(entries(kit, folder if source.study else None))
        if entry.joined is not None and not entry.revoked
    }
    if not joined:
        raise ConfigError(f"no silo has a model of {study.evaluate.of or 'the first study'} yet; let it run first")
    terms = study.evaluate.model_copy(update={"agreement": source.agreement, "models": joined})
    run: Tree = {key: source.run[key] for key in JUDGING if key in source.run} | study.run
    changes = {"evaluate": terms, "run": run, "tasked": study.tasked or source.task}
    return study.model_copy(update=changes)
