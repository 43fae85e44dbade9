"""Initial weights from a file."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor, nn

from pomona.core import bounds, files
from pomona.core.errors import ConfigError, StorageError
from pomona.models.layers import matching
from pomona.models.settings import ModelSettings
from pomona.storage.safetensors_stream import digest, fill, layout, quoted
from pomona.storage.tensor_validation import non_finite


@dataclass(frozen=True)
class Weights:
    """A file's tensors by name, and the SHA-256 over names and values, equal for equal tensors."""

    path: Path
    tensors: Mapping[str, Tensor]
    sha256: str


def initial(settings: ModelSettings) -> Weights | None:
    """Read the weights of ``model.init``, or None.

    Raises ConfigError if the file is missing or damaged, or does not match ``model.init_sha256``.
    """
    if settings.init is None:
        if settings.init_sha256:
            raise ConfigError(
                "model.init is not set; set it to the file of the weights "
                f"{settings.init_sha256[:12]}"
            )
        return None
    try:
        weights = read(settings.init)
    except StorageError as fault:
        raise ConfigError(
            f"model.init: {fault}; give a safetensors file of the network's weights"
        ) from None
    if settings.init_sha256 not in {None, weights.sha256}:
        raise ConfigError(
            f"model.init={settings.init} contains other weights: their hash is {weights.sha256}, "
            f"expected {settings.init_sha256}; use the file that all others use"
        )
    return weights


def read(path: Path) -> Weights:
    """Read a safetensors file, with a cache of one.

    Raises StorageError if it is missing or damaged.
    """
    stat = files.regular(path, lambda reason: StorageError(f"{reason}, and no weights")).stat()
    return _read(path, stat.st_size, stat.st_mtime_ns)


@lru_cache(maxsize=1)
def _read(path: Path, size: int, _: int) -> Weights:
    try:
        with files.opened(path, files.WEIGHTS) as file:
            entries, _note = layout(file, size, bounds.MOST_BYTES)
            tensors = fill(file, entries)
        if problem := non_finite(tensors):
            raise ValueError(problem)
    except (OSError, ValueError, RuntimeError, MemoryError) as fault:
        raise StorageError(f"{path} holds no weights ({bounds.plain(str(fault))})") from None
    return Weights(path, tensors, digest(tensors))


@torch.no_grad()
def load(module: nn.Module, weights: Weights, skip: Sequence[str]) -> None:
    """Load weights into a network; tensors that match a glob of ``skip`` keep their random values.

    Batch counters, which affect no result, may be missing.

    Raises:
        ConfigError: one line for each tensor that is missing, unknown, or of another shape.
    """
    state = module.state_dict()
    skipped = matching([*state, *weights.tensors], skip, "model.init_skip", "tensor")
    expected = {name: tensor for name, tensor in state.items() if name not in skipped}
    loaded = {
        name: t
        for name, t in weights.tensors.items()
        if not any(fnmatchcase(name, glob) for glob in skip)
    }
    faults = [*_faults(expected, loaded)]
    if faults:
        raise ConfigError(
            f"model.init={weights.path} does not fit the network; use the network of these "
            "weights, or name the tensors that start at random in model.init_skip",
            *faults,
        )
    for name, tensor in expected.items():
        if name in loaded:
            tensor.copy_(loaded[name])


def _faults(expected: Mapping[str, Tensor], loaded: Mapping[str, Tensor]) -> list[str]:
    missing = [n for n in expected if n not in loaded and not n.endswith("num_batches_tracked")]
    return [
        *(f"{name} is missing" for name in missing),
        *(f"{quoted(name)} is unknown" for name in loaded if name not in expected),
        *(
            f"{name} has shape {tuple(loaded[name].shape)}, the network's {tuple(tensor.shape)}"
            for name, tensor in expected.items()
            if name in loaded and loaded[name].shape != tensor.shape
        ),
        *(
            f"{name} holds {loaded[name].dtype}, the network's numbers are {tensor.dtype}"
            for name, tensor in expected.items()
            if name in loaded and loaded[name].is_floating_point() != tensor.is_floating_point()
        ),
    ]
