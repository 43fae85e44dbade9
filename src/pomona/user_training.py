"""Any method around a user's own training code: the model, the loaders and the step are theirs.

``personalize`` is for a script; ``pomona_federation.flower`` has the same for an app of Flower.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from math import isnan, nan
from time import perf_counter
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from pomona.config import Config
from pomona.core.bounds import SPLITS
from pomona.core.errors import ConfigError, listed
from pomona.core.membership import PlannedMembership
from pomona.core.notes import CallerWarnings
from pomona.core.round import Roster, Round
from pomona.core.training_settings import require_steps
from pomona.federation.callbacks import CallbackList, RunNotes, require_hooks
from pomona.federation.checkpointing import Checkpointing
from pomona.federation.client import ClientRuntime
from pomona.federation.exchange import Groups
from pomona.federation.loop import Loop
from pomona.federation.progress import in_notebook
from pomona.federation.recorded_models import ModelChoice
from pomona.federation.run_checks import caution
from pomona.federation.scoring import EVALUATED, Model, Scoring
from pomona.federation.transport import Inline, Transport
from pomona.lifecycle import close_record, open_record
from pomona.methods import base
from pomona.metrics.metric import METRICS, Metric, Score
from pomona.models.parameter_space import ModuleOnRow, ParameterSpace
from pomona.objective.objective import Objective
from pomona.objective.user_code import Loaders, OptimizerRule, UserCode, metric_of, samples_in
from pomona.objective.user_step import ELSEWHERE, UserObjective
from pomona.personal.collect import collect_models
from pomona.record.result import Result
from pomona.record.run_folder import RunRecord

MethodHalf = TypeVar("MethodHalf", base.Server, base.Client)
STEPS = ("local_epochs", "local_steps", "lr", "momentum", "weight_decay", "optimizer", "batch_size")
"""Settings of a client's steps, which must be those of the user's code."""
SETTINGS = frozenset((*STEPS, "method", "rounds", "seed", "largest_share", "metric", "eval_every"))
"""Settings that a client needs; the server has ``participation`` and ``absence`` besides."""
INSEPARABLE = {
    "output-criterion": "a loss on the network's outputs or features",
    "class-means": "the features of each class",
    "shared-samples": "samples of other clients",
}
"""What some methods need besides gradients, losses and steps, by the name of its release."""


class UserConfig(Config):
    """Settings of a run around a user's training; without ``lr`` the rate is not known: NaN."""

    @property
    def rate(self) -> float:
        """The learning rate of the user's optimizer, NaN if not set."""
        return nan if isinstance(self.lr, str) else self.lr

    @property
    def rule(self) -> OptimizerRule:
        """The user's optimizer, as far as it is set."""
        settings = self.rate, self.momentum, self.weight_decay, self.optimizer, self.passes
        return OptimizerRule(*settings)


def user_config(clients: int, **settings: Any) -> UserConfig:
    """Return the settings of a run around a user's training.

    Raises ConfigError for settings of what is in the user's code, or in Pomona's training alone,
    and for methods that need more of the data.
    """
    misplaced = settings.keys() & Config.model_fields.keys() - SETTINGS - {
        "participation",
        "absence",
    }
    if misplaced:
        raise ConfigError(
            f"{listed(sorted(misplaced), 10)}: in your own code, or only with Pomona's own "
            "training, pomona.run; leave it out"
        )
    config = UserConfig(clients=clients, **settings)
    method, name = config.method.method(), config.method.name
    if unavailable := INSEPARABLE.keys() & {r.name for r in method.card.privacy.releases}:
        raise ConfigError(
            f"{name} needs {INSEPARABLE[min(unavailable)]}, and your code {ELSEWHERE}"
        )
    if required := method.card.needs.model:
        keys = ", ".join(f"model.{key}" for key in required)
        raise ConfigError(f"{name} sets {keys}, and the model is your own")
    if method.card.needs.without_lora:
        raise ConfigError(f"{name} trains low-rank changes of a network, and your code {ELSEWHERE}")
    require_steps(name, method.card.needs.steps, config.momentum, config.optimizer)
    return config


@dataclass(frozen=True)
class UserScoring(Scoring):
    """Scores by a user's own ``test``."""

    def scores(
        self,
        objective: Objective,
        model: Model,
        clients: Sequence[int],
        W: Tensor,
        splits: Sequence[str] = EVALUATED,
    ) -> list[list[Score]]:
        """Return the scores of each client's own row of W (n, d) on its loader of each split."""
        assert isinstance(objective, UserObjective)
        rows = zip(clients, W, strict=True)
        return [[self._tested(objective, model, s, i, w) for s in splits] for i, w in rows]

    def _tested(
        self, objective: UserObjective, model: Model, split: str, client: int, w: Tensor
    ) -> Score:
        loaders, name = objective.loaders[client], self.metric.name
        if objective.code.test is None or split not in loaders:
            return Score(*model, split, 0)
        figures = objective.tested(w, client, split)
        loss, value = metric_of(figures, "loss"), metric_of(figures, name)
        if value is not None and not self.metric.low <= value <= self.metric.high:
            raise ConfigError(f"test returns {value:.4g}, which no {self.metric.title} can be")
        accuracy = value if name == "accuracy" else None
        return Score(*model, split, samples_in(loaders[split], split), loss, accuracy, value)


