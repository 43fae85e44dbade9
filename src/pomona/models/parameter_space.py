"""A model as a vector: the map between an ``nn.Module``'s tensors and one contiguous row in R^d.

Parameters are stored in layer order, so a layer, the head or the top p layers are slices of the
row. Convolution weights are laid out channels-last inside their slice: a view of the row then has
the layout of the fast kernels, and for everything else the row is plain numbers. A user's own
module can be pointed at a row, and read from it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Literal

from pomona.core.errors import ConfigError
from pomona.core.lazy_torch import Module, Tensor, torch
from pomona.models.layers import frozen, layers

if TYPE_CHECKING:
    from torch.optim.optimizer import Optimizer

Buffers = Literal["local", "average"]


@dataclass(frozen=True)
class ParameterSlice:
    """Position of a tensor: elements [start, stop) of a row; ``shape`` is the module's own."""

    name: str
    shape: tuple[int, ...]
    start: int
    stop: int

    def view(self, rows: Tensor) -> Tensor:
        """View this tensor in rows (..., d), in its shape behind the leading axes."""
        return self.shaped(rows[..., self.start : self.stop])

    def shaped(self, elements: Tensor) -> Tensor:
        """View its own elements (..., stop - start) of rows, in its shape behind those axes."""
        if len(self.shape) == 4:
            o, i, h, w = self.shape
            return elements.view(*elements.shape[:-1], o, h, w, i).movedim(-1, -3)
        return elements.view((*elements.shape[:-1], *self.shape))


@dataclass(frozen=True)
class Head:
    """A linear layer in a row, most often the last: of features (b, f) the outputs (b, K) are
    features @ weight.T + bias.

    Attributes:
        weight, bias: slices of a row, with K f and K elements.
        outputs, features: K and f.
    """

    weight: slice
    bias: slice
    outputs: int
    features: int

    @property
    def columns(self) -> slice:
        """The slice of both."""
        return slice(self.weight.start, self.bias.stop)

    def view(self, W: Tensor) -> tuple[Tensor, Tensor]:
        """View weight (n, K, f) and bias (n, K) in rows W (n, d)."""
        return W[:, self.weight].unflatten(1, (self.outputs, self.features)), W[:, self.bias]


