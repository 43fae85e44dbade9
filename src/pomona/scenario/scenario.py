"""A scenario: a data set with its partition and a matching network, complete before any
training.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from torch import nn

from pomona.config import Config, resolve
from pomona.core.bounds import Targets
from pomona.core.errors import ConfigError
from pomona.core.notes import Note
from pomona.core.toml import Tree
from pomona.data import read
from pomona.data.dataset import Dataset
from pomona.methods.base import Initial
from pomona.models.huggingface import require_padding
from pomona.models.parameter_space import ParameterSpace
from pomona.objective import augmentation, class_weights
from pomona.objective.dataset import DeviceDataset, cached
from pomona.objective.engine import NATIVE, Computation, EngineError, load_engine
from pomona.objective.objective import Criterion, Objective
from pomona.objective.private import PrivateObjective
from pomona.objective.pytorch import TorchObjective
from pomona.objective.stacked import StackedObjective
from pomona.partition.divergence import remarks
from pomona.partition.partition import Partition, client_names
from pomona.partition.split_notes import Clients, split_notes
from pomona.scenario.checks import require_covered, require_patches, require_samples, require_task
from pomona.scenario.division import Reader, divided, founders, training_rows
from pomona.scenario.network import Network
from pomona.tasks import Task, task_of
from pomona.tasks.criterion import criterion, require_per_sample
from pomona.tasks.scores import Choice, choose

T = TypeVar("T")
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
        cls, config: Config, reader: Reader = read, agreed_reader: bool = False
    ) -> "Scenario":
        """Read, validate and divide the data, and check them with the network and the method;
        the scenario's config has its number of clients resolved.

        ``agreed_reader``: whether the reader's form, including units of targets, was agreed
        before, so that nothing is learned for it.

        Raises DataError or ConfigError, before anything is computed or written.
        """
        scenario = cls.divided(config, reader, agreed_reader)
        scenario.check(agreed_reader)
        return scenario

    @classmethod
    def divided(
        cls, config: Config, reader: Reader = read, agreed_reader: bool = False
    ) -> "Scenario":
        """As ``prepare``, without the check."""
        config, dataset, partition, assumed = divided(config, reader, agreed_reader)
        return cls(config, dataset, partition, assumed=assumed)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle settings and data; the network is built where it arrives."""
        computed = {"resident": self.resident} if self.network.keeps_features else {}
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

    def check(self, agreed_reader: bool = False) -> None:
        """Raise ConfigError or DataError, before round 1, for data or settings that the method or
        network cannot use.

        ``agreed_reader``: whether the clients have agreed on class names before.
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
            require_covered(self.config, self.dataset, self.partition, agreed_reader, module)
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
        return founders(self.config, self.partition)

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
        rows = training_rows(self.partition, self.founders if self.task.commonest else ())
        labels = self.dataset.y[rows]
        return choose(self.config.metric, self.task, labels, self.dataset.classes)

    @property
    def network(self) -> Network:
        """The network, which is built on first use."""
        return self._memoized("network", lambda: Network(self.config, self.dataset, self.task))

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one sample as network input: (C, H, W), (C, D, H, W), (F,) or (T,)."""
        return self.network.input_shape

    @property
    def initial(self) -> Initial:
        """The models that training starts from."""
        return self.network.initial

    def module(self, client: int | None = None) -> nn.Module:
        """Return the network with the run's initial values, or with a client's own if given."""
        return self.network.module(client)

    def private(self, folder: Path, run: str = "") -> PrivateObjective:
        """Return the objective with private gradients; each client's key and ledger are in the
        folder, which runs may share.
        """
        assert self.config.privacy
        module, space = self.network.trained()
        settings = self.config.privacy
        return PrivateObjective(self.objective(), module, space, settings, folder, run=run)

    def objective(self) -> Objective:
        """Return the objective over this scenario's data, or over the features of a frozen part.

        Raises ConfigError if an engine is named and does not support this scenario.
        """
        module, space = self.network.trained()
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
            self._by_engine(*self.network.trained(), criterion(self.config.model, self.task))
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
        split = self.network.split()
        return cached(split, data, self.config.precision, self.config.processes) if split else data


def _unpickled(tree: Tree, *arguments: Any) -> Scenario:
    *fields, computed = arguments
    scenario = Scenario(resolve(tree), *fields)
    scenario._computed.update(computed)
    return scenario


def _not_supported(engine: str, reason: str) -> ConfigError:
    """Return the error for a run that its engine does not support."""
    return ConfigError(f"engine = {engine!r} is not possible: {reason}; set engine=torch")
