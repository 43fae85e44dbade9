"""Named tensors, some read only when needed; a method's state as such, for checkpoints, copies and
private files.

A state is None, a tensor, or a frozen dataclass of states.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from pomona.core.errors import CheckpointError

NamedTensors = Mapping[str, Tensor]


@dataclass(frozen=True, eq=False)
class Lazy(NamedTensors):
    """Tensors that are fetched on each access and not cached.

    Attributes:
        meta_tensors: the shapes and dtypes, as tensors on the meta device.
        fetch: returns a tensor's values by name.
    """

    meta_tensors: NamedTensors
    fetch: Callable[[str], Tensor]

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.meta_tensors:
            raise KeyError(name)
        return self.fetch(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.meta_tensors)

    def __len__(self) -> int:
        return len(self.meta_tensors)


def meta_tensors(tensors: NamedTensors) -> NamedTensors:
    """Return shapes and dtypes by name without fetching lazy tensors."""
    return tensors.meta_tensors if isinstance(tensors, Lazy) else tensors


def meta_tensor(tensor: Tensor) -> Tensor:
    """Return a tensor on the meta device with the same shape and dtype."""
    return tensor.to("meta")


def only(tensors: NamedTensors, predicate: Callable[[str], bool]) -> Lazy:
    """Return only the tensors with the wanted names."""
    return Lazy(
        {name: t for name, t in meta_tensors(tensors).items() if predicate(name)},
        tensors.__getitem__,
    )


def merged(*sources: NamedTensors) -> Lazy:
    """Combine tensors from several parts with disjoint names."""
    source_of = {name: source for source in sources for name in source}
    return Lazy(
        {name: t for source in sources for name, t in meta_tensors(source).items()},
        lambda name: source_of[name][name],
    )


S = TypeVar("S")


def apply(function: Callable[[Tensor], Tensor], state: S) -> S:
    """Apply ``function`` to every tensor of a state."""
    mapped: S = _map(lambda _, tensor: function(tensor), state, "")
    return mapped


def concatenated(states: Sequence[S]) -> S:
    """Join single-client states into one state of all, copying their tensors along the leading
    axis.
    """
    first = states[0]
    if isinstance(first, Tensor):
        return torch.cat(states)  # type: ignore[arg-type, return-value]
    if first is None:
        return first
    joined = {
        name: concatenated([getattr(state, name) for state in states])
        for name, _, _ in _state_fields(first, "")
    }
    return type(first)(**joined)


def row(state: S, k: int) -> S:
    """Return a copy of the k-th client's state from a state of several."""
    return apply(lambda t: t[k : k + 1].clone(), state)


def flatten(state: object, prefix: str) -> dict[str, Tensor]:
    """Return a state's tensors by dotted path, e.g. ``client.3.inner.core``; a single tensor's path
    is the prefix.
    """
    return dict(_leaves(state, prefix))


def rebuild(template: S, tensors: Mapping[str, Tensor], prefix: str) -> S:
    """Rebuild a state from named tensors, the inverse of ``flatten``; the template gives only the
    structure.

    Args:
        template: a state of the same structure, such as a method's start.
        tensors: tensors by dotted path; those outside the prefix are ignored.
        prefix: as given to ``flatten``.

    Raises:
        CheckpointError: tensors under the prefix are missing or not part of the template.
    """
    expected = {path for path, _ in _leaves(template, prefix)}
    stored = {path for path in tensors if path == prefix or path.startswith(f"{prefix}.")}
    if expected != stored:
        differences = "; ".join(
            f"{label} {', '.join(sorted(paths))}"
            for label, paths in (("missing:", expected - stored), ("unknown:", stored - expected))
            if paths
        )
        raise CheckpointError(
            f"the stored state {prefix!r} does not fit this method ({differences}); resume with "
            "the version of pomona that wrote it, or start over in another folder"
        )
    rebuilt: S = _map(lambda path, _: tensors[path], template, prefix)
    return rebuilt


def _state_fields(state: object, path: str) -> list[tuple[str, str, Any]]:
    """Return (field, path, value) for each field of a dataclass."""
    if not is_dataclass(state) or isinstance(state, type):
        raise TypeError(
            f"{path or 'state'} is a {type(state).__name__}; a state is None, a tensor or a "
            "dataclass of them"
        )
    return [(f.name, f"{path}.{f.name}", getattr(state, f.name)) for f in fields(state)]


def _leaves(state: object, path: str) -> Iterator[tuple[str, Tensor]]:
    if isinstance(state, Tensor):
        yield path, state
    elif state is not None:
        for _, inner, value in _state_fields(state, path):
            yield from _leaves(value, inner)


def _map(function: Callable[[str, Tensor], Tensor], state: Any, path: str) -> Any:
    if isinstance(state, Tensor):
        return function(path, state)
    if state is None:
        return None
    return type(state)(
        **{name: _map(function, value, inner) for name, inner, value in _state_fields(state, path)}
    )
