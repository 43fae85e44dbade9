"""Model files: safetensors with a note that contains a ``ModelMetadata`` and a hash over it and all
tensors.

Reading a file runs no code, and allocates memory only after all sizes in it have been checked
against its length and against its network.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from pydantic import ValidationError
from torch import Tensor, nn

from pomona.core import bounds, files
from pomona.core.errors import ConfigError, StorageError
from pomona.core.files import publish
from pomona.models import MODELS, build, outline
from pomona.models.layers import frozen, require_small
from pomona.models.packages import package
from pomona.models.parameter_space import ParameterSpace
from pomona.record.model_metadata import FORMAT, ModelMetadata
from pomona.storage.safetensors_stream import TensorEntry, digest, fill, layout, pieces
from pomona.storage.tensor_validation import mismatch, non_finite

HASH = "sha256"


def write(path: Path, tensors: Mapping[str, Tensor], metadata: ModelMetadata) -> None:
    """Write a complete and durable model file; on failure, the old one is unchanged.

    Raises OSError.
    """
    tree = metadata.model_dump(mode="json")
    note = json.dumps({**tree, HASH: seal(tree, tensors)})
    publish(path, pieces(tensors, note), f"{path.name}.unfinished")


def seal(tree: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 in hex over a file's metadata, in any order, and its tensors."""
    text = json.dumps(
        {k: v for k, v in tree.items() if k != HASH},
        sort_keys=True,
        allow_nan=False,
        ensure_ascii=False,
    )
    return hashlib.sha256(f"{text}\n{digest(tensors)}".encode()).hexdigest()


def read(path: Path, own_code: bool = False) -> tuple[nn.Module, ModelMetadata]:
    """Return the network with its tensors, in evaluation mode, and the file's metadata.

    Args:
        path: of a file from ``write``; untrusted, since others may have changed it.
        own_code: whether a ``module:function`` in the file may be imported and called.

    Raises:
        StorageError: not a model file, a damaged one, or one whose own code is not allowed or not
            available.
    """
    with _opened(path) as (file, entries, tree):
        metadata = _metadata(tree, path)
        module = _network(metadata, path, own_code)
        frozen_tensors = frozen(module) if metadata.frozen_sha256 else {}
        if problem := mismatch(
            entries, _tensors(module, entries.keys() - frozen_tensors.keys(), frozen_tensors.keys())
        ):
            raise ValueError(problem)
        _require_output_shape(module, metadata)
        tensors = fill(file, entries)
        _require_sealed(tree, tensors, path)
        if problem := non_finite(tensors):
            raise ValueError(problem)
        tensors |= _frozen(path, metadata, frozen_tensors)
        if package(metadata.network.name):  # it may compute buffers that are not stored
            return network(metadata, tensors), metadata
        return _filled(module, tensors), metadata


def network(metadata: ModelMetadata, tensors: Mapping[str, Tensor]) -> nn.Module:
    """Return the network with these tensors, in evaluation mode."""
    sizes = metadata.input_shape, metadata.outputs, metadata.vocabulary
    return _filled(build(metadata.network, *sizes, output_shape=metadata.output_shape), tensors)


def tensors(path: Path) -> dict[str, Tensor]:
    """Return a model file's tensors by name, without its network.

    Raises StorageError if damaged or missing.
    """
    with _opened(path) as (file, entries, tree):
        state = fill(file, entries)
        _require_sealed(tree, state, path)
        return state


@contextmanager
def _opened(path: Path) -> Iterator[tuple[BinaryIO, dict[str, TensorEntry], Any]]:
    """Open a model file at its first tensor, with its layout and its note.

    Raises StorageError if its header is not that of a model, and for errors raised inside the
    context.
    """

    def no_model(reason: str) -> StorageError:
        return StorageError(
            f"{path} does not contain a model ({bounds.plain(reason)}); give a file of models/ in "
            "a run folder"
        )

    try:
        with files.opened(path) as file:
            entries, note = layout(file, path.stat().st_size, bounds.MOST_BYTES)
            yield file, entries, bounds.parse(note, no_model)
    except (OSError, ValueError, RecursionError, MemoryError, RuntimeError, ConfigError) as fault:
        raise no_model(str(fault)) from None


def _require_sealed(tree: Any, tensors: Mapping[str, Tensor], path: Path) -> None:
    """Raise StorageError unless a note contains the hash of the file's content."""
    if not isinstance(tree, dict) or seal(tree, tensors) != tree.get(HASH):
        raise StorageError(
            f"{path} is damaged: its SHA-256 is not that of its content; restore it from a backup"
        )


