"""Tensors by name that lie elsewhere, in a file or in other processes, and are fetched one at a time."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from torch import Tensor

Named = Mapping[str, Tensor]


@dataclass(frozen=True, eq=False)
class Lazy(Named):
    """Tensors that are fetched whenever they are asked for, and not kept.

    Attributes:
        forms: what there is: shapes and dtypes, as tensors on the meta device.
        fetch: a tensor's values, by its name.
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
    """Shapes and dtypes by name, without fetching what is not at hand."""
    return tensors.forms if isinstance(tensors, Lazy) else tensors


def form(tensor: Tensor) -> Tensor:
    """A tensor without its values."""
    return tensor.to("meta")


def only(tensors: Named, wanted: Callable[[str], bool]) -> Lazy:
    """Those whose names are wanted."""
    return Lazy({name: t for name, t in forms(tensors).items() if wanted(name)}, tensors.__getitem__)


def merged(*parts: Named) -> Lazy:
    """The tensors of all parts, whose names differ."""
    home = {name: part for part in parts for name in part}
    return Lazy({name: t for part in parts for name, t in forms(part).items()}, lambda name: home[name][name])
