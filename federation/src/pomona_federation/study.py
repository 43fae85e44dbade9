"""A study: one agreement on an existing federation, ``STUDY.toml``.

The federation's own kit may come with one, too.

The kinds of studies are records of their own, by ``kind``: what only one kind has is a key of that
kind alone.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    Field,
    TypeAdapter,
    ValidationError,
    field_validator,
    model_validator,
)

from pomona.core.bounds import DIGEST, MAX_CLIENTS, ROUNDS, Name, NameOrNone, first, parse
from pomona.core.errors import ConfigError, ProtocolError, suggestion
from pomona.core.file_kinds import require_kind
from pomona.core.settings import Settings
from pomona.core.toml import Tree, named_file, read_file, validated
from pomona_federation.study_sections import EvaluateTerms, SearchTerms
from pomona_federation.survey.settings import SurveySettings
from pomona_federation.task_settings import TaskSettings

KIT = "kit"  # name of the study that the kits came with
WEIGHTS = "weights"  # folder of a kit
DAY = 86400.0  # seconds
LONGEST = 16 * 2**20  # largest study on the wire in bytes; a vocabulary of a million words fits
TRIALS = "trials"  # folder of a search's trials, in the study's
# names of a study's result files by kind
RESULTS = {"evaluate": "evaluation", "search": "search", "survey": "survey"}
LEAST_SAMPLES = 10  # smallest number of samples whose scores an evaluation shares
# keys of section run that affect the evaluation of a model
JUDGING = ("model", "metric", "seed", "precision")


def _told_from_hashes(name: str) -> str:
    """Reject names that look like the first digits of a hash, by which administrators name other
    studies.
    """
    if re.fullmatch("[0-9a-f]{8,}", name):
        raise ValueError(
            "could be the first digits of a hash; put another letter or a hyphen into it"
        )
    return name


StudyName = Annotated[Name, AfterValidator(_told_from_hashes)]
StudyKind = Literal["train", "evaluate", "search", "survey"]


class StudyTerms(Settings):
    """What every kind of study has: its name, its data, and for how long it waits for whom.

    Attributes:
        name: its name, never used before in this federation
        view: which data of a silo: [views.NAME] of its silo.toml; [data] if empty
        deadline: seconds a round may take
        patience: seconds a round waits for a silo that is offline, from its last sign of life
        wait: seconds to wait for the silos at the start
        quorum: smallest number of uplinks of a round; the federation's if unset
        decide: seconds that silos have to decide, before it starts without the rest
    """

    name: StudyName
    view: NameOrNone = ""
    deadline: float = Field(7200.0, gt=0)
    patience: float = Field(300.0, ge=0)
    wait: float = Field(600.0, ge=0)
    quorum: int | None = Field(None, ge=1, le=MAX_CLIENTS)
    decide: float = Field(7 * DAY, ge=0)

    @property
    def text(self) -> str:
        """The study as sent, in JSON."""
        return self.model_dump_json()

    @property
    def weights(self) -> Path | None:
        """The file of first weights, if the study names one by path."""
        return None

    @property
    def rounds(self) -> int | None:
        """How many rounds the study has, if it states that."""
        return None

    def placed(self, kit: Path) -> Self:  # noqa: ARG002 - of kinds that have first weights
        """The study with its first weights, if any, in a kit's folder, where they are named by
        their hash.
        """
        return self


class RunTerms(StudyTerms):
    """What the kinds have in which a run is computed: its settings.

    Attributes:
        wire: number format of models in transit
        run: settings of a run, except those that each silo sets
    """

    wire: Literal["fp32", "bf16"] = "fp32"
    run: Tree = Field({})

    @field_validator("run")
    @classmethod
    def _countable(cls, run: Tree) -> Tree:
        rounds = run.get("rounds")
        if isinstance(rounds, int) and rounds >= ROUNDS:
            raise ValueError(
                f"run.rounds = {rounds}; the limit is {ROUNDS - 1}, with the closing visit; lower "
                "it"
            )
        return run

    @property
    def weights(self) -> Path | None:
        """The file of first weights, if the study names one by path."""
        model = self.run.get("model")
        if isinstance(model, dict) and isinstance(model.get("init"), str):
            return Path(model["init"])
        return None

    @property
    def rounds(self) -> int | None:
        """How many rounds the study has, if it states that."""
        rounds = self.run.get("rounds")
        return rounds if isinstance(rounds, int) else None

    def anchored(self, folder: Path) -> Self:
        """The study with the path of its first weights, if any, taken as relative to a folder."""
        if self.weights is None:
            return self
        model = {**self.run["model"], "init": str(folder / self.weights)}
        return self.model_copy(update={"run": {**self.run, "model": model}})

    def with_weights(self, path: Path | None, sha256: str) -> Self:
        """The study with first weights of this hash, in a file or, for sending, by hash alone."""
        keys = {"init_sha256": sha256} | ({} if path is None else {"init": str(path)})
        model = {k: v for k, v in self.run["model"].items() if k != "init"} | keys
        return self.model_copy(update={"run": {**self.run, "model": model}})

    def placed(self, kit: Path) -> Self:
        """The study with its first weights, if any, in a kit's folder, where they are named by
        their hash.
        """
        model = self.run.get("model")
        digest = model.get("init_sha256") if isinstance(model, dict) else None
        if isinstance(digest, str):
            return self.with_weights(weights_file(kit, digest), digest)
        return self


class TrainingStudy(RunTerms):
    """A study that trains models.

    Attributes:
        kind: models are trained
        share_scores: silos send their mean training loss, and their accuracy and loss on their own
            validation and test data
        task: what all silos agree on about their data
    """

    kind: Literal["train"] = "train"
    share_scores: bool = True
    task: TaskSettings

    def shares(self, split: str, samples: int) -> bool:  # noqa: ARG002 - as of other kinds
        """Whether silos share scores computed on this many samples of a split."""
        return self.share_scores


class EvaluationStudy(RunTerms):
    """A study that evaluates trained models on the silos' data; it lives on their scores.

    Attributes:
        kind: models are evaluated on every silo's data
        evaluate: the models to evaluate
        task: what all silos agree on about their data; as the evaluated study has it if unset
    """

    kind: Literal["evaluate"]
    evaluate: EvaluateTerms
    task: TaskSettings | None = None

    @field_validator("run")
    @classmethod
    def _only_evaluation_keys(cls, run: Tree) -> Tree:
        if unknown := sorted(set(run) - set(JUDGING)):
            raise ValueError(f"run.{unknown[0]} has no effect where nothing is trained; remove it")
        return run

    @model_validator(mode="after")
    def _has_task(self) -> Self:
        if self.task is None and self.evaluate.of is None:
            raise ValueError("section task is missing: what all silos agree on about their data")
        return self

    def shares(self, split: str, samples: int) -> bool:  # noqa: ARG002 - as of other kinds
        """Whether silos share scores computed on this many samples of a split: not on few."""
        return samples >= LEAST_SAMPLES


class SearchStudy(RunTerms):
    """A study that trains with several settings and selects among them by scores on validation
    samples.

    Attributes:
        kind: settings of a training are tried
        search: the settings to try
        task: what all silos agree on about their data
    """

    kind: Literal["search"]
    search: SearchTerms
    task: TaskSettings

    def shares(self, split: str, samples: int) -> bool:  # noqa: ARG002 - as of other kinds
        """Whether silos share scores computed on this many samples of a split: none of test
        samples.
        """
        return split != "test"


class SurveyStudy(StudyTerms):
    """A study that asks for statistics of the silos' columns.

    Attributes:
        kind: statistics of the silos' columns
        survey: what each silo is asked
    """

    kind: Literal["survey"]
    survey: SurveySettings = Field(default_factory=SurveySettings)


RunStudy = TrainingStudy | EvaluationStudy | SearchStudy
Study = Annotated[RunStudy | SurveyStudy, Field(discriminator="kind")]
STUDY_TYPES: Mapping[str, type[TrainingStudy | EvaluationStudy | SearchStudy | SurveyStudy]] = {
    "train": TrainingStudy,
    "evaluate": EvaluationStudy,
    "search": SearchStudy,
    "survey": SurveyStudy,
}
_STUDY_ADAPTER: TypeAdapter[RunStudy | SurveyStudy] = TypeAdapter(Study)


def study_of(tree: Tree) -> RunStudy | SurveyStudy:
    """A study from its keys.

    Raises ConfigError for every bad key or value, one of another kind of study among them.
    """
    study_kind = tree.get("kind", "train")
    if study_kind not in STUDY_TYPES:
        raise ConfigError(f"kind = {study_kind!r}; {suggestion(str(study_kind), STUDY_TYPES)}")
    return validated(STUDY_TYPES[study_kind], tree)


def read_study(path: Path) -> RunStudy | SurveyStudy:
    """Read a ``STUDY.toml``; the path in ``run.model.init`` is relative to it.

    Raises ConfigError with the file.
    """
    tree = read_file(path, "name the file of a study")
    require_kind(path, tree, "study")
    with named_file(path):
        study = study_of(tree)
        if study.name == KIT:
            raise ConfigError(
                f"name = {KIT!r} is the study that the kits came with; choose another"
            )
    return study if isinstance(study, SurveyStudy) else study.anchored(path.parent)


def parse_study(text: str | bytes) -> RunStudy | SurveyStudy:
    """Parse the text of a study as sent. Raises ProtocolError."""
    tree = parse(text, lambda reason: ProtocolError(f"a study cannot be read: {reason}"), LONGEST)
    try:
        study = _STUDY_ADAPTER.validate_python(tree)
    except ValidationError as fault:
        raise ProtocolError(
            f"a study cannot be read ({first(fault)}); check that both sides run the same version"
        ) from None
    if study.name == KIT:
        raise ProtocolError(f"a study cannot be read: {KIT!r} is the one that the kits came with")
    return study


def at_point(run: Tree, point: Mapping[str, Any]) -> Tree:
    """Section run with the values of a point, by dotted key."""
    tree = dict(run)
    for key, value in point.items():
        first, _, subkey = key.partition(".")
        current = tree.get(first)
        section = {"name": current} if isinstance(current, str) else current
        section = section if isinstance(section, dict) else {}
        tree[first] = at_point(section, {subkey: value}) if subkey else value
    return tree


def weights_file(kit: Path, sha256: str) -> Path:
    """Path of first weights with this hash in a kit. Raises for anything but a SHA-256."""
    return kit / WEIGHTS / f"{sha256 if DIGEST.fullmatch(sha256) else 'none'}.safetensors"
