"""The models of a run as its folder keeps them, read when they are asked for."""

import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

NAME = re.compile(r"client-(\d{2,4})\.safetensors")


class ModelFolder(Mapping[int, Mapping[str, "Tensor"]]):
    """By client: the tensors by name, on the CPU, of the model that it is judged by. Empty before a run has ended.

    Reading a client's raises StorageError if its file is damaged.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @cached_property
    def _paths(self) -> dict[int, Path]:
        found = sorted(self._folder.glob("client-*.safetensors"))
        return {int(name[1]): path for path in found if (name := NAME.fullmatch(path.name))}

    def __getitem__(self, client: int) -> Mapping[str, "Tensor"]:
        from pomona.record.model_file import tensors  # late: it brings PyTorch along

        return tensors(self._paths[client])

    def __iter__(self) -> Iterator[int]:
        return iter(self._paths)

    def __len__(self) -> int:
        return len(self._paths)
