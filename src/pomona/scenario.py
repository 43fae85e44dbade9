"""A scenario: a data set with its partition and a matching network, complete before any
training.
"""

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, reduce
from hashlib import sha256
from math import prod
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pomona.config import Config, fitted, resolve
from pomona.core.bounds import SPLITS, Targets
from pomona.core.errors import ConfigError
from pomona.core.notes import Note
from pomona.core.rng import number
from pomona.core.toml import Tree
from pomona.data import read
from pomona.data.dataset import Dataset, network_shape
from pomona.data.settings import DataSettings
from pomona.data.tables.tabular import moments
from pomona.methods.base import Initial
from pomona.metrics.metric import ACCURACY
from pomona.models import build
from pomona.models.frozen_prefix import SplitNetwork, split_network
from pomona.models.huggingface import require_padding, resolved
from pomona.models.layers import active, frozen, share
from pomona.models.parameter_space import ParameterSpace
from pomona.models.weights import initial as initial_weights
from pomona.objective import augmentation, class_weights
from pomona.objective.dataset import DeviceDataset, as_learned, cached, groups_of, largest_groups
from pomona.objective.engine import NATIVE, Computation, EngineError, load_engine
from pomona.objective.objective import Criterion, Objective
from pomona.objective.private import PrivateObjective
from pomona.objective.pytorch import TorchObjective
from pomona.objective.stacked import StackedObjective
from pomona.partition import divide, usual
from pomona.partition.divergence import label_counts, noted, remarks
from pomona.partition.groups import apply_turns
from pomona.partition.natural import FromFile, Natural
from pomona.partition.partition import Partition, client_names
from pomona.partition.poison import poisoned
from pomona.partition.recipe import class_numbers
from pomona.partition.split_notes import Clients, split_notes
from pomona.privacy.accounting import epsilon, of_groups, projected
from pomona.scenario_checks import require_covered, require_patches, require_samples, require_task
from pomona.tasks import Task, task_of
from pomona.tasks.criterion import constants, criterion, require_per_sample
from pomona.tasks.scores import Choice, choose, compute

T = TypeVar("T")
CONSTANT_BATCH = 2**24  # outputs
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