@dataclass(frozen=True)
class UserFederation:
    """A user's model and settings, as a run needs them.

    Attributes:
        config: the settings.
        module: the model, whose values are where training starts.
        names: of the clients, in the order of their numbers.
        sizes: split -> each client's number of samples.
    """

    config: UserConfig
    module: nn.Module
    names: tuple[str, ...]
    sizes: Mapping[str, tuple[int, ...]]

    @cached_property
    def space(self) -> ParameterSpace:
        """The model's tensors in a row."""
        return ParameterSpace(self.module)

    @cached_property
    def initial(self) -> base.Initial:
        """The model that training starts from."""
        space = self.space
        common = space.pack(self.module)

        def row(client: int | None) -> Tensor:
            if client is not None:
                raise ConfigError(
                    f"{self.config.method.name} draws several initial models, and yours is the "
                    "only one; pomona.run can draw them"
                )
            return common.clone()

        return base.Initial.from_space(space, row, torch.empty(0))

    @cached_property
    def method(self) -> base.Method:
        """The method; its halves cannot read a rate that is not set."""
        config, method = self.config, self.config.method.method()
        halves = with_user_rounds(method.server, config), with_user_rounds(method.client, config)
        return replace(method, server=halves[0], client=halves[1])

    def state_dict(self, row: Tensor) -> dict[str, Any]:
        """Return the model's state dict at a row (d,), of which its tensors are views."""
        with unchanged(self.module):
            ModuleOnRow(self.module).point_at(row)
            return self.module.state_dict()

    @property
    def metric(self) -> Metric:
        """The metric of the user's ``test``."""
        return METRICS[self.config.metric or "accuracy"]

    @property
    def roster(self) -> Roster:
        """All clients."""
        return Roster(self.sizes["train"], self.config.largest_share)

    def runtime(self, objective: UserObjective, groups: Groups) -> ClientRuntime:
        """Return the clients of a process, one in each group."""
        config, method = self.config, self.method
        choice = ModelChoice("last", method.card.headline, self.metric)
        return ClientRuntime(
            method.client,
            objective,
            self.initial,
            groups,
            config.seed,
            scoring=UserScoring(self.metric),
            choice=choice,
        )

    def record(self) -> RunRecord:
        """Return the record of a run, in memory, begun."""
        config = self.config
        tree = config.tree() | {
            "data": {"name": "loaders"},
            "partition": {"name": "natural"},
            "model": {"name": type(self.module).__name__},
        }
        record = RunRecord(None, tree)
        sizes = {split: list(self.sizes.get(split, (0,) * len(self.names))) for split in SPLITS}
        described = {"clients": list(self.names), "sizes": sizes, "metric": self.metric.name}
        open_record(record, self.config, len(self.initial()), {}, described)
        return record

    def loop(self, transport: Transport, record: RunRecord, notes: RunNotes, quorum: int) -> Loop:
        """Return the round loop over a transport."""
        config = self.config
        if config.rule.has_rate and (warning := caution(config)):
            notes.add(warning)
        if dtypes := {str(p.dtype) for p in self.module.parameters()} - {"torch.float32"}:
            notes.add(f"parameters are {min(dtypes)}; between steps they are kept as float32")
        if self.space.has_statistics:
            notes.add("BatchNorm statistics and other buffers stay with each client, unaveraged")
        notes.write(record)
        return Loop(
            config,
            self.method.server,
            PlannedMembership(config.membership, self.roster),
            self.initial,
            transport,
            record,
            notes.callback,
            Checkpointing(None, 1, {}),
            quorum,
            self.metric,
            client_name=self.names.__getitem__,
        )


class UserRound(Round):
    """A round of a user's training: reading a rate (NaN) or a batch size (0) that they have not set
    is refused; ``dataclasses.replace`` only copies them.
    """

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        unknown = (name == "lr" and isnan(value)) or (name == "batch_size" and not value)
        if unknown and sys._getframe(1).f_globals["__name__"] != "dataclasses":
            raise ConfigError(
                f"this method's equations contain your {name}: set it, and if they are "
                "not 0, 0 and 1 your momentum, weight_decay and local_epochs"
            )
        return value


