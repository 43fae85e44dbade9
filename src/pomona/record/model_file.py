"""The bytes of a model file: safetensors whose note is an ``ModelMetadata`` and a hash over that and all tensors.

A file runs no code, and no memory is taken before every size that it tells of has been held against its bytes and
against the network that it names.
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
from pomona.models import MODELS, build, outline
from pomona.models.activations import require_small
from pomona.models.packages import package
from pomona.models.parameter_space import ParameterSpace
from pomona.models.trained_part import frozen
from pomona.record.model_metadata import FORMAT, ModelMetadata
from pomona.storage.atomic_io import publish
from pomona.storage.safetensors_stream import TensorEntry, digest, fill, layout, pieces
from pomona.storage.tensor_validation import mismatch, non_finite

HASH = "sha256"


def write(path: Path, tensors: Mapping[str, Tensor], about: ModelMetadata) -> None:
    """Write a file that ``read`` reads, whole and durable, or leave what is there. Raises OSError."""
    tree = about.model_dump(mode="json")
    note = json.dumps({**tree, HASH: seal(tree, tensors)})
    publish(path.parent, pieces(tensors, note), lambda _: path.name, f"{path.name}.unfinished")


def seal(tree: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 in hex over a file's metadata, in any order, and its tensors."""
    text = json.dumps({k: v for k, v in tree.items() if k != HASH}, sort_keys=True, allow_nan=False, ensure_ascii=False)
    return hashlib.sha256(f"{text}\n{digest(tensors)}".encode()).hexdigest()


def read(path: Path, own_code: bool = False) -> tuple[nn.Module, ModelMetadata]:
    """The network with its tensors, in evaluation mode, and what the file says of it.

    Args:
        path: of a file that ``write`` wrote, wherever it has been since.
        own_code: whether a ``module:function`` that the file names may be imported and called.

    Raises:
        StorageError: no model file, a damaged one, or one whose own code is not allowed or not there.
    """
    with _opened(path) as (file, entries, tree):
        about = _about(tree, path)
        module = _network(about, path, own_code)
        still = frozen(module) if about.frozen_sha256 else {}
        if wrong := mismatch(entries, _tensors(module, entries.keys() - still.keys(), still.keys())):
            raise ValueError(wrong)
        _require_answer(module, about)
        tensors = fill(file, entries)
        _require_sealed(tree, tensors, path)
        if wrong := non_finite(tensors):
            raise ValueError(wrong)
        if package(about.network.name):  # it may compute buffers that are in no file
            module = build(
                about.network, about.input_shape, about.outputs, about.vocabulary, output_shape=about.output_shape
            )
        return _filled(module, tensors | _frozen(path, about, still)), about


def tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a model file by name, without its network. Raises StorageError for a damaged file, or none."""
    with _opened(path) as (file, entries, tree):
        found = fill(file, entries)
        _require_sealed(tree, found, path)
        return found


@contextmanager
def _opened(path: Path) -> Iterator[tuple[BinaryIO, dict[str, TensorEntry], Any]]:
    """A model file that stands at its first tensor, its layout, and the value of its note.

    Raises StorageError if its header shows no model, and for what the work within finds wrong.
    """

    def no_model(why: str) -> StorageError:
        return StorageError(f"{path} holds no model ({bounds.plain(why)}); give a file of models/ in a run folder")

    try:
        with files.opened(path) as file:
            entries, note = layout(file, path.stat().st_size, bounds.MOST_BYTES)
            yield file, entries, bounds.parse(note, no_model)
    except (OSError, ValueError, RecursionError, MemoryError, RuntimeError, ConfigError) as fault:
        raise no_model(str(fault)) from None


def _require_sealed(tree: Any, tensors: Mapping[str, Tensor], path: Path) -> None:
    """Raise StorageError unless a note holds the hash of a file's content."""
    if not isinstance(tree, dict) or seal(tree, tensors) != tree.get(HASH):
        raise StorageError(f"{path} is damaged: its SHA-256 is not that of its content; take it from a copy")