def _metadata(tree: Any, path: Path) -> ModelMetadata:
    """Parse the metadata. Raises ValueError or StorageError."""
    if not isinstance(tree, dict) or not isinstance(tree.get("format"), str):
        raise ValueError("its metadata are not those of a personal model")
    if tree["format"] != FORMAT:
        raise StorageError(
            f"{path} has the format {bounds.plain(tree['format'], 40)!r}, but this version reads "
            f"{FORMAT!r}; repeat the run, or export the model with the version that wrote it"
        )
    if not isinstance(tree.get(HASH), str):
        raise ValueError(f"its metadata have no {HASH}")
    try:
        return ModelMetadata.model_validate({k: v for k, v in tree.items() if k != HASH})
    except ValidationError as fault:
        raise ValueError(bounds.first(fault)) from None


def _network(metadata: ModelMetadata, path: Path, own_code: bool) -> nn.Module:
    """Build a file's network: a registered one on the meta device, or by own code.

    Raises StorageError.
    """
    name = metadata.network.name
    sizes = (metadata.input_shape, metadata.outputs, metadata.vocabulary)
    if name in MODELS or package(name) or ":" not in name:
        return outline(metadata.network, *sizes)
    file = f"{name.partition(':')[0].partition('.')[0]}.py"
    folder_hint = bounds.plain(f"the folder that holds {file}, or have that on PYTHONPATH")
    subject = f"{path} is a model of own code, {bounds.plain(name, 80)}"
    if not own_code:
        raise StorageError(
            f"{subject}, which runs only if you allow it: add --own-code (own_code=True), in "
            f"{folder_hint}"
        )
    try:
        return build(metadata.network, *sizes)
    except ConfigError as fault:
        raise StorageError(
            f"{subject}, which fails here ({bounds.plain(str(fault))}); work in {folder_hint}"
        ) from None


def _require_output_shape(module: nn.Module, metadata: ModelMetadata) -> None:
    """Raise ValueError if a sample would need too much memory, or if outputs differ from the file's
    metadata.

    A network by own code cannot be checked before it runs.
    """
    if not any(tensor.is_meta for tensor in module.state_dict().values()):
        return
    patch = metadata.network.patch
    input_shape, output_shape = (
        patch.shape_of(s) if patch else s for s in (metadata.input_shape, metadata.output_shape)
    )
    actual = require_small(module, input_shape, bool(metadata.vocabulary))
    if actual is not None and actual != (1, *output_shape):
        raise ValueError(
            f"its network has outputs of shape {actual[1:]}, but its metadata say {output_shape}"
        )


def _tensors(
    module: nn.Module, stored_names: Set[str], frozen_names: Set[str]
) -> dict[str, Tensor]:
    """Return the tensors expected in a file: parameters, moving statistics, and other buffers that
    it has.
    """
    available = dict(module.named_parameters(remove_duplicate=False)) | dict(module.named_buffers())
    needed = {entry.name for entry in ParameterSpace(module, "average").entries}
    needed = (needed | {name for name, _ in module.named_parameters()}) - frozen_names
    return {
        k: v.float() if v.is_floating_point() else v
        for k, v in available.items()
        if k in needed or k in stored_names
    }


def frozen_file(folder: Path, sha256: str) -> Path:
    """Return the path, next to the models, of the file with their common frozen tensors."""
    return folder / f"frozen-{sha256[:16]}.safetensors"


def _frozen(
    path: Path, metadata: ModelMetadata, expected: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Read the frozen tensors from their common file. Raises StorageError."""
    if metadata.frozen_sha256 is None:
        return {}
    frozen_path = frozen_file(path.parent, metadata.frozen_sha256)
    if not frozen_path.exists():
        raise StorageError(
            f"{path} holds only the trained tensors; the frozen ones are missing: put "
            f"{frozen_path.name} next to it, from models/ of the run, or export the model there"
        )
    try:
        with files.opened(frozen_path) as file:
            entries, _ = layout(file, frozen_path.stat().st_size, bounds.MOST_BYTES)
            if problem := mismatch(entries, expected):
                raise ValueError(problem)
            state = fill(file, entries)
        if digest(state) != metadata.frozen_sha256:
            raise ValueError("its SHA-256 differs")
    except (OSError, ValueError, RecursionError, MemoryError) as fault:
        reason = bounds.plain(str(fault))
        raise StorageError(
            f"{frozen_path} is not the frozen part of {path.name} ({reason}); restore it from a "
            "backup"
        ) from None
    return state


def _filled(module: nn.Module, tensors: Mapping[str, Tensor]) -> nn.Module:
    """Return the network in evaluation mode with these tensors; missing counters are 0."""
    if any(tensor.is_meta for tensor in module.state_dict().values()):
        module.to_empty(device="cpu")
        for name, buffer in module.named_buffers():
            if name not in tensors:
                buffer.zero_()
    module.load_state_dict(tensors, strict=False)
    return module.eval()
