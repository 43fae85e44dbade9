"""Settings of evaluation: when, by which metric, which round counts, and what a verdict needs."""

from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from pomona.core.errors import suggestion
from pomona.core.settings import Settings
from pomona.core.training_settings import Stop
from pomona.metrics.metric import METRICS, is_own
from pomona.metrics.outcomes import ThresholdTarget
from pomona.metrics.sampling_error import VerdictSettings


class EvaluationSettings(Settings):
    """How models are judged, and which round's are kept.

    Attributes:
        eval_every: rounds between evaluations; the last is one
        stop: early stopping
        keep: model in a client's file: after the last round; after the best round (mean over
            clients on validation), with figures and predictions of that round; or after the
            client's own best round, with figures of the last
        verdict: verdicts on gains
        specificity: classes and labels: specificity that a client's threshold must reach on its
            validation samples; without it and sensitivity, the threshold has the largest
            sensitivity + specificity - 1 (Youden's J)
        sensitivity: classes and labels: sensitivity that a client's threshold must reach on its
            validation samples, in place of specificity
    """

    eval_every: int = Field(1, ge=1, le=10**6)
    stop: Stop | None = None
    keep: Literal["last", "best", "own_best"] = "last"
    metric: str | None = Field(
        None,
        description=f"the headline metric: {', '.join(METRICS)}; chosen by the targets and labels "
        "if not set; or module:function of your own, of (predictions, targets) -> number, "
        "-module:function where less is better",
    )
    verdict: VerdictSettings = VerdictSettings()
    specificity: float | None = Field(None, gt=0, lt=1)
    sensitivity: float | None = Field(None, gt=0, lt=1)

    @field_validator("metric")
    @classmethod
    def _known_metric(cls, name: str | None) -> str | None:
        if name is not None and name not in METRICS and not is_own(name):
            raise ValueError(f"{suggestion(name, METRICS)} (one of your own: module:function)")
        return name

    @model_validator(mode="after")
    def _one_target(self) -> Self:
        if self.sensitivity is not None and self.specificity is not None:
            raise ValueError("sensitivity and specificity: a threshold has one target; set one")
        return self

    @property
    def threshold_target(self) -> ThresholdTarget | None:
        """What clients' thresholds must reach on validation samples; None for Youden's index."""
        if self.sensitivity is not None:
            return ThresholdTarget("sensitivity", self.sensitivity)
        if self.specificity is not None:
            return ThresholdTarget("specificity", self.specificity)
        return None
