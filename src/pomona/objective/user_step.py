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

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import count
from typing import Any, NoReturn
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import Tensor, nn
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from pomona.core.errors import ConfigError
from pomona.core.round import Round
from pomona.models.parameter_space import ModuleOnRow
from pomona.objective import objective, user_code
from pomona.objective.batches import Pass, Views
from pomona.objective.training import TRAINING
from pomona.objective.user_batches import DrawnBatch, LocalBatches

ELSEWHERE = "does not give that; train with pomona.run, or take another method"
LATEST = 8
"""Latest batches whose gradient can be computed: of passes that a method draws from in turn."""


class _Rows:
    """What ``LocalTraining`` asks of the data: a client's own loader has its samples."""

    def __init__(self, refuse: Callable[[str], NoReturn], clients: Iterable[int]) -> None:
        self._refuse = refuse
        self.rows = {"train": {client: torch.empty(0) for client in clients}}

    def class_counts(self, client: int) -> NoReturn:  # noqa: ARG002
        self._refuse(f"counts the samples of each class, and your code {ELSEWHERE}")

    def target(self, index: Tensor) -> NoReturn:  # noqa: ARG002
        self._refuse(f"reads the targets of a batch, and your code {ELSEWHERE}")


class UserObjective(objective.Objective):
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
        code: user_code.UserCode,
        loaders: Mapping[int, user_code.Loaders],
        rule: user_code.OptimizerRule,
        method: str,
    ) -> None:
        self._placed = ModuleOnRow(module)
        self.space = space = self._placed.space
        self.layers, self.norms, self.head = space.layers, space.norms, space.head
        self.parameters = space.parameters
        self.data: Any = _Rows(self._refuse, loaders)
        self.loaders, self.code, self.rule = loaders, code, rule
        self.buffers = {i: self._placed.buffers() for i in loaders}
        self._method = method
        self._latest: dict[int, DrawnBatch] = {}
        self._numbers = count()
        self._fresh: WeakSet[Optimizer] = WeakSet()
        self._steps = Counter[bool]()  # of a pass, by whether the optimizer is the model's
        self._rates: list[tuple[dict[str, Any], Any]] = []
        self._round = 0
        # the rates of an optimizer's parameter groups in the first pass of a round
        self._first_rates = WeakKeyDictionary[Optimizer, tuple[int, list[Any]]]()

    def batches(self, rows: Tensor, pass_: Pass) -> Iterator[Tensor]:  # noqa: ARG002
        """Yield the batches of a client's loader, each as its number, once a sample."""
        loader = self.loaders[pass_.client]["train"]
        code, usual = self.code, self.rule.passes
        source = LocalBatches(code, self._placed.module, loader, pass_, usual, self._refuse)
        self._fresh, self._steps, self._round = WeakSet(), Counter(), pass_.round
        try:
            for batch in source:
                number = next(self._numbers)
                size = user_code.size_of(batch)
                self._latest[number] = DrawnBatch(source, batch, size)
                self._latest.pop(number - LATEST, None)
                yield torch.full((size,), number)
            if self._steps[False] and not self._steps[True]:
                self._refuse(
                    "trains your model, and your optimizer steps another one; make the optimizer "
                    "in your function, of the model that it gets"
                )
        finally:
            source.close()

    def gradient(
        self,
        W: Tensor,
        indices: list[Tensor],
        criterion: objective.Criterion | list[objective.RowCriterion] | None = None,
        above: int = 0,  # noqa: ARG002
        views: Views = None,
        cache: objective.ConstantFeatures | None = None,  # noqa: ARG002
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
            self._placed.read_gradient(G[0])
            self._placed.clear_gradients(slice(0, self.space.trained))

        buffers, loader = self.buffers[view.client], self.loaders[view.client]["train"]
        value = self._call(
            view.client, W[0], lambda: self.code.once(self._placed.module, loader, batch), read
        )
        self.buffers[view.client] = buffers
        loss = user_code.loss_of(value)
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
        pull: objective.Pull | None = None,
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
                self._placed.read_gradient(G[0])
                self._placed.write_gradient(G.add_(pull(W))[0])
            if block is not None:
                self._placed.clear_gradients(slice(0, block.start))
                self._placed.clear_gradients(slice(block.stop, self.space.trained))

        plain = pull is None and block is None and lr is None
        return self._stepped(W[0], indices, views, None if plain else change_gradient)

    def mixed_step(
        self,
        mixture: objective.Mixture,
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
            self._placed.read_gradient(G[0])
            slopes = self.products(mixture, G)
            self._placed.point_at(mixture.cores[0])
            self._placed.write_gradient(G.mul_(mixture.own_weights)[0])

        row = self.mixtures(mixture)[0]
        losses = self._stepped(row, indices, views, move_core, mixture.cores[0])
        return losses, slopes

    def losses(self, row: Tensor, client: int, split: str) -> Tensor:
        """Return the loss (1,) of a row on all of a client's split, by the user's ``test``."""
        if self.code.test is None:
            self._refuse("compares models by their loss on samples; give test")
        if split not in self.loaders[client]:
            self._refuse(f"compares models on {split} samples; give each client a loader for them")
        loss = user_code.metric_of(self.tested(row, client, split), "loss")
        if loss is None:
            self._refuse("compares models by their loss, and that of your test is not finite")
        return torch.tensor([loss], dtype=row.dtype)

    def tested(self, row: Tensor, client: int, split: str) -> dict[str, Any]:
        """Return the user's loss and figures of a row on a client's split."""
        assert self.code.test
        self.show(row, client)
        training = self._placed.module.training
        self._placed.module.eval()
        try:
            return user_code.figures_of(
                self.code.test(self._placed.module, self.loaders[client][split])
            )
        finally:
            self._placed.module.train(training)

    def tensors(self, row: Tensor, client: int) -> dict[str, Tensor]:
        """Return the state dict of a row, of which its tensors are views, with the client's
        buffers.
        """
        self.show(row, client)
        return self._placed.module.state_dict()

    def show(self, row: Tensor, client: int) -> None:
        """Give the user's model a row (d,) and a client's buffers."""
        self._placed.point_at(row)
        self._placed.load_buffers(self.buffers[client])

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
        self._placed.collect(row if target is None else target)
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

        self.show(row, client)
        with (
            torch.enable_grad(),
            register_optimizer_step_pre_hook(before_step),
            register_optimizer_step_post_hook(self._after_step),
        ):
            value = run()
        if edit and steps != 1:
            self._refuse(
                f"changes the gradient of each step, and your code took {steps} steps of an "
                "optimizer of torch.optim for the model on a batch where one is needed; fedavg and "
                "fedfomo do without"
            )
        self.buffers[client] = self._placed.buffers()
        return value

    def _steps_model(self, optimizer: Optimizer) -> bool:
        """Return whether an optimizer steps the model; its state begins anew with each pass."""
        steps_module = self._placed.is_stepped_by(optimizer)
        self._steps[steps_module] += 1
        if not steps_module:
            return False
        if optimizer not in self._fresh:
            self._fresh.add(optimizer)
            optimizer.state.clear()  # of the pass before, or of another client
            self._require_one_rate(optimizer)
        if self.rule.has_rate and (settings := self.rule.mismatch(optimizer)):
            self._refuse(f"has settings of another optimizer than yours; set {settings}")
        return True

    def _require_one_rate(self, optimizer: Optimizer) -> None:
        """Raise ConfigError unless all clients of a round begin with the same rates."""
        rates = [float(group.get("lr") or 0) for group in optimizer.param_groups]
        round_, first = self._first_rates.get(optimizer, (-1, rates))
        if round_ != self._round:
            self._first_rates[optimizer] = self._round, rates
        elif rates != first:
            self._refuse(
                f"trains one client at the rates {first} and the next at {rates}: a schedule "
                "counts the batches of all clients; make it and the optimizer in train="
            )

    def _batch(self, index: Tensor) -> DrawnBatch:
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
