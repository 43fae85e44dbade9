"""Model files as an attacker might make them: with correct hashes, whatever their content."""

import json

import torch
from safetensors.torch import save_file

from pomona.record import model_file
from pomona.record.model_metadata import ModelMetadata

WEIGHTS = {
    "fc1.weight": torch.tensor([[1.0, 2.0], [3.0, 4.0]]),
    "fc1.bias": torch.tensor([0.5, -0.5]),
}
METADATA = ModelMetadata(
    client="A", model="personal, trained", network={"name": "logistic"}, kind="table", input_shape=(2,), outputs=2,
    vocabulary=0, words=(), targets="classes", classes=("no", "yes"), labels=(), columns=("age", "dose"),
    others=("site", "sick"), shift=(1.0, 1.0), scale=(2.0, 2.0),
    target_shift=(0.0,), target_scale=(1.0,),
)  # fmt: skip


def tree(**changes):
    """The metadata of a valid file, with changes; without a dtype samples have the first of their
    kind.
    """
    return {**METADATA.model_dump(mode="json", exclude={"dtype"}), **changes}


def craft(path, header, tensors=WEIGHTS):
    """A file with this content, and its correct hash."""
    save_file(
        tensors,
        path,
        {"pomona": json.dumps({**header, "sha256": model_file.seal(header, tensors)})},
    )
    return path


def good(path, **changes):
    """A file as a run would write it: 2 features, 2 classes."""
    model_file.write(path, WEIGHTS, METADATA.model_copy(update=changes))
    return path
