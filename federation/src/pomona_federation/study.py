"""A study: one agreement on an existing federation, ``STUDY.toml``. The federation's own kit may come with one, too."""

import re
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, ValidationError, model_validator

from pomona.core.bounds import DIGEST, PLACES, Name, NameOrNone, first, parse
from pomona.core.errors import ConfigError, ProtocolError
from pomona.core.settings import Settings
from pomona.core.toml import Tree, read_file, validated
from pomona_federation.study_kinds import JUDGING, EvaluateTerms, SearchTerms
from pomona_federation.survey.settings import SurveySettings
from pomona_federation.task_settings import TaskSettings

WEIGHTS = "weights"  # folder of a kit
DAY = 86400.0  # seconds
LONGEST = 16 * 2**20  # largest study on the wire in bytes; a vocabulary of a million words fits


def _told_from_hashes(name: str) -> str:
    """Reject names that look like the first digits of a hash, by which administrators name other studies."""
    if re.fullmatch("[0-9a-f]{8,}", name):
        raise ValueError("could be the first digits of a hash; put another letter or a hyphen into it")
    return name


StudyName = Annotated[Name, AfterValidator(_told_from_hashes)]
Kind = Literal["train", "evaluate", "search", "survey"]


class StudyTerms(Settings):
    """Terms of a study: what is computed, on which data, for how long, and what may leave a silo."""

    kind: Kind = Field("train", description="what is done")
    view: NameOrNone = Field("", description="which of a silo's data: [views.NAME] of its silo.toml; [data] if empty")
    deadline: float = Field(7200.0, gt=0, description="seconds a round may take")
    patience: float = Field(300.0, ge=0, description="seconds a round waits for a silo whose node is offline")
    wait: float = Field(600.0, ge=0, description="seconds to wait for the silos at the start")
    wire: Literal["fp32", "bf16"] = Field("fp32", description="numbers as they travel")
    share_scores: bool = Field(
        True, description="silos send their accuracy and loss on their own validation and test data"
    )
    run: Tree = Field({}, description="keys of a run, without those that every silo sets for itself")
    tasked: TaskSettings | None = Field(None, alias="task", description="what all silos agree on about their data")
    evaluate: EvaluateTerms | None = Field(None, description="of kind evaluate: the models that are evaluated")
    search: SearchTerms | None = Field(None, description="of kind search: the settings that are tried")
    survey: SurveySettings | None = Field(
        default_factory=lambda known: SurveySettings() if known.get("kind") == "survey" else None,
        description="of kind = 'survey': what every silo is asked",
    )

    @model_validator(mode="after")
    def _of_one_kind(self) -> Self:
        """Check that the other settings fit the sections evaluate and search."""
        for kind in ("evaluate", "search"):
            if (getattr(self, kind) is not None) != (self.kind == kind):
                raise ValueError(f"kind = {kind!r} and section {kind} go together; give both, or neither")
        if self.kind in {"evaluate", "search"} and not self.share_scores:
            raise ValueError(f"kind = {self.kind!r} needs the silos' scores; set share_scores = true")
        if self.evaluate and (other := sorted(set(self.run) - set(JUDGING))):
            raise ValueError(f"run.{other[0]} has no effect where nothing is trained; remove it")
        return self


class Study(StudyTerms):
    """A study on an existing federation, which every silo accepts or declines by its hash."""

    name: StudyName = Field(description="its name, which no other study of this federation had")
    quorum: int | None = Field(
        None, ge=1, le=PLACES, description="least silos whose uplinks make a round; as the federation has it if unset"
    )
    decide: float = Field(
        7 * DAY, ge=0, description="seconds that silos have to accept or decline, before it starts without the rest"
    )

    @model_validator(mode="after")
    def _stands(self) -> Self:
        told = self.kind == "survey" or (
            self.evaluate and self.evaluate.of is not None
        )  # trained by no study, or by another one
        if self.tasked is None and not told:
            raise ValueError("section task is missing, which says what all silos agree on about their data")
        if self.kind == "survey" and (self.tasked or self.run):
            raise ValueError("a survey trains no model; take sections run and task out")
        if (self.kind == "survey") != (self.survey is not None):
            raise ValueError("section survey is for kind = 'survey', and for no other")
        return self

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a ``STUDY.toml``; the path in ``run.model.init`` is relative to it. Raises ConfigError with the file."""
        try:
            study = validated(cls, read_file(path))
            if study.weights:
                anchored = {**study.run["model"], "init": str(path.parent / study.weights)}
                study = study.model_copy(update={"run": {**study.run, "model": anchored}})
        except ConfigError as fault:
            raise ConfigError(f"{path}: {fault}") from None
        return study

    @property
    def weights(self) -> Path | None:
        """The file of first weights, if the study names one by path."""
        model = self.run.get("model")
        return Path(str(model["init"])) if isinstance(model, dict) and "init" in model else None

    def with_weights(self, given: Path | None, sha256: str) -> Self:
        """The study with first weights of this hash, in a file or, for sending, by hash alone."""
        named = {"init_sha256": sha256} | ({} if given is None else {"init": str(given)})
        model = {k: v for k, v in self.run["model"].items() if k != "init"} | named
        return self.model_copy(update={"run": {**self.run, "model": model}})

    def placed(self, kit: Path) -> Self:
        """The study with its first weights, if any, in a kit's folder, where they are named by their hash."""
        model = self.run.get("model")
        digest = model.get("init_sha256") if isinstance(model, dict) else None
        return self.with_weights(weights_file(kit, digest), digest) if isinstance(digest, str) else self

    @classmethod
    def parse(cls, text: str | bytes) -> Self:
        """Parse the text of a study as sent. Raises ProtocolError."""
        tree = parse(text, lambda why: ProtocolError(f"a study cannot be read: {why}"), LONGEST)
        try:
            return cls.model_validate(tree)
        except ValidationError as fault:
            raise ProtocolError(
                f"a study cannot be read ({first(fault)}); check that both sides run the same version"
            ) from None

    @property
    def text(self) -> str:
        """The study as sent, in JSON."""
        return self.model_dump_json()


def weights_file(kit: Path, sha256: str) -> Path:
    """Path of first weights with this hash in a kit. Raises for anything but a SHA-256."""
    return kit / WEIGHTS / f"{sha256 if DIGEST.fullmatch(sha256) else 'none'}.safetensors"
