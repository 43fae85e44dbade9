"""Settings of training: who takes part in a round, how a client trains in it, and how models are
judged.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, WithJsonSchema, field_validator, model_validator

from pomona.core.attack import Attack
from pomona.core.bounds import Number
from pomona.core.errors import ConfigError, suggestion
from pomona.core.membership import Membership
from pomona.core.settings import LARGEST, Settings
from pomona.core.training_settings import AnyOptimizer, Optimizer, Passes, SecureAggregation, Stop
from pomona.metrics.metric import METRICS, is_own
from pomona.metrics.outcomes import ThresholdTarget
from pomona.metrics.sampling_error import VerdictSettings
from pomona.models.parameter_space import Buffers
from pomona.objective.augmentation import TRANSFORMS, Augmentation
from pomona.objective.dataset import Precision
from pomona.objective.learning_rate_range_test import ADAPTIVE_RATES, RATES


def _rate(value: Any) -> Any:
    if value != "auto" and not (isinstance(value, int | float) and 0 < value <= LARGEST):
        raise ValueError("must be 'auto' or a finite number above 0")
    return value


Rate = Annotated[
    float | Literal["auto"],
    BeforeValidator(_rate),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "number", "exclusiveMinimum": 0, "maximum": LARGEST},
                {"const": "auto"},
            ]
        }
    ),
]


class TrainingSettings(Settings):
    """How a client trains in a round.

    Attributes:
        local_epochs: passes over a client's training data per round
        local_steps: steps of a client per round, in place of local_epochs passes; data are
            shuffled again after each pass
        batch_size: samples per step
        momentum: momentum of local SGD, zero at the start of each round
        weight_decay: L2 weight decay; decoupled from the gradient for adamw
        optimizer: rule of local steps
        lr_decay: factor on all rates of training after each round
        lr_schedule: factor on all rates of training, in addition to lr_decay: 1; half a cosine
            from 1 to 0 over the rounds after warm-up; or lr_factor at each of lr_milestones
        lr_warmup_rounds: number k of warm-up rounds; in round r, rates are multiplied by
            r / (k + 1)
        lr_milestones: rounds after which lr_schedule = steps lowers the rates
        lr_factor: factor of lr_schedule = steps
        precision: fp32; or bf16: forward and backward under autocast, in evaluation too, in float32
            weights. Saved models are used in float32, so a few samples near a tie may get a
            different answer from the report's
        buffers: BatchNorm statistics of a global model: each client's own, or the mean of those
            measured in training
    """

    local_epochs: int = Field(1, ge=1, le=10**6)
    local_steps: int | None = Field(None, ge=1, le=10**9)
    batch_size: int = Field(32, ge=1, le=10**9)
    lr: Rate = Field(
        "auto",
        description=(
            "learning rate; auto: chosen by a range test on training loss when a run starts, from "
        )
        + ", ".join(f"{rate:g}" for rate in RATES)
        + "; with adam and adamw from "
        + ", ".join(f"{rate:g}" for rate in ADAPTIVE_RATES),
    )
    momentum: float = Field(0.0, ge=0, lt=1)
    weight_decay: float = Field(0.0, ge=0, le=1e6)
    optimizer: AnyOptimizer = Optimizer()
    lr_decay: float = Field(1.0, gt=0, le=1)
    lr_schedule: Literal["constant", "cosine", "steps"] = "constant"
    lr_warmup_rounds: int = Field(0, ge=0, le=10**6)
    lr_milestones: tuple[Number, ...] = Field((), max_length=1000)
    lr_factor: float = Field(0.1, gt=0, le=1)
    augment: tuple[Augmentation, ...] = Field(
        (),
        max_length=100,
        description=(
            "random changes of images in training, in this order: name or name:strength, of "
        )
        + ", ".join(f"{name}:{transform.strength:g}" for name, transform in TRANSFORMS.items()),
    )
    precision: Precision = "fp32"
    buffers: Buffers = "local"

    @property
    def passes(self) -> Passes:
        """The length of a client's training in a round."""
        return Passes(self.local_epochs, self.local_steps)

    @property
    def rate(self) -> float:
        """The learning rate as a number. Raises ConfigError if it is still "auto"."""
        if isinstance(self.lr, str):
            raise ConfigError("lr = 'auto' is chosen when a run starts; set lr, for example lr=0.1")
        return self.lr

    @model_validator(mode="after")
    def _scheduled(self) -> Self:
        if (self.lr_schedule == "steps") != bool(self.lr_milestones):
            raise ValueError(
                "lr_schedule = 'steps' and lr_milestones go together; set both, or neither"
            )
        return self

    def idle(self) -> dict[str, str]:
        """A factor is for steps of the rate; epochs are counted unless steps are."""
        idle = {} if self.lr_schedule == "steps" else {"lr_factor": "only for lr_schedule = steps"}
        if self.local_steps is not None:
            idle["local_epochs"] = "only without local_steps"
        return idle


class CohortSettings(Settings):
    """Who takes part in which round.

    Attributes:
        clients: number of clients; the data's own number if they name clients
        participation: share of the clients in a round, drawn uniformly
        absence: probability that a client drawn for a round is absent, independently; at least
            one stays
        largest_share: largest weight of one client in a mean; 1: no limit
        secure_aggregation: the server learns only the mean of a round's models, in fixed point; a
            simulation computes the same numbers, without masks
        membership: clients that join late, leave, or are never trained with
        attack: clients that attack the training; in simulations only, a federation refuses it
    """

    clients: int = Field(12, ge=1, le=10**4)
    participation: float = Field(1.0, gt=0, le=1)
    absence: float = Field(0.0, ge=0, lt=1)
    largest_share: float = Field(1.0, gt=0, le=1)
    secure_aggregation: SecureAggregation | None = None
    membership: Membership = Membership()
    attack: Attack | None = None


class EvaluationSettings(Settings):
    """How models are judged, and which round's are kept.

    Attributes:
        eval_every: rounds between evaluations; the last round always has one
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
