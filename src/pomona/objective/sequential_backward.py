"""Explicit backpropagation through a plain chain of layers, writing every gradient directly into its place in a row.

Autograd would allocate each gradient, which then has to be copied to its place: one more pass over all parameters, and
at small batches passes over the parameters dominate a step. The results are identical to autograd's: the same kernels
in the same order.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn

from pomona.models.parameter_space import ParameterSlice, ParameterSpace

aten = torch.ops.aten

Loss = Callable[[Tensor, Tensor], Tensor]  # (outputs (b, K), features (b, f)) -> loss ()
# (gradient of the output, row g (d,) for the parameters' gradients) -> gradient of the input, if any layer precedes
Backward = Callable[[Tensor, Tensor], Tensor]
# (input, row (d,), whether the gradient of the input is not needed)
Step = Callable[[Tensor, Tensor, bool], tuple[Tensor, Backward]]


def linear(weight: ParameterSlice, bias: ParameterSlice | None) -> Step:
    """Affine maps x W^T + b on x (b, f)."""

    def forward(x: Tensor, row: Tensor, first: bool) -> tuple[Tensor, Backward]:
        W = weight.view(row)

        def backward(dy: Tensor, g: Tensor) -> Tensor:
            torch.mm(dy.T, x, out=weight.view(g))
            if bias is not None:
                torch.sum(dy, 0, out=bias.view(g))
            return dy if first else dy @ W

        return x @ W.T if bias is None else torch.addmm(bias.view(row), x, W.T), backward

    return forward


def convolution(weight: ParameterSlice, bias: ParameterSlice | None, *geometry: Any) -> Step:
    """A 2-d convolution; ``geometry`` is stride, padding, dilation, transposed, output padding and groups."""

    def forward(x: Tensor, row: Tensor, first: bool) -> tuple[Tensor, Backward]:
        W, wanted = weight.view(row), [not first, True, bias is not None]

        def backward(dy: Tensor, g: Tensor) -> Tensor:
            dx, dW, db = aten.convolution_backward.default(dy, x, W, [len(W)], *geometry, wanted)
            weight.view(g).copy_(dW)
            if bias is not None:
                bias.view(g).copy_(db)
            return dy if first else dx

        return aten.convolution.default(x, W, None if bias is None else bias.view(row), *geometry), backward

    return forward


def pool(*geometry: Any) -> Step:
    """2-d max-pooling; ``geometry`` is kernel, stride, padding, dilation and whether sizes round up."""

    def forward(x: Tensor, row: Tensor, first: bool) -> tuple[Tensor, Backward]:
        y, places = aten.max_pool2d_with_indices.default(x, *geometry)
        return y, lambda dy, _: aten.max_pool2d_with_indices_backward.default(dy, x, *geometry, places)

    return forward


def relu(x: Tensor, row: Tensor, first: bool) -> tuple[Tensor, Backward]:
    """max(x, 0), in place: no other layer needs the values that it changes."""
    y = x.relu_()
    return y, lambda dy, _: aten.threshold_backward.default(dy, y, 0)


def flatten(x: Tensor, row: Tensor, first: bool) -> tuple[Tensor, Backward]:
    """Flatten (b, ...) -> (b, f)."""
    return x.flatten(1), lambda dy, _: dy.view(x.shape)


@dataclass(frozen=True)
class Chain:
    """A sequence of layers, the last of them linear.

    ``ends``: for each layer, the end of the parameters in a row of it and of all before it; 0 if there are none.
    """

    steps: tuple[Step, ...]
    ends: tuple[int, ...]

    @classmethod
    def of(cls, module: nn.Module, space: ParameterSpace, dimensions: int) -> "Chain | None":
        """Return the chain equivalent to ``module`` for inputs with ``dimensions`` axes, including that of samples.

        None unless it is a sequence of supported layers, linear ones on two dimensions.
        """
        children = dict(module.named_children())
        if type(module) is not nn.Sequential or len(children) < len(module):  # a layer that is used twice
            return None
        flat = dimensions == 2
        for layer in children.values():
            flat |= type(layer) is nn.Flatten
            if type(layer) is nn.Linear and not flat:
                return None
        places = {e.name: e for e in space.parameters}
        steps = [_step(layer, name, places) for name, layer in children.items()]
        known = tuple(step for step in steps if step is not None)
        whole = len(known) == len(steps) > 0
        if not whole or type(list(children.values())[-1]) is not nn.Linear:
            return None
        stops = ([places[f"{name}.{p}"].stop for p, _ in layer.named_parameters()] for name, layer in children.items())
        return cls(known, tuple(accumulate((max(own, default=0) for own in stops), max)))

    @torch.no_grad()
    def gradient(self, x: Tensor, row: Tensor, g: Tensor, loss: Loss, above: int = 0) -> Tensor:
        """Write the gradient of a loss () at ``row`` (d,) into the trained part of ``g`` (d,); return the loss.

        The loss is a function of the outputs and of the last layer's input. ``x`` may be overwritten. Leading layers
        whose parameters all lie below ``above`` are skipped.
        """
        return self.gradient_above(self.below(x, row, above), row, g, loss, above)

    @torch.no_grad()
    def below(self, x: Tensor, row: Tensor, above: int) -> Tensor:
        """Return the outputs of the layers that ``gradient`` skips; the inputs themselves if it skips none."""
        for step in self.steps[: self._skipped(above)]:
            x, _ = step(x, row, True)
        return x

    @torch.no_grad()
    def gradient_above(self, x: Tensor, row: Tensor, g: Tensor, loss: Loss, above: int) -> Tensor:
        """Compute ``gradient`` from the result of ``below``.

        The result of ``below`` is not overwritten unless it is the input itself: the first layer not skipped has
        parameters.
        """
        behind, features, skipped = [], x, self._skipped(above)
        for number, step in enumerate(self.steps[skipped:]):
            features = x
            x, backward = step(x, row, number == 0)
            behind.append(backward)
        with torch.enable_grad():
            outputs, features = x.requires_grad_(), features.detach().requires_grad_()
            value = loss(outputs, features)
            dy, direct = torch.autograd.grad(value, (outputs, features), materialize_grads=True)
        dy = behind.pop()(dy, g)
        if behind:
            dy += direct
        while behind:
            dy = behind.pop()(dy, g)
        return value.detach()

    def _skipped(self, above: int) -> int:
        """Return the number of leading layers without parameters from ``above`` on; never includes the last one."""
        return sum(end <= above for end in self.ends[:-1])


def _step(layer: nn.Module, name: str, places: dict[str, ParameterSlice]) -> Step | None:
    """Return a layer's explicit form; None if unsupported. Exact types only: a subclass may compute anything."""
    weight, bias = places.get(f"{name}.weight"), places.get(f"{name}.bias")
    if type(layer) is nn.ReLU:
        return relu
    if type(layer) is nn.Flatten and (layer.start_dim, layer.end_dim) == (1, -1):
        return flatten
    if type(layer) is nn.MaxPool2d and not layer.return_indices:
        sizes = (layer.kernel_size, layer.stride, layer.padding, layer.dilation)
        return pool(*(nn.modules.utils._pair(size) for size in sizes), layer.ceil_mode)
    # Tied parameters are stored once, under one of their names: then the other is missing here.
    if weight is None or (bias is None) != (getattr(layer, "bias", None) is None):
        return None
    if type(layer) is nn.Linear:
        return linear(weight, bias)
    if type(layer) is nn.Conv2d and layer.padding_mode == "zeros" and not isinstance(layer.padding, str):
        return convolution(weight, bias, layer.stride, layer.padding, layer.dilation, False, (0, 0), layer.groups)
    return None
