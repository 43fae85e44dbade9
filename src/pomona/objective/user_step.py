"""The objective over a user's own training code: every step of a method is a step of that code.

The code is ``step(model, batch)``, or ``train(model, loader)`` for a whole pass. It computes the
loss and lets an optimizer of ``torch.optim`` step. Just before that the gradient of the batch is in
the model's parameters: there it is read, a method's term is added to it, or the step is moved to
another model, such as APPLE's core. So the loss, its gradient and the update are the user's, and
the algebra is the method's.

A method whose own equations take the step, such as SCAFFOLD, needs the user's rate as a setting;
the optimizer is then compared with the settings. What reads outputs, features or class counts
cannot be had: the code does not say what a batch is.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, count, islice, repeat
from math import isfinite, isnan
from typing import Any, NoReturn
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from pomona.core.errors import ConfigError, DataError
from pomona.core.round import Round
from pomona.core.training_settings import Adam, Passes
from pomona.core.training_settings import Optimizer as OptimizerSettings
from pomona.models.parameter_space import ParameterSpace
from pomona.objective.batches import Pass, Views
from pomona.objective.objective import (
    ConstantFeatures,
    Criterion,
    Mixture,
    Objective,
    Pull,
    RowCriterion,
)
from pomona.objective.paused_function import PausedFunction, single
from pomona.objective.training import TRAINING

ELSEWHERE = "does not give that; train with pomona.run, or take another method"
Loaders = Mapping[str, Any]  # split -> a loader: iterates batches, again and again
LATEST = 8
"""Latest batches whose gradient can be computed: of passes that a method draws from in turn."""


@dataclass(frozen=True)
class UserCode:
    """A user's functions; one of ``step`` and ``train`` is given.

    Attributes:
        step: (model, batch) -> loss: one step of an optimizer.
        train: (model, loader) -> loss: a pass over the loader, or several.
        test: (model, loader) -> loss; (loss, metric); or both by name.
    """

    step: Callable[[nn.Module, Any], Any] | None = None
    train: Callable[[nn.Module, Any], Any] | None = None
    test: Callable[[nn.Module, Any], Any] | None = None

    def __post_init__(self) -> None:
        if (self.step is None) == (self.train is None):
            raise ConfigError(
                "give one of step, a function of (model, batch), and train, a function of (model, "
                "loader)"
            )

    def once(self, model: nn.Module, loader: Any, batch: Any) -> Any:
        """Train on one batch alone."""
        if self.step:
            return self.step(model, batch)
        assert self.train
        return self.train(model, single(loader, batch))


@dataclass(frozen=True)
class OptimizerRule:
    """The user's optimizer as far as settings name it, and the passes of a round; ``lr`` is NaN if
    they do not.
    """

    lr: float
    momentum: float
    weight_decay: float
    optimizer: OptimizerSettings
    passes: Passes

    @property
    def has_rate(self) -> bool:
        """Whether the settings name the rate."""
        return not isnan(self.lr)

    def other_rate(self, round_: Round) -> float | None:
        """Return the rate of a step in this round, None if it is that of the user's optimizer."""
        lr: float = vars(round_)["lr"]  # reading an unknown one as an attribute is refused
        return None if lr == self.lr or isnan(lr) else lr

    def mismatch(self, optimizer: Optimizer) -> str:
        """Return what to set, if an optimizer does not step as the settings say; else ""."""
        settings = {"lr": self.lr, "momentum": self.momentum, "weight_decay": self.weight_decay}
        for group in optimizer.param_groups:
            actual = {name: float(group.get(name, 0.0)) for name in settings}
            if actual != settings or not self._same_rule(optimizer, group):
                values = [f"{name}={value:g}" for name, value in actual.items() if value]
                rule = type(optimizer).__name__.lower()
                return ", ".join([*values, *([] if rule == "sgd" else [f"optimizer={rule!r}"])])
        return ""

    def _same_rule(self, optimizer: Optimizer, group: Mapping[str, Any]) -> bool:
        expected = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
        plain = not any(group.get(key) for key in ("nesterov", "dampening", "maximize", "amsgrad"))
        rule = self.optimizer
        is_type = type(optimizer) is expected[rule.name] and plain
        if not isinstance(rule, Adam):
            return is_type
        moments = (*group.get("betas", ()), group.get("eps"))
        return is_type and moments == (rule.beta1, rule.beta2, rule.eps)


