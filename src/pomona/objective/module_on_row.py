"""A user's module whose parameters are read from and written to rows of numbers."""

from collections.abc import Mapping

from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from pomona.models.parameter_space import ParameterSpace


class ModuleOnRow:
    """A module, and the row (d,) that its parameters are views of.

    Args:
        module: the user's; it is changed in place.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module, self.space = module, ParameterSpace(module)
        parameters = dict(module.named_parameters())
        self._parameters = [parameters[entry.name] for entry in self.space.parameters]
        self._ids = {id(parameter) for parameter in self._parameters}

    def point_at(self, row: Tensor) -> None:
        """Let the parameters be views of a row (d,), or copies where they are on another device."""
        for view, parameter in zip(self.space.views(row), self._parameters, strict=True):
            parameter.data = view.to(parameter.device, parameter.dtype)

    def collect(self, row: Tensor) -> None:
        """Write the parameters into a row (d,), as far as they are not views of it."""
        for view, parameter in zip(self.space.views(row), self._parameters, strict=True):
            if view.data_ptr() != parameter.data_ptr():
                view.copy_(parameter.detach())

    def read_gradient(self, g: Tensor) -> None:
        """Copy the parameters' gradients into a row (d,); those without keep its numbers."""
        for view, parameter in zip(self.space.views(g), self._parameters, strict=True):
            if parameter.grad is not None:
                view.copy_(parameter.grad)

    def write_gradient(self, g: Tensor) -> None:
        """Set the parameters' gradients to a row (d,)."""
        for view, parameter in zip(self.space.views(g), self._parameters, strict=True):
            parameter.grad = view.to(parameter.device, parameter.dtype)

    def clear_gradients(self, columns: slice) -> None:
        """Let an optimizer skip the parameters within some columns."""
        for entry, parameter in zip(self.space.parameters, self._parameters, strict=True):
            if columns.start <= entry.start and entry.stop <= columns.stop:
                parameter.grad = None

    def is_stepped_by(self, optimizer: Optimizer) -> bool:
        """Return whether an optimizer has a parameter of the module."""
        stepped = (p for group in optimizer.param_groups for p in group["params"])
        return not self._ids.isdisjoint(map(id, stepped))

    def buffers(self) -> dict[str, Tensor]:
        """Return copies of the module's buffers, such as BatchNorm's statistics."""
        return copied(dict(self.module.named_buffers()))

    def load_buffers(self, buffers: Mapping[str, Tensor]) -> None:
        """Give the module copies of these buffers."""
        for name, buffer in self.module.named_buffers():
            buffer.data = buffers[name].clone().to(buffer.device)


def copied(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return copies that share no memory and have no gradient."""
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}
