"""Configuration of a run: a frozen record, resolved from the command line over files over
defaults.
"""

import os
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, Self, TypeGuard

import tomli_w
import torch
from pydantic import (
    BeforeValidator,
    Field,
    ModelWrapValidatorHandler,
    SerializeAsAny,
    ValidationError,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from pomona import methods
from pomona.core.attack import Attack
from pomona.core.bounds import Number
from pomona.core.errors import ConfigError, suggestion
from pomona.core.membership import Membership
from pomona.core.settings import LARGEST, Settings, require_name
from pomona.core.synonyms import canonical
from pomona.core.toml import (
    Choices,
    Tree,
    expand_names,
    explained,
    flat,
    read_text,
    require_shallow,
)
from pomona.core.toml import keys as known_keys
from pomona.core.training_settings import (
    OPTIMIZERS,
    AnyOptimizer,
    Optimizer,
    Passes,
    SecureAggregation,
    Stop,
)
from pomona.data.axes import BundledImages
from pomona.data.section import CHOICES, NAMES, Data
from pomona.methods import METHODS
from pomona.methods.base import MethodSettings
from pomona.methods.one_model.fedavg import FedAvg
from pomona.metrics.metric import METRICS, is_own
from pomona.metrics.outcomes import ThresholdTarget
from pomona.metrics.sampling_error import VerdictSettings
from pomona.models import MODELS, ModelSettings
from pomona.models.parameter_space import Buffers
from pomona.models.settings import LoraTraining
from pomona.objective.augmentation import TRANSFORMS, Augmentation
from pomona.objective.dataset import Precision
from pomona.objective.learning_rate_range_test import ADAPTIVE_RATES, RATES
from pomona.partition import RECIPES, PartitionSettings
from pomona.privacy.settings import Privacy, acknowledged


def _rate(value: Any) -> Any:
    if value != "auto" and not (isinstance(value, int | float) and 0 < value <= LARGEST):
        raise ValueError("must be 'auto' or a finite number above 0")
    return value


def _device(value: Any) -> Any:
    """Resolve a device by name; ``auto`` becomes the available one, so that it is recorded."""
    return ("cuda" if torch.cuda.is_available() else "cpu") if value == "auto" else value


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

TRACKERS = ("mlflow", "tensorboard", "trackio", "wandb")
SECTIONS = ("method", "partition")  # those whose keys follow from their name
KNOWN_NAMES: dict[str, Iterable[str]] = {
    "method": METHODS,
    "data": NAMES,
    "partition": RECIPES,
    "model": MODELS,
    "optimizer": OPTIMIZERS,
}


def _named(layer: Mapping[str, Any]) -> Tree:
    """Expand sections that are given by name only; case and separators of names do not count."""
    tree = expand_names(layer)
    for key, names in KNOWN_NAMES.items():
        section = tree.get(key)
        if isinstance(section, Mapping) and isinstance(name := section.get("name"), str):
            tree[key] = {**section, "name": canonical(name, names)}
    if isinstance(metric := tree.get("metric"), str):
        tree["metric"] = canonical(metric, METRICS)
    return tree


def _method(value: Any) -> Any:
    """Return the settings of a method by name.

    Raises ConfigError for a user's own that cannot be imported.
    """
    if isinstance(value, MethodSettings) and methods.resolve(value.name) is not type(value):
        raise ValueError(f"{type(value).__qualname__} does not match its name; leave name out")
    if not isinstance(value, Mapping):
        return value
    name = value.get("name")
    if not _names_method(name):
        name = require_name(value, [*METHODS, *methods.outside()])
    settings_class = methods.resolve(name)
    short_name = methods.default_name(settings_class)
    return settings_class.model_validate({**value, "name": short_name or name})


def _names_method(name: Any) -> TypeGuard[str]:
    return isinstance(name, str) and (":" in name or methods.is_registered(name))


def own_method(tree: Mapping[str, Any]) -> str | None:
    """Return the name of a tree's method if it is not one of the package."""
    name = _method_name(tree)
    return name if isinstance(name, str) and not methods.is_builtin(name) else None


def _method_name(tree: Mapping[str, Any]) -> Any:
    section = expand_names(tree).get("method")
    return section.get("name") if isinstance(section, Mapping) else None


def _choices(tree: Mapping[str, Any]) -> Choices:
    """Return the settings selected by each section's name, including the tree's own method."""
    name = _method_name(tree)
    custom_method = {name: methods.resolve(name)} if _names_method(name) else {}
    return {"method": {**METHODS, **custom_method}, "partition": RECIPES, **CHOICES}


class Config(Settings):
    """Every setting of a run.

    Sections as in the TOML file; a section may be given by its name only.

    Raises ConfigError with every bad key or value, and suggestions for unknown keys.

    >>> config = Config(method={"name": "apple", "mu": 0.1}, rounds=20)
    >>> config.method.name, config.rounds, config.lr
    ('apple', 20, 'auto')
    >>> Config(rouns=20)
    Traceback (most recent call last):
    pomona.core.errors.ConfigError: unknown key 'rouns'; did you mean rounds?
    """

    method: Annotated[SerializeAsAny[MethodSettings], BeforeValidator(_method)] = FedAvg()
    data: Data = BundledImages()
    partition: PartitionSettings | None = Field(
        None,
        description="who holds which rows; if not set, natural if the data name owners, else iid",
    )
    model: ModelSettings = ModelSettings()
    rounds: int = Field(40, ge=1, le=10**6, description="communication rounds")
    local_epochs: int = Field(
        1, ge=1, le=10**6, description="passes over a client's training data per round"
    )
    local_steps: int | None = Field(
        None,
        ge=1,
        le=10**9,
        description=(
            "steps of a client per round, in place of local_epochs passes; data are "
            "shuffled again after each pass"
        ),
    )
    batch_size: int = Field(32, ge=1, le=10**9, description="samples per step")
    lr: Rate = Field(
        "auto",
        description=(
            "learning rate; auto: chosen by a range test on training loss when a run starts, from "
        )
        + ", ".join(f"{rate:g}" for rate in RATES)
        + "; with adam and adamw from "
        + ", ".join(f"{rate:g}" for rate in ADAPTIVE_RATES),
    )
    momentum: float = Field(
        0.0, ge=0, lt=1, description="momentum of local SGD, zero at the start of each round"
    )
    weight_decay: float = Field(
        0.0, ge=0, le=1e6, description="L2 weight decay; decoupled from the gradient for adamw"
    )
    optimizer: AnyOptimizer = Field(Optimizer(), description="rule of local steps")
    lr_decay: float = Field(
        1.0, gt=0, le=1, description="factor on all rates of training after each round"
    )
    lr_schedule: Literal["constant", "cosine", "steps"] = Field(
        "constant",
        description="factor on all rates of training, in addition to lr_decay: 1; half a cosine "
        "from 1 to 0 over the rounds after warm-up; or lr_factor at each of lr_milestones",
    )
    lr_warmup_rounds: int = Field(
        0,
        ge=0,
        le=10**6,
        description="number k of warm-up rounds; in round r, rates are multiplied by r / (k + 1)",
    )
    lr_milestones: tuple[Number, ...] = Field(
        (), max_length=1000, description="rounds after which lr_schedule = steps lowers the rates"
    )
    lr_factor: float = Field(0.1, gt=0, le=1, description="factor of lr_schedule = steps")
    augment: tuple[Augmentation, ...] = Field(
        (),
        max_length=100,
        description=(
            "random changes of images in training, in this order: name or name:strength, of "
        )
        + ", ".join(f"{name}:{transform.strength:g}" for name, transform in TRANSFORMS.items()),
    )
    seed: int = Field(0, ge=0, lt=2**63, description="seed of all random numbers")
    clients: int = Field(
        12,
        ge=1,
        le=10**4,
        description="number of clients; the data's own number if they name clients",
    )
    participation: float = Field(
        1.0, gt=0, le=1, description="share of the clients in a round, drawn uniformly"
    )
    absence: float = Field(
        0.0,
        ge=0,
        lt=1,
        description=(
            "probability that a client drawn for a round is absent, independently; at "
            "least one stays"
        ),
    )
    largest_share: float = Field(
        1.0, gt=0, le=1, description="largest weight of one client in a mean; 1: no limit"
    )
    workers: int | None = Field(
        None, ge=1, le=10**4, description="worker processes; one per core if not set"
    )
    cluster: str | None = Field(
        None,
        pattern=r"^(ray|[A-Za-z0-9_.-]+:[0-9]{1,5})$",
        description="Ray cluster that runs the workers: host:port, with this machine as a node; "
        "or ray: the one that RAY_ADDRESS names, else this machine",
    )
    state_memory: float = Field(
        0.5,
        gt=0,
        le=1,
        description=(
            "clients' states larger than this share of the machine's memory are kept on disk"
        ),
    )
    rows_per_call: int | None = Field(
        None,
        ge=1,
        le=10**4,
        description="clients that are trained in one call; if not set, all on a GPU; on a CPU 1, "
        "with the native engine as many as share its cache, of apple up to 16",
    )
    precision: Precision = Field(
        "fp32",
        description="bf16: forward and backward under autocast, also in evaluation, with float32 "
        "weights. Saved models are used in float32, so a few samples near a tie may get a "
        "different answer from the report's",
    )
    engine: Annotated[
        str, WithJsonSchema({"anyOf": [{"enum": ["auto", "torch", "native"]}, {"type": "string"}]})
    ] = Field(
        "auto",
        pattern="^[a-z0-9-]{1,40}$",
        description="the engine of gradients and outputs: torch (PyTorch); native (the package "
        "pomona-native, on a CPU, for networks of layers that it supports); or another "
        "installed engine; auto: native if possible, else torch; the default in a federation "
        "is torch",
    )
    device: Annotated[
        Literal["cpu", "cuda"],
        BeforeValidator(_device),
        WithJsonSchema({"enum": ["auto", "cpu", "cuda"]}),
    ] = Field("cpu", description="device of training; auto: cuda if PyTorch sees a GPU, else cpu")
    privacy: Privacy | None = Field(
        None, description="differentially private training of every client"
    )
    secure_aggregation: SecureAggregation | None = Field(
        None,
        description="the server learns only the mean of a round's models, in fixed point; a "
        "simulation computes the same numbers, without masks",
    )
    membership: Membership = Field(
        Membership(), description="clients that join late, leave, or are never trained with"
    )
    attack: Attack | None = Field(
        None,
        description="clients that attack the training; in simulations only, a federation "
        "refuses it",
    )
    checkpoint_every: int = Field(
        1, ge=1, le=10**6, description="rounds between checkpoints; the last is one"
    )
    eval_every: int = Field(
        1, ge=1, le=10**6, description="rounds between evaluations; the last is one"
    )
    stop: Stop | None = Field(None, description="early stopping")
    keep: Literal["last", "best", "own_best"] = Field(
        "last",
        description="model in a client's file: after the last round; after the best round (mean "
        "over clients on validation), with figures and predictions of that round; or after the "
        "client's own best round, with figures of the last",
    )
    buffers: Buffers = Field(
        "local",
        description="BatchNorm statistics of a global model: each client's own, or the mean of "
        "those measured in training",
    )
    metric: str | None = Field(
        None,
        description=f"the headline metric: {', '.join(METRICS)}; chosen by the targets and labels "
        "if not set; or module:function of your own, of (predictions, targets) -> number, "
        "-module:function where less is better",
    )

    verdict: VerdictSettings = Field(VerdictSettings(), description="verdicts on gains")
    specificity: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="classes and labels: specificity that a client's threshold must reach on its "
        "validation samples; without it and sensitivity, the threshold has the largest "
        "sensitivity + specificity - 1 (Youden's J)",
    )
    sensitivity: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="classes and labels: sensitivity that a client's threshold must reach on its "
        "validation samples, in place of specificity",
    )
    track: str | None = Field(
        None,
        exclude=True,  # a run is the same whatever tracks it, and an address may have a password
        repr=False,
        description="tracker that also receives settings and metrics: mlflow:URI, "
        "tensorboard:FOLDER, trackio:PROJECT or wandb:PROJECT; what follows the colon may be left "
        "out",
        json_schema_extra={"pattern": f"^({'|'.join(TRACKERS)})(:|$)"},
    )

    @property
    def passes(self) -> Passes:
        """The length of a client's training in a round."""
        return Passes(self.local_epochs, self.local_steps)

    @field_validator("metric")
    @classmethod
    def _known_metric(cls, name: str | None) -> str | None:
        if name is not None and name not in METRICS and not is_own(name):
            raise ValueError(f"{suggestion(name, METRICS)}; your own: module:function")
        return name

    @model_validator(mode="after")
    def _scheduled(self) -> Self:
        if (self.lr_schedule == "steps") != bool(self.lr_milestones):
            raise ValueError(
                "lr_schedule = 'steps' and lr_milestones go together; set both, or neither"
            )
        return self

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

    @model_validator(mode="after")
    def _tracked(self) -> Self:
        """Checked here, since the error of a field's check would show the value."""
        name = None if self.track is None else self.track.partition(":")[0]
        if name is not None and name not in TRACKERS:
            raise ValueError(f"track: unknown tracker; use one of {', '.join(TRACKERS)}")
        return self

    def idle(self) -> dict[str, str]:
        """A factor is for steps of the rate; epochs are counted unless steps are."""
        factor = (
            {} if self.lr_schedule == "steps" else {"lr_factor": "only for lr_schedule = steps"}
        )
        return factor | (
            {} if self.local_steps is None else {"local_epochs": "only without local_steps"}
        )

    @model_validator(mode="wrap")
    @classmethod
    def _expanded(cls, source: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        """Validate all input, from Python or a file: expand sections given by name, and raise
        faults as ConfigError.
        """
        if not isinstance(source, Mapping):
            return handler(source)
        require_shallow(source)
        tree = _named(source)
        try:
            return handler(tree)
        except ValidationError as fault:
            raise explained(fault, tree, cls, _choices(tree)) from None

    @property
    def rate(self) -> float:
        """The learning rate as a number. Raises ConfigError if it is still "auto"."""
        if isinstance(self.lr, str):
            raise ConfigError("lr = 'auto' is chosen when a run starts; set lr, for example lr=0.1")
        return self.lr

    @property
    def engine_named(self) -> bool:
        """Whether an engine other than PyTorch must compute the run."""
        return self.engine not in {"auto", "torch"}

    @property
    def rows(self) -> int:
        """Number of clients trained in one call."""
        return self.rows_per_call or (1 if self.device == "cpu" else self.clients)

    @property
    def processes(self) -> int:
        """Number of worker processes for clients on this machine, if more than one."""
        return min(self.workers or len(os.sched_getaffinity(0)), self.clients)

    @property
    def void(self) -> str | None:
        """Why the epsilon of a private run is not a bound: there is no noise, it is known, or
        training records are released without it; None if it is a bound.
        """
        if not self.privacy:
            return None
        if self.privacy.void:
            return self.privacy.void
        releases = self.method.method().card.privacy.releases
        exact = [release.name for release in acknowledged(self.privacy, releases) if release.exact]
        return f"no bound: {', '.join(exact)} without noise" if exact else None

    @property
    def adapt_rounds(self) -> int:
        """Training rounds of a client that did not train: one if a second would begin in the same
        state.
        """
        return self.membership.adapt_rounds if self.method.method().lasting else 1

    def tree(self) -> Tree:
        """Return plain values as in a TOML file, without keys that are not set."""
        omit_clients = "clients" not in self.model_fields_set and (
            not self.partition or self.partition.members
        )
        return self.model_dump(
            mode="json", exclude_none=True, exclude={"clients"} if omit_clients else None
        )

    @property
    def chosen(self) -> Tree:
        """Return settings by dotted key that differ from the defaults of the run and its method,
        data and network.
        """
        return flat(self.model_dump(mode="json", exclude_defaults=True, exclude_none=True))

    def toml(self) -> str:
        """Return a TOML file that repeats this run."""
        return tomli_w.dumps(self.tree())


def resolve(*layers: Mapping[str, Any]) -> Config:
    """Resolve layered trees, later ones on the right.

    Raises ConfigError with every bad key or value.
    """
    tree: Tree = {}
    for layer in layers:
        require_shallow(layer)
        merge(tree, _named(layer))
    return Config.model_validate(tree)


def fitted(config: Config) -> Config:
    """Return a run whose low-rank changes are trained as its method trains them, and whose network
    has the bodies that it needs.
    """
    needs = config.method.method().card.needs
    if needs.bodies != config.model.bodies:
        two = config.model.model_copy(update={"bodies": max(needs.bodies, config.model.bodies)})
        config = config.model_copy(update={"model": two})
    train, trained = config.model.train, needs.lora
    if trained == "both" or not isinstance(train, LoraTraining):
        return config
    lora = train.lora.model_copy(update={"trained": trained})
    network = config.model.model_copy(update={"train": LoraTraining(lora=lora)})
    return config.model_copy(update={"model": network})


def merge(tree: Tree, overrides: Mapping[str, Any]) -> None:
    """Merge one tree over another, in place.

    Naming another method or partition drops the previous one's settings.
    """
    for key, value in overrides.items():
        section = tree.get(key)
        if isinstance(value, Mapping) and isinstance(section, dict):
            if (
                key in SECTIONS
                and "name" in section
                and value.get("name", section["name"]) != section["name"]
            ):
                section.clear()
            merge(section, value)
        else:
            tree[key] = dict(value) if isinstance(value, Mapping) else value


def read_overrides(pairs: Iterable[str]) -> Tree:
    """Return the tree of ``key=value`` words; values are TOML if they parse as such, else text.

    Raises ConfigError.
    """
    tree: Tree = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key:
            raise ConfigError(
                f"{pair!r} is neither a TOML file nor key=value; write for example rounds=10 or "
                "method.mu=0.1"
            )
        leaf: Any = _value(text)
        for name in reversed(key.split(".")):
            leaf = {name: leaf}
        require_shallow(leaf)
        merge(tree, expand_names(leaf))
    return tree


def _value(text: str) -> Any:
    try:
        return read_text(f"v = {text}")["v"]
    except ValueError:
        return text


def keys(tree: Tree) -> list[str]:
    """Return all dotted keys of a run with this method and partition."""
    return known_keys(tree, Config, _choices(tree))