class LocalBatches:
    """The batches of one pass over a client's loader, and the user's steps on them.

    Args:
        code, model, loader: the user's.
        pass_: how often the loader is iterated, and the share of its batches. A ``train`` that has
            begun decides for itself.
        usual: the passes of a round.
        refuse: raises the method's error for a reason.
    """

    def __init__(
        self,
        code: UserCode,
        model: nn.Module,
        loader: Any,
        pass_: Pass,
        usual: Passes,
        refuse: Callable[[str], NoReturn],
    ) -> None:
        self._code, self._model, self._loader = code, model, loader
        self._passes, self._share, self._refuse = pass_.passes, pass_.share, refuse
        self._usual = usual
        self._epoch: Iterator[Any] = iter(())
        self._function: PausedFunction | None = None
        self._used = False
        self._samples = 0
        self.batch: Any = None

    def __iter__(self) -> Iterator[Any]:
        for batch in self._batches():
            self.batch, self._used = batch, False
            yield batch
            if self._function:
                yield from self._of_function(self._function)
                return

    def close(self) -> None:
        """End a function that a method does not draw all batches of."""
        if self._function:
            self._function.stop()

    def advance(self, size: int) -> float | None:
        """Take the user's step on the latest batch, of ``size`` samples; returns its loss, if any.

        The loss that ``train`` returns comes with its last batch, as that of all its samples.
        """
        if self._code.step:
            return loss_of(self._code.step(self._model, self.batch))
        if self._used:
            self._refuse("takes several steps on a batch; give step, not train")
        self._used = True
        if self._function is None:
            self._function = self._start_function()
        self._function.advance()
        self._samples += size
        if not self._function.ended:
            return 0.0
        loss = loss_of(self._function.result)
        return None if loss is None else loss * self._samples / size

    def _start_function(self) -> PausedFunction:
        assert self._code.train
        if self._passes != self._usual:
            self._refuse("sets the epochs of a pass itself; give step, not train")
        train, model = self._code.train, self._model
        first = chain([self.batch], self._epoch)
        return PausedFunction(lambda loader: train(model, loader), self._loader, first)

    def _batches(self) -> Iterator[Any]:
        if self._passes.steps is None:
            for _ in range(self._passes.epochs):
                self._epoch = self._shared()
                yield from self._epoch
        else:
            endless = chain.from_iterable(repeat(self._loader))
            yield from islice(endless, self._passes.steps)

    def _shared(self) -> Iterator[Any]:
        batches: Iterator[Any] = iter(self._loader)
        if self._share == 1:
            return batches
        return islice(batches, max(1, round(self._share * len(self._loader))))

    def _of_function(self, function: PausedFunction) -> Iterator[Any]:
        while not function.ended:
            if not self._used:
                self._refuse("takes steps on some batches only; give step, not train")
            self.batch, self._used = function.batch, False
            yield self.batch


@dataclass(frozen=True)
class DrawnBatch:
    """A batch of a pass, and its number of samples."""

    source: LocalBatches
    batch: Any
    size: int


class _Rows:
    """What ``LocalTraining`` asks of the data: a client's own loader has its samples."""

    def __init__(self, refuse: Callable[[str], NoReturn], clients: Iterable[int]) -> None:
        self._refuse = refuse
        self.rows = {"train": {client: torch.empty(0) for client in clients}}

    def class_counts(self, client: int) -> NoReturn:  # noqa: ARG002
        self._refuse(f"counts the samples of each class, and your code {ELSEWHERE}")

    def target(self, index: Tensor) -> NoReturn:  # noqa: ARG002
        self._refuse(f"reads the targets of a batch, and your code {ELSEWHERE}")


