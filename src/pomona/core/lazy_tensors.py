"""Named tensors that are stored elsewhere, in a file or another process, and fetched one at a time."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from torch import Tensor

Named = Mapping[str, Tensor]


@dataclass(frozen=True, eq=False)
class Lazy(Named):
    """Tensors that are fetched on each access and not cached.

    Attributes:
        forms: the shapes and dtypes, as tensors on the meta device.
        fetch: returns a tensor's values by name.
    """

    forms: Named
    fetch: Callable[[str], Tensor]

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.forms:
            raise KeyError(name)
        return self.fetch(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.forms)

    def __len__(self) -> int:
        return len(self.forms)


def forms(tensors: Named) -> Named:
    """Return shapes and dtypes by name without fetching lazy tensors."""
    return tensors.forms if isinstance(tensors, Lazy) else tensors


def form(tensor: Tensor) -> Tensor:
    """Return a tensor on the meta device with the same shape and dtype."""
    return tensor.to("meta")


def only(tensors: Named, wanted: Callable[[str], bool]) -> Lazy:
    """Return only the tensors with the wanted names."""
    return Lazy({name: t for name, t in forms(tensors).items() if wanted(name)}, tensors.__getitem__)


def merged(*parts: Named) -> Lazy:
    """Combine tensors from several parts with disjoint names."""
    home = {name: part for part in parts for name in part}
    return Lazy({name: t for part in parts for name, t in forms(part).items()}, lambda name: home[name][name])