@dataclass(frozen=True)
class Scenario:
    """Data, partition and network of a run.

    ``titles`` name its clients, where the data do not; ``assumed`` says how rows are divided if
    neither data nor settings do.
    """

    config: Config
    dataset: Dataset
    partition: Partition
    titles: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()
    _computed: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    @classmethod
    def prepare(
        cls, config: Config, reader: Callable[[DataSettings], Dataset] = read, agreed: bool = False
    ) -> "Scenario":
        """Read, validate and divide the data, and check them with the network and the method;
        the scenario's config has its number of clients resolved.

        ``agreed``: whether the reader's form, including units of targets, was agreed before, so
        that nothing is learned for it.

        Raises DataError or ConfigError, before anything is computed or written.
        """
        scenario = cls.divided(config, reader, agreed)
        scenario.check(agreed)
        return scenario

    @classmethod
    def divided(
        cls, config: Config, reader: Callable[[DataSettings], Dataset] = read, agreed: bool = False
    ) -> "Scenario":
        """As ``prepare``, without the check."""
        dataset, config = reader(config.data), fitted(config)
        assumed, config = _assumed(config, dataset), _completed(config, dataset, agreed)
        partition = divide(dataset, config.data, config.partition, config.clients, config.seed)
        config.membership.check(config.clients, config.rounds)
        dataset = noted(dataset, partition)
        if dataset.learn:  # the reader did not know which rows the partition would hold out
            founders = _founders(config, partition)
            dataset = dataset.learn(dataset, _trained(partition, founders), _trained(partition))
        dataset = apply_turns(dataset, partition)
        if config.attack:
            config.attack.check(config.clients)
            train, holdout = [c.train for c in partition.clients], _holdout_rows(partition)
            dataset = poisoned(dataset, train, holdout, config.attack, config.seed)
        if share := config.method.method().share:
            if config.membership.changes:
                raise ConfigError(
                    f"{config.method.name} draws its shared samples from all clients; remove "
                    "membership"
                )
            partition = share(partition, class_numbers(dataset), config.seed)
        scenario = cls(config, dataset, partition, assumed=assumed)
        return scenario if agreed else scenario._in_deviations()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle settings and data; the network is built where it arrives."""
        computed = {"resident": self.resident} if self.keeps_features else {}
        dataset = replace(self.dataset, learn=None)
        return _unpickled, (self.config.tree(), dataset, self.partition, self.titles, computed)

    def with_settings(self, **settings: Any) -> "Scenario":
        """Return the scenario with other settings that neither network nor data depend on, such as
        ``lr`` and ``engine``, keeping what has been computed.
        """
        changed = replace(self, config=self.config.model_copy(update=settings))
        changed._computed.update(self._computed)
        return changed

    def _memoized(self, name: str, compute: Callable[[], T]) -> T:
        """Return a value by name, computed on first use."""
        if name not in self._computed:
            self._computed[name] = compute()
        value: T = self._computed[name]
        return value

    def _in_deviations(self) -> "Scenario":
        """Standardise numeric targets over the founders' training rows, so that lr has the same
        scale everywhere.

        Not with privacy, since moments are a release without noise; and not with a user's own loss,
        which may require positive numbers or integers.
        """
        if not self.task.standardised or self.config.privacy or self.config.model.loss != "auto":
            return self
        shift, scale = moments(self.dataset.y, _trained(self.partition, self.founders))
        return replace(self, dataset=replace(self.dataset, target_shift=shift, target_scale=scale))

    def check(self, agreed: bool = False) -> None:
        """Raise ConfigError or DataError, before round 1, for data or settings that the method or
        network cannot use.

        ``agreed``: whether the clients have agreed on class names before.
        """
        _ = self.choice
        require_task(self.config, self.targets)
        loss = criterion(self.config.model, self.task)
        require_per_sample(
            loss, self.config.model.loss, self.task, self.dataset.n_outputs, self.input_shape
        )
        class_weights.require(
            self.config.model, self.targets, self.dataset.n_outputs, self.config.privacy is not None
        )
        augmentation.require(self.config.augment, self.dataset.kind, len(self.input_shape))
        require_patches(self.config, self.dataset)
        if tokenizer := self.dataset.tokenizer:
            require_padding(self.config.model, tokenizer.padding)
        module = self.module()
        if len(self.dataset.preprocessing) > 1 and self.partition.recipe.get("name") != "natural":
            raise ConfigError(
                "data.fit=client needs the clients that the data names: set partition.name = "
                "natural"
            )
        if self.config.privacy:
            require_covered(self.config, self.dataset, self.partition, agreed, module)
        require_samples(self.config, self.partition, self.names, module)
        if self.config.engine_named and (reason := self.why_torch()):
            raise _not_supported(self.config.engine, reason)

    @property
    def remarks(self) -> list[str]:
        """Return the notes on data, partition and split as lines."""
        return [note.text for note in self.notes]

    @property
    def notes(self) -> list[Note]:
        """Return the notes on data, partition and split."""
        config = self.config
        validated = bool(config.stop or config.keep != "last")
        validated = validated or config.method.method().card.needs.validation
        clients = Clients(self.names, self.founders, validated)
        split = split_notes(self.dataset, self.partition, clients)
        return [
            *(Note(line, "data") for line in remarks(self.dataset, self.partition)),
            *(Note(line, "partition") for line in (*self.assumed, *split)),
        ]

    @property
    def founders(self) -> tuple[int, ...]:
        """The clients that are trained with in round 1: all that is learned before is learned from
        their training rows alone, as clients that come later, or never, are not known then.
        """
        return _founders(self.config, self.partition)

    @property
    def names(self) -> list[str]:
        """Return client names: those given, else the data's own, else their numbers."""
        if self.titles:
            return list(self.titles)
        return client_names(self.partition, self.dataset)

    @property
    def targets(self) -> Targets:
        """Type of the targets."""
        return self.dataset.targets

    @property
    def task(self) -> Task:
        """Task of the targets."""
        return task_of(self.targets, self.dataset.edges)

    @cached_property
    def choice(self) -> Choice:
        """Headline metric of the run and the reason for it.

        Raises ConfigError if the targets do not define it.
        """
        labels = (
            self.dataset.y[_trained(self.partition, self.founders)]
            if self.task.commonest
            else self.dataset.y[:0]
        )
        return choose(self.config.metric, self.task, labels, self.dataset.classes)

    @cached_property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one sample as network input: (C, H, W), (C, D, H, W), (F,) or (T,)."""
        return network_shape(self.dataset.kind, self.dataset.x.shape[1:])

    def module(self, client: int | None = None) -> nn.Module:
        """Return the network with the run's initial values, or with a client's own if given.

        Frozen tensors are the run's in either case, and shared by all of its networks.
        """
        module = deepcopy(self._common) if client is None else self._built(client)
        share(module, self.frozen)
        return module

    @property
    def _common(self) -> nn.Module:
        """The network with the run's initial values, built once and copied for each use."""
        return self._memoized("common", self._built)

    def _built(self, client: int | None = None) -> nn.Module:
        address = () if client is None else (client,)
        seed = number(self.config.seed, "model", *address)
        data, width = self.dataset, self.dataset.n_outputs
        shape = self.task.output_shape(width, self.input_shape)
        return build(self.config.model, self.input_shape, width, data.vocabulary, seed, shape)

    @property
    def frozen(self) -> dict[str, Tensor]:
        """The frozen tensors by name; empty if the whole network is trained."""
        return self._memoized("frozen", lambda: frozen(self._common))

    @property
    def draws(self) -> bool:
        """Whether the network draws random numbers while it trains: for dropout."""
        layers = (layer for _, layer in active(self._common))
        return any(isinstance(layer, nn.modules.dropout._DropoutNd) for layer in layers)

    def private(self, folder: Path, run: str = "") -> PrivateObjective:
        """Return the objective with private gradients; each client's key and ledger are in the
        folder, which runs may share.
        """
        assert self.config.privacy
        module, space = self._seen_network()
        settings = self.config.privacy
        return PrivateObjective(self.objective(), module, space, settings, folder, run=run)

    @property
    def unprotected_groups(self) -> bool:
        """Whether epsilon is of a row, and some client has several training rows of one group."""
        privacy = self.config.privacy
        return privacy is not None and privacy.unit == "row" and max(self.largest_groups()) > 1

    def largest_groups(self) -> list[int]:
        """Return the most training samples that one group has, for each client."""
        return largest_groups(groups_of(self.dataset), self.partition)

    def epsilons(self, alone: bool = False, groups: bool = False) -> list[float]:
        """Return upper bounds of each client's epsilon for the whole run.

        Args:
            alone: by its own noise alone.
            groups: for all training samples of any one of its groups.

        Raises:
            ConfigError: the accountants are not installed.
        """
        c = self.config
        assert c.privacy
        settings = c.privacy.alone if alone else c.privacy
        gradients, unseen = c.method.method().card.privacy.gradients, c.membership.unseen
        rows = self.largest_groups() if groups else [1] * len(self.partition.clients)

        @cache
        def cost(n: int, rounds: int, rows: int) -> float:
            history = projected(settings, n, c.batch_size, gradients, c.passes, rounds)
            return epsilon(settings, of_groups(history, rows))

        return [
            cost(len(rows_of_client.train), c.adapt_rounds if i in unseen else c.rounds, rows[i])
            for i, rows_of_client in enumerate(self.partition.clients)
        ]

    def objective(self) -> Objective:
        """Return the objective over this scenario's data, or over the features of a frozen part.

        Raises ConfigError if an engine is named and does not support this scenario.
        """
        module, space = self._seen_network()
        loss, precision = criterion(self.config.model, self.task), self.config.precision
        try:
            return self._by_engine(module, space, loss)
        except EngineError as reason:
            if self.config.engine_named:
                raise _not_supported(self.config.engine, str(reason)) from None
        # On a CPU convolutions are faster one client at a time; only the method's own algebra is
        # shared.
        flat = not any(isinstance(layer, CONVOLUTIONS) for layer in module.modules())
        if self.config.rows > 1 and (flat or self.config.device != "cpu"):
            return StackedObjective(module, space, self.resident, loss, precision)
        return TorchObjective(module, space, self.resident, loss, precision)

    def why_torch(self) -> str:
        """Return why the engine, native if it is chosen automatically, does not compute this
        scenario; empty if it does.
        """
        try:
            self._by_engine(*self._seen_network(), criterion(self.config.model, self.task))
        except EngineError as reason:
            return str(reason)
        return ""

    @property
    def engine(self) -> str:
        """The engine's name, native if it is chosen automatically."""
        return NATIVE if self.config.engine == "auto" else self.config.engine

    def _by_engine(self, module: nn.Module, space: ParameterSpace, loss: Criterion) -> Objective:
        """Return the engine's objective; raises EngineError if it does not support it."""
        if self.config.engine == "torch":
            raise EngineError("engine = 'torch'")
        if self.config.privacy:
            raise EngineError("private gradients are those of single samples")
        batch = min(self.config.batch_size, max(self.resident.sizes("train"), default=0))
        return load_engine(self.engine).objective(
            Computation(module, space, self.resident, loss, self.config.precision, batch)
        )

    def _seen_network(self) -> tuple[nn.Module, ParameterSpace]:
        """Return the network for an objective, without a frozen part with cached features; and the
        row's space.
        """
        module = self.module().to(self.config.device)
        split = self._split_network(module)
        return split.trained if split else module, ParameterSpace(module, self.config.buffers)

    @property
    def keeps_features(self) -> bool:
        """Whether the features of the frozen part are computed once and cached."""
        return self._memoized("keeps_features", lambda: self._split_common() is not None)

    def _split_common(self) -> SplitNetwork | None:
        return self._split_network(self.module().to(self.config.device))

    def _split_network(self, module: nn.Module) -> SplitNetwork | None:
        """Split the network if the features of its frozen part are cached."""
        # training sees other samples in each step
        random = self.config.augment or self.config.model.patch
        if self.config.model.cache_features == "off" or random or not self.frozen:
            return None
        dtype = torch.int64 if self.dataset.vocabulary else torch.float32
        return split_network(
            module, torch.zeros((1, *self.input_shape), dtype=dtype, device=self.config.device)
        )

    @property
    def resident(self) -> DeviceDataset:
        """The data for the objective: samples, or their features, which are computed on first
        use.
        """
        return self._memoized("resident", self._resident)

    def _resident(self) -> DeviceDataset:
        data = DeviceDataset.build(self.dataset, self.partition, self.targets, self.config.device)
        weights = class_weights.weights_of(
            self.config.model, data.y, data.rows["train"], self.dataset.n_outputs
        )
        data = replace(
            data, weights=weights, augment=self.config.augment, patch=self.config.model.patch
        )
        split = self._split_common()
        return cached(split, data, self.config.precision, self.config.processes) if split else data

    @cached_property
    def initial(self) -> Initial:
        """The models that training starts from."""
        module = self.module()
        space, device = ParameterSpace(module, self.config.buffers), self.config.device
        # cached: a large network takes seconds to draw, once per client
        common = space.pack(module).to(device)

        def model_row(client: int | None) -> Tensor:
            row = common.clone() if client is None else space.pack(self.module(client)).to(device)
            return row[: space.trained]

        return Initial.from_space(space, model_row, common[space.trained :])

    def constant(self) -> dict[str, Any]:
        """Return metric, accuracy and loss of constant predictions."""
        loss, task, y = criterion(self.config.model, self.task), self.task, self.dataset.y
        names = {self.choice.metric.name, *({ACCURACY.name} & {*task.measures}), "loss"}
        train, test = (
            [y[getattr(c, split)] for c in self.partition.clients] for split in ("train", "test")
        )

        shape = task.output_shape(self.dataset.n_outputs, self.input_shape)

        def judge(name: str, outputs: NDArray[np.float32], targets: NDArray[Any]) -> float | None:
            if name == "loss":
                outputs = task.learned(outputs, self.dataset) if task.standardised else outputs
                targets = task.learned(targets, self.dataset)
            answers = torch.from_numpy(outputs).reshape(len(outputs), -1, *[1] * (len(shape) - 1))
            pair = answers.expand(len(outputs), *shape), torch.from_numpy(np.asarray(targets))
            batch_size = max(1, CONSTANT_BATCH // prod(shape))

            def batches(function: Callable[[Tensor, Tensor], Any]) -> list[Any]:
                return [
                    function(*batch)
                    for batch in zip(*(values.split(batch_size) for values in pair), strict=True)
                ]

            if name == "loss":
                return float(
                    torch.cat(batches(lambda o, t: loss(o, as_learned(t)))).double().mean()
                )
            reduced, truth = (
                torch.cat(batch_values) for batch_values in zip(*batches(task.reduce), strict=True)
            )
            return compute(name, reduced, truth, task)

        train_targets = y[_trained(self.partition, self.founders)]
        return constants(
            sorted(names), task, self.dataset.n_outputs, train_targets, train, test, judge
        )

    def _subgroups(self) -> dict[str, Any] | None:
        """Return the subgroup of each client's test samples."""
        if self.dataset.subgroups is None:
            return None
        column, names, number = self.dataset.subgroups
        test = [number[c.test].tolist() for c in self.partition.clients]
        return {"column": column, "names": list(names), "test": test}

    def test_groups(self) -> dict[int, NDArray[np.int64]]:
        """Return (n,) int64 the group of each client's test samples; empty without groups."""
        groups = groups_of(self.dataset)
        if groups is None:
            return {}
        return {
            i: np.unique(groups[c.test], return_inverse=True)[1]
            for i, c in enumerate(self.partition.clients)
        }

    def about(self) -> dict[str, Any]:
        """Return the record's description: sizes, label counts, hidden groups, hashes."""
        rows = self.partition.clients
        return {
            "clients": self.names,
            "classes": list(self.dataset.classes),
            "labels": list(self.dataset.labels),
            "sizes": {split: [len(getattr(c, split)) for c in rows] for split in SPLITS},
            "label_counts": label_counts(self.partition, self.dataset).tolist()
            if self.targets == "classes"
            else None,
            "groups": list(self.partition.groups),
            "target_groups": list(self.partition.target_groups),
            "data": {
                "name": self.dataset.name,
                "fingerprint": self.partition.recipe["fingerprint"],
            },
            "partition_sha256": self.partition.sha256,
            "test_rows": [sha256(c.test.astype("<i8").tobytes()).hexdigest()[:16] for c in rows],
            "targets": self.targets,
            "edges": list(self.dataset.edges),
            "metric": self.choice.metric.name,
            "constant": self.constant(),
            "subgroups": self._subgroups(),
            "input_shape": list(self.input_shape),
            "preprocessing": [
                preprocessing.model_dump(mode="json")
                for preprocessing in self.dataset.preprocessing
            ],
            "shared_samples": len(reduce(np.intersect1d, [c.train for c in rows]))
            if len(rows) > 1
            else 0,
        }


def _unpickled(tree: Tree, *arguments: Any) -> Scenario:
    *fields, computed = arguments
    scenario = Scenario(resolve(tree), *fields)
    scenario._computed.update(computed)
    return scenario


def _founders(config: Config, partition: Partition) -> tuple[int, ...]:
    return config.membership.members(len(partition.clients), 1)


def _trained(partition: Partition, clients: Sequence[int] | None = None) -> NDArray[np.int64]:
    """Return the training rows of some clients, of all by default."""
    chosen = range(len(partition.clients)) if clients is None else clients
    return np.concatenate([np.empty(0, np.int64), *(partition.clients[i].train for i in chosen)])


def _completed(config: Config, dataset: Dataset, agreed: bool) -> Config:
    """Return the settings with the partition, the clients, the network and the hash of its first
    weights resolved.
    """
    config = config.model_copy(update={"partition": config.partition or usual(dataset)})
    if "clients" not in config.model_fields_set:
        config = config.model_copy(update={"clients": _members(config, dataset)})
    network = config.model if agreed else resolved(config.model)
    if weights := initial_weights(network):
        network = network.model_copy(update={"init_sha256": weights.sha256})
    return config if network is config.model else config.model_copy(update={"model": network})


def _assumed(config: Config, dataset: Dataset) -> tuple[str, ...]:
    """Return how rows are dealt to clients that neither settings nor data name, as a note."""
    if config.partition or dataset.owners or "clients" in config.model_fields_set:
        return ()
    return (
        f"the data do not name clients: their rows are dealt at random to {config.clients} "
        f"(partition = {usual(dataset).name}, clients = {config.clients}); name the clients of "
        "the rows, or set both",
    )


def _holdout_rows(partition: Partition) -> NDArray[np.int64]:
    """Return all rows that any client is validated or tested on."""
    return np.concatenate([r for c in partition.clients for r in (c.validation, c.test)])


def _members(config: Config, dataset: Dataset) -> int:
    """Return the number of clients if not set: that of the partition, else the default."""
    if isinstance(config.partition, Natural) and dataset.owners is not None:
        return len(dataset.owners.names)
    if isinstance(config.partition, FromFile):
        return len(Partition.load(config.partition.path).clients)
    return config.clients


def _not_supported(engine: str, reason: str) -> ConfigError:
    """Return the error for a run that its engine does not support."""
    return ConfigError(f"engine = {engine!r} is not possible: {reason}; set engine=torch")
