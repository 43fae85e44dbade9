"""Export of a client's personal model: plain tensors, a PyTorch program, or ONNX.

The program and the ONNX file accept samples as stored by their owner, in batches of any size:
images (B, H, W, C) and volumes (B, D, H, W, C) of the training dtype, rows of a table (B, F)
float32 without normalisation, texts (B, T) int32 tokens. They include the training's normalisation.
They return the network's outputs: logits of classes or flags (B, K), those of each pixel (B, K,
*sides) for masks, logits of the hazards of time intervals (B, K), whose ends are given, or the
values themselves (B, K). A network trained on patches accepts patches. The meaning of inputs and
outputs is stored as JSON under the name ``pomona``, without paths of this machine.
"""

import json
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from pomona.core.errors import ConfigError, with_extra
from pomona.models.lora import merge
from pomona.personal import PersonalModel
from pomona.record import model_file
from pomona.tasks import TASKS

Target = Literal["safetensors", "pt2", "onnx"]
ONNX_PACKAGES = ("onnx", "onnxscript")


class Raw(nn.Module):
    """A network with the normalisation of its training data and the units of its targets."""

    def __init__(self, model: PersonalModel) -> None:
        super().__init__()
        self.network = model.module
        self.shift = nn.Buffer(torch.tensor(model.about.shift))
        self.scale = nn.Buffer(torch.tensor(model.about.scale))
        self.tokens = model.about.kind == "text"
        self.images = model.about.kind == "image"
        self.numbers = TASKS[model.about.targets].standardised
        self.target_shift = nn.Buffer(torch.tensor(model.about.target_shift))
        self.target_scale = nn.Buffer(torch.tensor(model.about.target_scale))

    def forward(self, x: Tensor) -> Tensor:
        """Map samples as in a data set to outputs (B, K)."""
        if not self.tokens:
            x = (x.float() - self.shift) / self.scale
            x = x.movedim(-1, 1) if self.images else x
        outputs: Tensor = self.network(x)
        return outputs * self.target_scale + self.target_shift if self.numbers else outputs


def export(model: PersonalModel, path: Path, target: Target) -> None:
    """Write a personal model for other programs.

    Args:
        model: from ``models/`` of a run.
        path: the file; its folder must exist.
        target: ``safetensors``: the network's ``state_dict``, with normalised inputs and outputs;
            ``pt2``: for ``torch.export.load``; ``onnx``: for any ONNX runtime.

    Raises:
        ConfigError: PyTorch cannot trace the network, or the packages for ``onnx`` are missing.
        OSError: the file cannot be written.
    """
    writers: dict[Target, Callable[[PersonalModel, Path], None]] = {
        "safetensors": _tensors,
        "pt2": _program,
        "onnx": _onnx,
    }
    writers[target](model, path)


def describe_io(model: PersonalModel) -> str:
    """Describe a program's inputs, for a table with its columns' names in order, and outputs, as
    JSON.
    """
    metadata = model.about
    steps = metadata.preprocessing
    feature_names = (
        {"features": steps.features if steps else metadata.columns} if metadata.columns else {}
    )
    return json.dumps(
        {**metadata.model_dump(mode="json"), "inputs": inputs(model), **feature_names}
    )


def inputs(model: PersonalModel) -> str:
    """Describe one sample of the program or ONNX file, for display."""
    sides = ", ".join(map(str, example(model).shape[1:]))
    windows = (
        f", windows of samples {model.about.sample_shape}" if model.about.network.patch else ""
    )
    return f"(batch, {sides}) {str(example(model).dtype).removeprefix('torch.')}{windows}"


def example(model: PersonalModel) -> Tensor:
    """Return a batch of two zero samples, or patches of samples, in the data set's form."""
    metadata, patch = model.about, model.about.network.patch
    shape = (*patch.size, metadata.sample_shape[-1]) if patch else metadata.sample_shape
    return torch.zeros(2, *shape, dtype=getattr(torch, metadata.dtype))


def traced(model: PersonalModel) -> ExportedProgram:
    """Trace the network and its normalisation as a graph for batches of any size.

    Raises ConfigError if impossible.
    """
    try:
        with _quiet():
            program = torch.export.export(
                Raw(model).eval(),
                (example(model),),
                dynamic_shapes=({0: Dim("batch")},),
                strict=False,
            )
    except Exception as fault:  # tracing runs the user's own code, which may raise anything
        name, first = model.about.network.name, str(fault).partition("\n")[0]
        raise ConfigError(
            f"model.name={name} cannot be traced ({first}); export it to safetensors"
        ) from fault
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # contains paths of this machine
    return program


def _tensors(model: PersonalModel, path: Path) -> None:
    network = model.about.network.model_copy(update={"train": "all"})
    metadata = model.about.model_copy(update={"network": network, "frozen_sha256": None})
    model_file.write(path, merge(deepcopy(model.module)).state_dict(), metadata)


def _program(model: PersonalModel, path: Path) -> None:
    with _quiet():
        torch.export.save(traced(model), path, extra_files={"pomona": describe_io(model)})


def _onnx(model: PersonalModel, path: Path) -> None:
    if missing := [name for name in ONNX_PACKAGES if not find_spec(name)]:
        raise ConfigError(f"ONNX needs {' and '.join(missing)}; {with_extra('export')}")
    with _quiet():
        program = torch.onnx.export(
            traced(model),
            dynamo=True,
            verbose=False,
            input_names=["inputs"],
            output_names=["outputs"],
        )
        assert program is not None
        for node in program.model.graph.all_nodes():
            node.metadata_props.clear()
        program.model.metadata_props["pomona"] = describe_io(model)
        program.save(path)


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide the exporters' warnings about themselves from the user."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