class UserObjective(Objective):
    """Losses and gradients by a user's code, one client a call.

    BatchNorm statistics and other buffers stay with each client, as its training leaves them.

    Args:
        module: the user's model; its parameters are set for each call.
        code: the user's functions.
        loaders: by client.
        rule: the optimizer, as far as settings name it.
        method: its name, for messages.
    """

    least_batch = 1

    def __init__(
        self,
        module: nn.Module,
        code: UserCode,
        loaders: Mapping[int, Loaders],
        rule: OptimizerRule,
        method: str,
    ) -> None:
        self.space = ParameterSpace(module)
        space = self.space
        self.layers, self.norms, self.head = space.layers, space.norms, space.head
        self.parameters = space.parameters
        self.data: Any = _Rows(self._refuse, loaders)
        self.loaders, self.code, self.rule = loaders, code, rule
        self.buffers = {i: _copied(dict(module.named_buffers())) for i in loaders}
        self._module, self._method = module, method
        parameters = dict(module.named_parameters())
        self._parameters = [parameters[entry.name] for entry in space.parameters]
        self._ids = {id(parameter) for parameter in self._parameters}
        self._latest: dict[int, DrawnBatch] = {}
        self._numbers = count()
        self._fresh: WeakSet[Optimizer] = WeakSet()
        self._rates: list[tuple[dict[str, Any], Any]] = []

    def batches(self, rows: Tensor, pass_: Pass) -> Iterator[Tensor]:  # noqa: ARG002
        """Yield the batches of a client's loader, each as its number, once a sample."""
        loader = self.loaders[pass_.client]["train"]
        code, usual = self.code, self.rule.passes
        source = LocalBatches(code, self._module, loader, pass_, usual, self._refuse)
        self._fresh = WeakSet()
        try:
            for batch in source:
                number = next(self._numbers)
                size = size_of(batch)
                self._latest[number] = DrawnBatch(source, batch, size)
                self._latest.pop(number - LATEST, None)
                yield torch.full((size,), number)
        finally:
            source.close()

    def gradient(
        self,
        W: Tensor,
        indices: list[Tensor],
        criterion: Criterion | list[RowCriterion] | None = None,
        above: int = 0,  # noqa: ARG002
        views: Views = None,
        cache: ConstantFeatures | None = None,  # noqa: ARG002
    ) -> tuple[Tensor, Tensor]:
        """Return the loss (1,) and the gradient (1, d) of the user's step on a batch, which is not
        taken.
        """
        if criterion is not None:
            self._refuse(f"has a loss on the network's outputs, and your code {ELSEWHERE}")
        assert views
        view, G = views[0], torch.zeros_like(W)
        assert view
        steps_itself = view.purpose == TRAINING
        batch = self._batch(indices[0]).batch

        def read(optimizer: Optimizer) -> None:
            if steps_itself and (settings := self.rule.mismatch(optimizer)):
                self._refuse(f"steps by its own equations; set those of your optimizer: {settings}")
            self._read_gradient(G[0])
            self._clear_gradients(slice(0, self.space.trained))

        buffers, loader = self.buffers[view.client], self.loaders[view.client]["train"]
        value = self._call(
            view.client, W[0], lambda: self.code.once(self._module, loader, batch), read
        )
        self.buffers[view.client] = buffers
        loss = loss_of(value)
        if loss is None:
            self._refuse("reads the loss of a batch; let your function return it")
        return torch.tensor([loss]), G

    def step(
        self,
        W: Tensor,
        indices: list[Tensor],
        moments: Tensor,  # noqa: ARG002
        round_: Round,
        views: Views = None,
        pull: Pull | None = None,
        block: slice | None = None,
    ) -> Tensor:
        """Let the user's code take its step on the row of W (1, d), in place; return the loss (1,),
        0 if it is not returned.
        """
        if (round_.momentum, round_.weight_decay) != (self.rule.momentum, self.rule.weight_decay):
            self._refuse("takes steps of another optimizer than yours; train with pomona.run")
        lr = self.rule.other_rate(round_)

        def change_gradient(optimizer: Optimizer) -> None:
            if lr is not None:
                self._rates = [(group, group["lr"]) for group in optimizer.param_groups]
                for group in optimizer.param_groups:
                    group["lr"] = lr
            if pull is not None:
                G = torch.zeros_like(W)
                self._read_gradient(G[0])
                self._write_gradient(G.add_(pull(W))[0])
            if block is not None:
                self._clear_gradients(slice(0, block.start))
                self._clear_gradients(slice(block.stop, self.space.trained))

        plain = pull is None and block is None and lr is None
        return self._stepped(W[0], indices, views, None if plain else change_gradient)

    def mixed_step(
        self,
        mixture: Mixture,
        indices: list[Tensor],
        moments: Tensor,  # noqa: ARG002
        round_: Round,  # noqa: ARG002
        views: Views = None,
    ) -> tuple[Tensor, Tensor]:
        """Let the user's code take its step on the client's own row of its mixture, in place."""
        slopes = torch.empty(0)

        def move_core(optimizer: Optimizer) -> None:
            nonlocal slopes
            momenta = [group.get("momentum", 0.0) for group in optimizer.param_groups]
            if unequal := [m for m in momenta if m != self.rule.momentum]:
                self._refuse(
                    f"gives its weights the run's momentum; set momentum={unequal[0]:g}, as of "
                    "your optimizer"
                )
            G = torch.zeros_like(mixture.cores)
            self._read_gradient(G[0])
            slopes = self.products(mixture, G)
            self._point_at(mixture.cores[0])
            self._write_gradient(G.mul_(mixture.own_weights)[0])

        row = self.mixtures(mixture)[0]
        losses = self._stepped(row, indices, views, move_core, mixture.cores[0])
        return losses, slopes

    def losses(self, row: Tensor, client: int, split: str) -> Tensor:
        """Return the loss (1,) of a row on all of a client's split, by the user's ``test``."""
        if self.code.test is None:
            self._refuse("compares models by their loss on samples; give test")
        if split not in self.loaders[client]:
            self._refuse(f"compares models on {split} samples; give each client a loader for them")
        loss = self.tested(row, client, split)["loss"]
        if loss is None:
            self._refuse("compares models by their loss; let test return it")
        return torch.tensor([loss], dtype=row.dtype)

    def tested(self, row: Tensor, client: int, split: str) -> dict[str, float | None]:
        """Return the user's loss and metric of a row on a client's split."""
        assert self.code.test
        self._point_at(row)
        self._load_buffers(client)
        training = self._module.training
        self._module.eval()
        try:
            return figures_of(self.code.test(self._module, self.loaders[client][split]))
        finally:
            self._module.train(training)

    def tensors(self, row: Tensor, client: int) -> dict[str, Tensor]:
        """Return a row as named tensors, with the client's buffers: for ``load_state_dict(...,
        strict=False)``.
        """
        return {**self.space.unpack(row), **_copied(self.buffers[client])}

    def show(self, row: Tensor, client: int) -> None:
        """Give the user's model a row (d,) and a client's buffers."""
        self._point_at(row)
        self._load_buffers(client)

    def hessian(self, *_: Any) -> NoReturn:
        """Refuse: a step has no second derivatives."""
        self._refuse(f"needs second derivatives, and your code {ELSEWHERE}")

    def batchwise(self, *_: Any) -> NoReturn:
        """Refuse: a batch's inputs are not known."""
        self._refuse(f"reads the network's outputs, and your code {ELSEWHERE}")

    def features(self, *_: Any) -> NoReturn:
        """Refuse: a batch's inputs are not known."""
        self._refuse(f"reads the features of samples, and your code {ELSEWHERE}")

    def criterion(self, outputs: Tensor, targets: Tensor) -> NoReturn:  # noqa: ARG002
        """Refuse: the loss is in the user's code."""
        self._refuse(f"reads the loss of single outputs, and your code {ELSEWHERE}")

    def _stepped(
        self,
        row: Tensor,
        indices: list[Tensor],
        views: Views,
        edit: Callable[[Optimizer], None] | None,
        target: Tensor | None = None,
    ) -> Tensor:
        """Take the user's step on a batch at a row (d,), which moves unless a target (d,) does."""
        assert views
        view = views[0]
        assert view
        latest = self._batch(indices[0])
        if latest.batch is not latest.source.batch:
            self._refuse("steps on an earlier batch")
        loss = self._call(view.client, row, lambda: latest.source.advance(latest.size), edit)
        self._collect(row if target is None else target)
        self.shows_losses = self.shows_losses and loss is not None
        return torch.tensor([loss or 0.0])

    def _call(
        self,
        client: int,
        row: Tensor,
        run: Callable[[], Any],
        edit: Callable[[Optimizer], None] | None,
    ) -> Any:
        """Run a user's code with the model at a row (d,); ``edit`` comes before the step of its
        optimizer.
        """
        steps = 0

        def before_step(optimizer: Optimizer, arguments: Any, _: Any) -> None:
            nonlocal steps
            if not self._steps_model(optimizer):
                return
            steps += 1
            if edit and steps == 1:
                if len(arguments) > 1 and arguments[1] is not None:
                    self._refuse("changes the gradient of a step, and your optimizer has a closure")
                edit(optimizer)

        self._point_at(row)
        self._load_buffers(client)
        with (
            torch.enable_grad(),
            register_optimizer_step_pre_hook(before_step),
            register_optimizer_step_post_hook(self._after_step),
        ):
            value = run()
        if edit and steps != 1:
            self._refuse(
                f"changes the gradient of each step, and your code took {steps} steps of an "
                "optimizer of torch.optim on a batch where one is needed"
            )
        self.buffers[client] = _copied(dict(self._module.named_buffers()))
        return value

    def _steps_model(self, optimizer: Optimizer) -> bool:
        """Return whether an optimizer steps the model; its state begins anew with each pass."""
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        if self._ids.isdisjoint(map(id, parameters)):
            return False
        if optimizer not in self._fresh:
            self._fresh.add(optimizer)
            optimizer.state.clear()  # of the pass before, or of another client
        if self.rule.has_rate and (settings := self.rule.mismatch(optimizer)):
            self._refuse(f"has settings of another optimizer than yours; set {settings}")
        return True

    def _batch(self, index: Tensor) -> "DrawnBatch":
        """Return the batch of an index (b,) that ``batches`` has given."""
        batch = self._latest[int(index[0])]
        if len(index) != batch.size:
            self._refuse("divides batches; train with pomona.run")
        return batch

    def _after_step(self, *_: Any) -> None:
        """Give the optimizer back the rates that a method has set for a step."""
        for group, lr in self._rates:
            group["lr"] = lr
        self._rates = []

    def _refuse(self, reason: str) -> NoReturn:
        raise ConfigError(f"{self._method} {reason}")

    def _point_at(self, row: Tensor) -> None:
        """Let the parameters be views of a row (d,), or copies where they are on another device."""
        for view, parameter in zip(self.space.views(row), self._parameters, strict=True):
            parameter.data = view.to(parameter.device, parameter.dtype)

    def _collect(self, row: Tensor) -> None:
        """Write the parameters into a row (d,), as far as they are not views of it."""
        for view, parameter in zip(self.space.views(row), self._parameters, strict=True):
            if view.data_ptr() != parameter.data_ptr():
                view.copy_(parameter.detach())

    def _read_gradient(self, g: Tensor) -> None:
        for view, parameter in zip(self.space.views(g), self._parameters, strict=True):
            if parameter.grad is not None:
                view.copy_(parameter.grad)

    def _write_gradient(self, g: Tensor) -> None:
        for view, parameter in zip(self.space.views(g), self._parameters, strict=True):
            parameter.grad = view.to(parameter.device, parameter.dtype)

    def _clear_gradients(self, columns: slice) -> None:
        """Let an optimizer skip the parameters within some columns."""
        for entry, parameter in zip(self.space.parameters, self._parameters, strict=True):
            if columns.start <= entry.start and entry.stop <= columns.stop:
                parameter.grad = None

    def _load_buffers(self, client: int) -> None:
        for name, buffer in self._module.named_buffers():
            buffer.data = self.buffers[client][name].clone().to(buffer.device)


