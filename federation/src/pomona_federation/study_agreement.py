"""What the members of a federation agree to for one study, and its hash."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pomona.core.errors import ConfigError
from pomona.core.registry import code_sha256
from pomona.core.training_settings import LEAST_IN_A_SUM
from pomona_federation.named_code import named_code
from pomona_federation.study import (
    KIT,
    EvaluationStudy,
    RunStudy,
    SearchStudy,
    Study,
    SurveyStudy,
    at_point,
)
from pomona_federation.study_sections import EvaluateTerms
from pomona_federation.survey.settings import SurveySettings
from pomona_federation.task_settings import TaskSettings

if TYPE_CHECKING:
    from pomona.config import Config
    from pomona_federation.agreement import Federation

SHARE = 0.5  # largest share of one silo in a mean, by default: no more than all others together


@dataclass(frozen=True)
class StudyAgreement:
    """What the members of a federation agree to for one study; ``trial``: its number, in a
    search.
    """

    federation: "Federation"
    study: Study
    trial: int | None = None

    @property
    def survey(self) -> SurveySettings | None:
        """What every silo is asked, in a survey."""
        return self.study.survey if isinstance(self.study, SurveyStudy) else None

    @property
    def evaluate(self) -> EvaluateTerms | None:
        """The models that are evaluated, in an evaluation."""
        return self.study.evaluate if isinstance(self.study, EvaluationStudy) else None

    @property
    def from_kit(self) -> bool:
        """Whether it is the study that the kits came with."""
        return self.study.name == KIT

    @property
    def quorum(self) -> int:
        """Least silos whose uplinks make a round; no fewer than a sum needs that hides them."""
        minimum = self.federation.quorum if self.study.quorum is None else self.study.quorum
        return max(minimum, self.least_in_a_sum or 1)

    @property
    def least_in_a_sum(self) -> int | None:
        """Least silos of a sum, with secure aggregation; None without it, or if section run is
        wrong.
        """
        run = {} if isinstance(self.study, SurveyStudy) else self.study.run
        terms = run.get("secure_aggregation")
        minimum = terms.get("minimum", LEAST_IN_A_SUM) if isinstance(terms, dict) else None
        return minimum if isinstance(minimum, int) else None

    @property
    def seeds(self) -> Sequence[Any]:
        """The seeds that section run or the space of a search names."""
        space = self.study.search.space if isinstance(self.study, SearchStudy) else {}
        run = {} if isinstance(self.study, SurveyStudy) else self.study.run
        return space.get("seed") or ([run["seed"]] if "seed" in run else [])

    @property
    def run_study(self) -> RunStudy:
        """The study, which has a run. Raises ConfigError for a survey."""
        if isinstance(self.study, SurveyStudy):
            raise ConfigError("a survey computes no run")
        return self.study

    @property
    def task(self) -> TaskSettings:
        """The agreed task settings. Raises ConfigError if there are none."""
        if self.run_study.task is None:
            raise ConfigError("section task is missing: what all silos agree on about their data")
        return self.run_study.task

    @property
    def largest_share(self) -> float:
        """Largest share of one silo in a mean: from section run, else the federation's default."""
        run = {} if isinstance(self.study, SurveyStudy) else self.study.run
        value = run.get("largest_share", SHARE)
        return float(value) if isinstance(value, int | float) and 0 < value <= 1 else SHARE

    @cached_property
    def config(self) -> "Config":
        """The run, with one client per place.

        Raises ConfigError for keys that do not belong in section run.
        """
        from pomona_federation.agreed_config import resolved  # imported late: it loads PyTorch

        return resolved(
            self.run_study, self.task, self.federation.places, SHARE, self.federation.insecure
        )

    @cached_property
    def trials(self) -> "tuple[StudyAgreement, ...]":
        """The agreement under each setting of a search, each run as a study of its own; empty for
        other kinds.
        """
        if not isinstance(self.study, SearchStudy) or self.trial is not None:
            return ()
        return tuple(
            self._tried(self.study, number, point)
            for number, point in enumerate(self.study.search.trials)
        )

    def _tried(self, study: SearchStudy, number: int, point: Mapping[str, Any]) -> "StudyAgreement":
        tried = study.model_copy(update={"run": at_point(study.run, point)})
        return replace(self, study=tried, trial=number)

    @property
    def runs(self) -> "tuple[StudyAgreement, ...]":
        """The agreements that are run: a search's trials, or else the study itself."""
        return self.trials or (self,)

    def require_places(self) -> None:
        """Raise ConfigError if a round needs more silos than there can be."""
        n_places = self.federation.places
        if (self.least_in_a_sum or 0) > n_places:
            raise ConfigError(
                f"run.secure_aggregation.minimum = {self.least_in_a_sum}, but there are {n_places} "
                "places; lower it"
            )
        if self.quorum > n_places:
            raise ConfigError(
                f"quorum = {self.quorum}, but there are {n_places} places; lower quorum"
            )

    def require_computable(self) -> None:
        """Raise ConfigError if the study cannot be run."""
        self.require_places()
        space = self.study.search.space if isinstance(self.study, SearchStudy) else ()
        changing = [key for key in ("largest_share", "participation", "absence") if key in space]
        if changing and self.least_in_a_sum:
            raise ConfigError(
                f"search.space.{changing[0]}: silos refuse a second sum of the same changes, over "
                "other silos or weights, which reveals single ones; submit a study for each value, "
                "with another seed"
            )
        if not isinstance(self.study, SurveyStudy):
            for terms in (self, *self.trials):
                _ = terms.config

    @cached_property
    def agreement(self) -> str:
        """SHA-256 in hex of what a silo agrees to, defaults written out.

        It covers the federation's name, places, most_samples and protocol; of the study its name,
        kind, view, wire, share_scores, task, survey, evaluate, and run with the file of each module
        that it names; of a search the agreement of each trial, and of a trial its number. First
        weights enter by their hash, not their path.
        """
        content = self.federation.terms | self.study.model_dump(mode="json", exclude=NOT_AGREED)
        content |= {"trial": self.trial} if self.trial is not None else {}
        content |= {} if isinstance(self.study, SurveyStudy) else self._computed()
        return hashed(content | {"study": self.study.name})

    @property
    def own_code(self) -> dict[str, str]:
        """SHA-256 in hex of the file of each own module that the run names, by ``module:name``."""
        mine = ("pomona.", "pomona_federation.")  # are of the version, not of the agreement
        names = [name for name in named_code(self.config.tree()) if not name.startswith(mine)]
        return {name: code_sha256(name) for name in names}

    def _computed(self) -> dict[str, Any]:
        """The computation: the run with its defaults, and the hashes of the run's custom code."""
        from pomona_federation.agreed_config import ELSEWHERE

        run = {k: v for k, v in self.config.tree().items() if k not in ELSEWHERE}
        run["model"] = {k: v for k, v in run["model"].items() if k != "init"}
        code = {"code": hashes} if (hashes := self.own_code) else {}
        tried = {"search": [trial.agreement for trial in self.trials]} if self.trials else {}
        return {"run": run, **code, **tried}

    @property
    def digits(self) -> str:
        """The first 16 digits of the agreement in groups of four, for comparison by telephone."""
        return in_fours(self.agreement)


# Keys of a study that decide nothing of what a silo computes or tells: how long is waited, and for
# how many.
NOT_AGREED = {"name", "deadline", "patience", "wait", "quorum", "decide", "run"}


def hashed(content: Mapping[str, Any]) -> str:
    """SHA-256 in hex of the canonical JSON text of a value."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def in_fours(digest: str) -> str:
    """The first 16 digits of a hash, in groups of four."""
    return " ".join(digest[i : i + 4] for i in range(0, 16, 4))
