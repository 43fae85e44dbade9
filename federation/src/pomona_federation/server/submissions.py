"""Submitted studies: their files in ``run/studies/NAME/``, and keys completed on submission."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

from pomona.core.bounds import Count, Finite, Sha256
from pomona.core.errors import ConfigError, StorageError
from pomona.core.files import blocks, opened, publish, writing
from pomona.core.settings import Settings
from pomona.core.toml import Tree
from pomona_federation.agreement import Federation, StudyAgreement
from pomona_federation.json_store import read_json, write_json
from pomona_federation.server.registry_admin import entries
from pomona_federation.study import (
    JUDGING,
    TRIALS,
    EvaluationStudy,
    RunStudy,
    Study,
    TrainingStudy,
    weights_file,
)

STUDIES, SUBMITTED = "studies", "study.json"
State = Literal[
    "proposed", "queued", "running", "finished", "interrupted", "failed", "declined", "aborted"
]
FINAL_STATES: frozenset[State] = frozenset({"finished", "failed", "declined", "aborted"})


class SubmittedStudy(Settings):
    """A study as submitted; ``number`` orders them, ``submitted`` is in seconds since 1970.

    Attributes:
        aborted: it is not to run, or not to continue
        begun: it starts with those that have accepted, without the undecided
    """

    number: Count
    submitted: Finite
    agreement: Sha256
    study: Study
    aborted: bool = False
    begun: bool = False

    @property
    def due(self) -> bool:
        """Whether it starts without those that have not decided."""
        return self.begun or time.time() >= self.submitted + self.study.decide

    def write(self, kit: Path) -> None:
        """Write its file in the server's kit. Raises StorageError."""
        folder = kit / "run" / STUDIES / self.study.name
        with writing(folder):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_json(folder / SUBMITTED, self)


@dataclass(frozen=True)
class QueuedStudy:
    """One study of a server.

    Attributes:
        name: ``KIT`` for the one that the kit came with.
        folder: of its run.
        submission: the submitted study; None for the kit's own, which a silo accepts by starting.
    """

    name: str
    folder: Path
    submission: SubmittedStudy | None = None

    @property
    def at_work(self) -> Path:
        """The folder of the current or last rounds: for a search, its newest trial's."""
        return max((self.folder / TRIALS).glob("[0-9][0-9][0-9]"), default=self.folder)

    def terms(self, federation: Federation, kit: Path) -> StudyAgreement:
        """The agreement on this study; first weights come from the kit's folder ``weights``."""
        study = self.submission.study.placed(kit) if self.submission else federation.study
        assert study, "only a kit's own study has no file"
        return federation.terms_of(study)


def in_order(kit: Path) -> list[QueuedStudy]:
    """The studies that were submitted to a server, in order.

    Raises StorageError for a file that cannot be read.
    """
    return [
        study for _, study in sorted(_read_all(kit / "run" / STUDIES), key=lambda pair: pair[0])
    ]


def _read_all(studies: Path) -> Iterator[tuple[int, QueuedStudy]]:
    for folder in studies.iterdir() if studies.is_dir() else ():
        try:
            written = (folder / SUBMITTED).stat().st_mtime_ns
        except (FileNotFoundError, NotADirectoryError):
            continue  # a kill fell between the folder and its file; or an unrelated file
        submission = _read(folder / SUBMITTED, written)
        if submission is None:
            continue
        if submission.study.name != folder.name:
            raise StorageError(
                f"{folder / SUBMITTED} is of study {submission.study.name!r}; restore it from a "
                "backup"
            )
        yield submission.number, QueuedStudy(folder.name, folder, submission)


@lru_cache(maxsize=100)
def _read(path: Path, written: int) -> SubmittedStudy | None:
    """A study's file, cached: the gate and the supervisor ask every few seconds, and it may contain
    a vocabulary.
    """
    return read_json(SubmittedStudy, path)


def with_models(
    study: EvaluationStudy, evaluated: QueuedStudy, federation: Federation, kit: Path
) -> EvaluationStudy:
    """An evaluation with hash and members of the study whose models it evaluates.

    Section task, the network and the seed are taken from that study, unless they are given.

    Raises ConfigError if that study trains no models, or no silo has taken part in it.
    """
    source = evaluated.terms(federation, kit)
    trained = source.study
    if not isinstance(trained, TrainingStudy):
        raise ConfigError(
            f"evaluate.of = {study.evaluate.of!r} is of kind {trained.kind}, which does not "
            "train models"
        )
    members = entries(kit, None if source.from_kit else evaluated.folder)
    clients = {
        entry.name: client
        for client, entry in enumerate(members)
        if entry.joined is not None and not entry.revoked
    }
    if not clients:
        raise ConfigError(f"no silo has a model of {study.evaluate.of} yet; let it run first")
    terms = study.evaluate.model_copy(update={"agreement": source.agreement, "models": clients})
    run: Tree = {key: trained.run[key] for key in JUDGING if key in trained.run} | study.run
    changes = {"evaluate": terms, "run": run, "task": study.task or trained.task}
    return study.model_copy(update=changes)


def keep_weights(kit: Path, study: RunStudy, source: Path, terms: StudyAgreement) -> RunStudy:
    """Copy first weights into the kit; the study then names them by their hash.

    Raises StorageError.
    """
    with writing(source):
        sha256 = str(terms.config.model.init_sha256)
        target = weights_file(kit, sha256)
        with opened(source) as file:
            publish(target, blocks(file), f".{target.stem}")
    return study.with_weights(None, sha256)