def _copied(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def size_of(batch: Any) -> int:
    """Return a batch's number of samples: the length of its first tensor, by name or place."""
    first = batch
    while isinstance(first, Mapping | list | tuple) and len(first):
        first = next(iter(first.values() if isinstance(first, Mapping) else first))
    try:
        return max(1, len(first))
    except TypeError:
        return 1


def samples_in(loader: Any, name: str) -> int:
    """Return how many samples a loader has. Raises DataError without any."""
    if hasattr(loader, "dataset") and hasattr(loader.dataset, "__len__"):
        samples = len(loader.dataset)
    elif hasattr(loader, "__len__"):
        samples = sum(size_of(batch) for batch in loader)
    else:
        raise DataError(
            f"{name}: the loader has no length; give a DataLoader of a data set with one, or a "
            "list of batches"
        )
    if not samples:
        raise DataError(f"{name}: the loader has no samples; leave it out")
    return samples


def loss_of(value: Any) -> float | None:
    """Return the loss that a user's function returned: a number, the first of several, or the one
    whose name ends with "loss"; None if there is none.
    """
    if isinstance(value, Mapping):
        value = next((v for name, v in value.items() if str(name).endswith("loss")), None)
    if isinstance(value, list | tuple):
        value = value[0] if value else None
    return None if value is None else _number(value)


def _number(value: Any) -> float:
    return float(value.detach() if isinstance(value, Tensor) else value)


def figures_of(value: Any) -> dict[str, float | None]:
    """Return loss and metric that a user's ``test`` returned, None where they are not finite: a
    loss, (loss, metric), or both by name.

    Raises ConfigError for other values.
    """
    loss, metric = loss_of(value), None
    if isinstance(value, Mapping):
        metric = next((v for name, v in value.items() if not str(name).endswith("loss")), None)
    elif isinstance(value, list | tuple) and len(value) == 2:
        metric = value[1]
    numbers = {"loss": loss, "metric": None if metric is None else _number(metric)}
    return {name: v if v is not None and isfinite(v) else None for name, v in numbers.items()}