class ParameterSpace:
    """R^d for one architecture: its trained parameters, see ``models.layers``.

    ``trained`` is the length of a row of parameters, which is all that a method handles. ``size``
    is that of a whole
    row: with ``buffers="average"``, received models have the floating-point buffers (BatchNorm
    statistics) after the parameters. A row without them is evaluated with statistics estimated on
    the client's own training data; with ``"local"`` this holds for every row. ``layers`` are slices
    of a row, one per layer from input to output; ``norms`` those of the tensors of normalisation
    layers, in order; ``padding`` those that no gradient reaches: the vectors of padding tokens;
    ``head`` the last layer if it is linear, with a bias, and trained, else None.
    """

    def __init__(self, module: Module, buffers: Buffers = "local") -> None:
        fixed = frozen(module)
        statistics = [
            (k, b) for k, b in module.named_buffers() if b.is_floating_point() and k not in fixed
        ]
        self.parameters = self._entries(
            [(k, p) for k, p in module.named_parameters() if p.requires_grad], 0
        )
        self._lengths = [e.stop - e.start for e in self.parameters]
        self.trained = self.parameters[-1].stop if self.parameters else 0
        self.buffers = self._entries(statistics, self.trained) if buffers == "average" else ()
        self.size = self.buffers[-1].stop if self.buffers else self.trained
        self.layers = self._slices(module)
        self.norms = self._norms(module)
        self.padding = self._padding(module)
        self.head = self.linear(module, layers(module)[-1][0])
        self.has_statistics = bool(statistics)
        if not self.trained:
            raise ConfigError(
                "the model has no parameters to train; choose another model.name or model.train"
            )

    @staticmethod
    def _entries(tensors: list[tuple[str, Tensor]], start: int) -> tuple[ParameterSlice, ...]:
        entries = []
        for name, tensor in tensors:
            if torch.nn.parameter.is_lazy(tensor):
                raise ConfigError(f"{name} has no shape yet; run the network on one batch before")
            if tensor.is_complex():
                raise ConfigError(
                    f"{name} is {tensor.dtype}, and rows are of real numbers; give the network the "
                    "real and the imaginary part as two parameters"
                )
            stop = start + prod(tensor.shape)
            entries.append(ParameterSlice(name, tuple(tensor.shape), start, stop))
            start = stop
        return tuple(entries)

    def _slices(self, module: Module) -> tuple[slice, ...]:
        """Return one slice of a row per layer, from input to output; a layer's parameters are
        contiguous.
        """
        entries = {e.name: e for e in self.parameters}
        owned = [
            [entries[name] for name in names if name in entries] for _, names in layers(module)
        ]
        slices = tuple(
            slice(layer_entries[0].start, layer_entries[-1].stop)
            for layer_entries in owned
            if layer_entries
        )
        if [s.stop for s in slices[:-1]] != [s.start for s in slices[1:]]:
            raise ConfigError(
                "the model's layers are registered in pieces; register each submodule's "
                "parameters together"
            )
        return slices

    def _norms(self, module: Module) -> tuple[slice, ...]:
        """Return the slices of a row that belong to normalisation layers."""
        norm_types = (torch.nn.modules.batchnorm._NormBase, torch.nn.GroupNorm, torch.nn.LayerNorm)
        paths = {
            path for path, submodule in module.named_modules() if isinstance(submodule, norm_types)
        }
        return tuple(
            slice(e.start, e.stop) for e in self.parameters if e.name.rpartition(".")[0] in paths
        )

    def linear(self, module: Module, path: str) -> Head | None:
        """Return the place of a layer of the module; None unless it is linear, with a bias, and
        trained.
        """
        layer, prefix = module.get_submodule(path), f"{path}." if path else ""
        slices = {e.name: slice(e.start, e.stop) for e in self.parameters}
        names = f"{prefix}weight", f"{prefix}bias"
        if type(layer) is not torch.nn.Linear or not all(name in slices for name in names):
            return None
        weight, bias = (slices[name] for name in names)
        return Head(weight, bias, layer.out_features, layer.in_features)

    @property
    def variances(self) -> tuple[slice, ...]:
        """Slices of a row's statistics, relative to their start, that are running variances."""
        running_vars = [e for e in self.buffers if e.name.rpartition(".")[2] == "running_var"]
        return tuple(slice(e.start - self.trained, e.stop - self.trained) for e in running_vars)

    def statistics_in(self, rows: Tensor) -> tuple[ParameterSlice, ...]:
        """Return the buffers in rows (..., d): all of the space's, or none if the rows end with the
        parameters.
        """
        return self.buffers if rows.shape[-1] > self.trained else ()

    def _padding(self, module: Module) -> tuple[slice, ...]:
        offsets, slices = {e.name: e.start for e in self.parameters}, []
        for path, submodule in module.named_modules():
            start = offsets.get(f"{path}.weight".lstrip("."))
            if (
                isinstance(submodule, torch.nn.Embedding | torch.nn.EmbeddingBag)
                and submodule.padding_idx is not None
                and start is not None
            ):
                first = start + submodule.padding_idx * submodule.embedding_dim
                slices.append(slice(first, first + submodule.embedding_dim))
        return tuple(slices)

    def views(self, row: Tensor) -> list[Tensor]:
        """View all parameters in a row (d,), in order: ``view`` of each, in fewer calls."""
        pieces = row[: self.trained].split_with_sizes(self._lengths)
        return [e.shaped(piece) for e, piece in zip(self.parameters, pieces, strict=True)]

    @property
    def entries(self) -> tuple[ParameterSlice, ...]:
        """All slices of a row, in order."""
        return self.parameters + self.buffers

    def pack(self, module: Module) -> Tensor:
        """Return the row (d,) float32 of a module's current values."""
        tensors = dict(module.named_parameters()) | dict(module.named_buffers())
        row = torch.empty(self.size)
        for entry in self.entries:
            entry.view(row).copy_(tensors[entry.name].detach())
        return row

    def unpack(self, row: Tensor) -> dict[str, Tensor]:
        """Return named tensors in the module's own layout, for ``load_state_dict(...,
        strict=False)``.
        """
        return {e.name: e.view(row).contiguous().clone() for e in self.entries}

    def row(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Return the row of named tensors, the inverse of ``unpack``.

        Raises ConfigError for each mismatch.
        """
        row = torch.empty(self.size)
        for entry in self.entries:
            if entry.name not in tensors or tuple(tensors[entry.name].shape) != entry.shape:
                got = tuple(tensors[entry.name].shape) if entry.name in tensors else "nothing"
                raise ConfigError(
                    f"{entry.name}: expected shape {entry.shape}, got {got}; does this model have "
                    "another architecture?"
                )
            entry.view(row).copy_(tensors[entry.name])
        return row


class ModuleOnRow:
    """A module, and the row (d,) that its parameters are views of.

    Args:
        module: the user's; it is changed in place.
    """

    def __init__(self, module: Module) -> None:
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

    def is_stepped_by(self, optimizer: "Optimizer") -> bool:
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