def with_user_rounds(half: MethodHalf, config: UserConfig) -> MethodHalf:
    """Return half of a method whose functions get a ``UserRound``."""
    size = config.batch_size if "batch_size" in config.model_fields_set else 0

    def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            return function(
                *(
                    UserRound(**{**vars(a), "batch_size": size}) if isinstance(a, Round) else a
                    for a in arguments
                )
            )

        return call

    members: dict[str, Any] = {f.name: getattr(half, f.name) for f in fields(half)}
    functions: dict[str, Any] = {k: wrapped(v) for k, v in members.items() if callable(v)}
    return replace(half, **functions)


def splits_of(value: Any, name: str) -> Loaders:
    """Return a client's loaders by split; a single one trains.

    Raises ConfigError for names that are no splits.
    """
    if not isinstance(value, Mapping):
        return {"train": value}
    if "train" not in value or not set(value) <= set(SPLITS):
        raise ConfigError(
            f"{name}: loaders {listed(list(map(str, value)), 10)}; give train, and if you have "
            "them validation and test"
        )
    return value


def personalize(
    model: nn.Module,
    loaders: Mapping[str, Any],
    method: str | Mapping[str, Any] | base.MethodSettings = "apple",
    step: Callable[[nn.Module, Any], Any] | None = None,
    *,
    train: Callable[[nn.Module, Any], Any] | None = None,
    test: Callable[[nn.Module, Any], Any] | None = None,
    callback: object = None,
    **settings: Any,
) -> Result:
    """Train a model for each client with your own training code, by any method that is separable.

    Args:
        model: any network; its values are where training starts, and are there again at the end.
        loaders: by client a loader of training batches, or loaders by split: train, validation,
            test. A list of batches is a loader.
        method: a name of ``pomona methods``, or a section ``method``.
        step: (model, batch) -> loss: your code for a batch, with your optimizer's step.
        train: (model, loader) -> loss: in its place your code for a whole pass.
        test: (model, loader) -> loss; (loss, metric); or both by name, for scores.
        callback: as for ``pomona.run``.
        settings: of ``Config``, such as ``rounds``, ``local_epochs`` (for ``step``),
            ``participation``, ``seed``, and ``metric``, which names that of ``test``: accuracy if
            not set. ``lr``, ``momentum``, ``weight_decay`` and ``optimizer`` are for methods whose
            equations have them; they must be those of your optimizer.

    Returns:
        The result; ``models`` has each client's state dict by its number.

    Raises:
        PomonaError: with the remedy, also for a method that your code cannot be had for.

    >>> model = torch.nn.Linear(4, 2)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> def step(model, batch):
    ...     x, y = batch
    ...     loss = torch.nn.functional.cross_entropy(model(x), y)
    ...     optimizer.zero_grad()
    ...     loss.backward()
    ...     optimizer.step()
    ...     return loss
    >>> batches = [(torch.randn(8, 4), torch.randint(2, (8,))) for _ in range(2)]
    >>> result = personalize(model, {"A": batches, "B": batches}, "apple", step, rounds=2)
    >>> sorted(result.models[0])
    ['bias', 'weight']
    """
    require_hooks(callback)
    code, names = UserCode(step, train, test), tuple(map(str, loaders))
    if not names:
        raise ConfigError("loaders has no clients; give a dictionary of client: loader")
    splits = [splits_of(value, name) for name, value in zip(names, loaders.values(), strict=True)]
    config = user_config(len(names), method=method, **settings)
    sizes = {
        split: tuple(
            samples_in(client_loaders[split], name) if split in client_loaders else 0
            for client_loaders, name in zip(splits, names, strict=True)
        )
        for split in SPLITS
    }
    federation = UserFederation(config, model, names, sizes)
    display = in_notebook(config) if callback is None else None
    callbacks = CallbackList(callback, display or CallerWarnings(sys._getframe(1)))
    with unchanged(model):
        result = _run(federation, code, dict(enumerate(splits)), RunNotes(callbacks))
    if display:
        display.on_run_end(result)
    return result


@contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
    """Give a model the values back that it has now, in the same memory."""
    tensors = [*model.parameters(), *model.buffers()]
    values = [tensor.data for tensor in tensors]
    try:
        yield
    finally:
        for tensor, value in zip(tensors, values, strict=True):
            tensor.data = value


def _run(
    federation: UserFederation, code: UserCode, loaders: Mapping[int, Loaders], notes: RunNotes
) -> Result:
    """Run all rounds in this process."""
    config, ids, start = federation.config, tuple(loaders), perf_counter()
    _ = federation.initial  # before any training changes the model
    objective = UserObjective(federation.module, code, loaders, config.rule, config.method.name)
    groups = tuple((i,) for i in ids)
    transport = Inline(partial(federation.runtime, objective), groups)
    record = federation.record()
    loop = federation.loop(transport, record, notes, quorum=1)
    loop.run()
    headline = config.method.method().card.headline
    models = collect_models(transport, len(ids), headline, loop.curve.best_round)
    return replace(close_record(record, perf_counter() - start), models=models)