def _about(tree: Any, path: Path) -> ModelMetadata:
    """The metadata as a record. Raises ValueError or StorageError."""
    if not isinstance(tree, dict) or not isinstance(tree.get("format"), str):
        raise ValueError("its metadata are not those of a personal model")
    if tree["format"] != FORMAT:
        raise StorageError(
            f"{path} has the format {bounds.plain(tree['format'], 40)!r}, this version reads {FORMAT!r}; "
            "make the run again, or export the model with the version that wrote it"
        )
    if not isinstance(tree.get(HASH), str):
        raise ValueError(f"its metadata have no {HASH}")
    try:
        return ModelMetadata.model_validate({k: v for k, v in tree.items() if k != HASH})
    except ValidationError as fault:
        raise ValueError(bounds.first(fault)) from None


def _network(about: ModelMetadata, path: Path, own_code: bool) -> nn.Module:
    """The network that a file names: a registered one without memory behind it, or by own code. Raises StorageError."""
    name, sizes = about.network.name, (about.input_shape, about.outputs, about.vocabulary)
    if name in MODELS or package(name) or ":" not in name:
        return outline(about.network, *sizes)
    file = f"{name.partition(':')[0].partition('.')[0]}.py"
    where = bounds.plain(f"the folder that holds {file}, or have that on PYTHONPATH")
    what = f"{path} is a model of own code, {bounds.plain(name, 80)}"
    if not own_code:
        raise StorageError(f"{what}, which runs only if you say so: give --own-code (own_code=True), in {where}")
    try:
        return build(about.network, *sizes)
    except ConfigError as fault:
        raise StorageError(f"{what}, which fails here ({bounds.plain(str(fault))}); work in {where}") from None


def _require_answer(module: nn.Module, about: ModelMetadata) -> None:
    """Raise ValueError for a sample that would take too much memory, and for outputs that are not what the file says.

    Of a network by own code nothing is known before it runs.
    """
    if not any(tensor.is_meta for tensor in module.state_dict().values()):
        return
    patch = about.network.patch
    seen, said = (patch.of(s) if patch else s for s in (about.input_shape, about.output_shape))
    given = require_small(module, seen, bool(about.vocabulary))
    if given is not None and given != (1, *said):
        raise ValueError(f"its network gives outputs of shape {given[1:]}, its metadata say {said}")


def _tensors(module: nn.Module, there: Set[str], elsewhere: Set[str]) -> dict[str, Tensor]:
    """The form of a network's file: parameters and moving statistics, and of the other buffers those that are there."""
    known = dict(module.named_parameters(remove_duplicate=False)) | dict(module.named_buffers())
    needed = {entry.name for entry in ParameterSpace(module, "average").entries}
    needed = (needed | {name for name, _ in module.named_parameters()}) - elsewhere
    return {k: v.float() if v.is_floating_point() else v for k, v in known.items() if k in needed or k in there}


def frozen_file(folder: Path, sha256: str) -> Path:
    """The file beside models that holds what none of them has changed."""
    return folder / f"frozen-{sha256[:16]}.safetensors"


def _frozen(path: Path, about: ModelMetadata, still: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors that training left as they were, from the file beside. Raises StorageError."""
    if about.frozen_sha256 is None:
        return {}
    beside = frozen_file(path.parent, about.frozen_sha256)
    if not beside.exists():
        raise StorageError(
            f"{path} holds what was trained; the frozen part is missing: put {beside.name} beside it, from models/ of "
            "the run, or export the model there"
        )
    try:
        with files.opened(beside) as file:
            entries, _ = layout(file, beside.stat().st_size, bounds.MOST_BYTES)
            if wrong := mismatch(entries, still):
                raise ValueError(wrong)
            found = fill(file, entries)
        if digest(found) != about.frozen_sha256:
            raise ValueError("another hash")
    except (OSError, ValueError, RecursionError, MemoryError) as fault:
        why = bounds.plain(str(fault))
        raise StorageError(f"{beside} is not the frozen part of {path.name} ({why}); take it from a copy") from None
    return found


def _filled(module: nn.Module, tensors: Mapping[str, Tensor]) -> nn.Module:
    """The network in evaluation mode, with these tensors; counters that are not among them are 0."""
    if any(tensor.is_meta for tensor in module.state_dict().values()):
        module.to_empty(device="cpu")
        for name, buffer in module.named_buffers():
            if name not in tensors:
                buffer.zero_()
    module.load_state_dict(tensors, strict=False)
    return module.eval()
