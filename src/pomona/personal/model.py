"""A client's personal model, ready for prediction."""

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pomona.core.errors import DataError, PomonaWarning, suggestion
from pomona.core.files import publish
from pomona.data import validation
from pomona.data.preprocessing import Preprocessing
from pomona.data.settings import ImageFiles
from pomona.data.table_settings import table_form
from pomona.models.around_last_layer import LinearOnFirst
from pomona.models.layers import layers
from pomona.models.segmentation import on_whole_images
from pomona.personal.inputs import Samples, read
from pomona.record import model_file
from pomona.record.model_file import frozen_file
from pomona.record.model_metadata import ModelMetadata
from pomona.record.result import Result, model_path
from pomona.scenario import Scenario
from pomona.storage.safetensors_stream import digest, pieces
from pomona.tasks import TASKS, task_of

AT_ONCE = 2**24  # values of the samples in one batch of the network
PIXELS_AT_ONCE = 2**20  # of the masks returned


def save(
    path: Path, model: dict[str, Tensor], scenario: Scenario, client: int, headline: tuple[str, str]
) -> None:
    """Write one model with all that is needed to use it. Raises OSError."""
    model_file.write(path, model, metadata(scenario, client, headline))


def metadata(scenario: Scenario, client: int, headline: tuple[str, str]) -> ModelMetadata:
    """Return all that is needed to use a client's model: network, normalisation, names."""
    data, settings = scenario.dataset, scenario.config.data
    return ModelMetadata(
        client=scenario.names[client],
        model=", ".join(headline),
        network=scenario.config.model.model_copy(update={"init": None, "init_sha256": None}),
        kind=data.kind,
        dtype=data.x.dtype.name,
        input_shape=scenario.input_shape,
        outputs=data.n_outputs,
        vocabulary=data.vocabulary,
        words=data.words,
        tokenizer=data.tokenizer,
        targets=scenario.targets,
        classes=data.classes,
        labels=data.labels,
        columns=data.columns,
        others=data.others,
        frozen_sha256=digest(scenario.network.frozen) if scenario.network.frozen else None,
        form=table_form(settings),
        window=settings.window if isinstance(settings, ImageFiles) else None,
        shift=data.shift,
        scale=data.scale,
        target_shift=data.target_shift,
        target_scale=data.target_scale,
        edges=data.edges,
        spacings=data.spacings,
        orientation=data.orientation,
        traits=dict(data.traits),
        resize=getattr(settings, "resize", None),
        preprocessing=data.preprocessing[client % len(data.preprocessing)]
        if data.preprocessing
        else None,
    )


def save_frozen(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write the frozen tensors once for all models in a folder. Raises OSError."""
    if tensors and not (path := frozen_file(folder, digest(tensors))).exists():
        publish(path, pieces(tensors))


@dataclass(frozen=True)
class PersonalModel:
    """A network in evaluation mode, with its file's metadata."""

    module: nn.Module
    about: ModelMetadata

    @classmethod
    def load(cls, path: Path, own_code: bool = False) -> "PersonalModel":
        """Read a file of ``models/``.

        Args:
            path: the file; it need not be trusted.
            own_code: whether to import and call the ``module:function`` in the file, if any; only
                for files that you trust.

        Raises:
            StorageError: not a model file, a damaged one, or one whose own code is not allowed or
                not available.
        """
        return cls(*model_file.read(Path(path), own_code))

    @classmethod
    def of(cls, result: Result, client: int | str, own_code: bool = False) -> "PersonalModel":
        """Return the personal model of a client of a run, by number or name.

        Args:
            result: in memory, or of a folder.
            client: its number, or its name in ``result.about["clients"]``.
            own_code: as for ``load``; a network in memory is the program's own.

        Raises:
            DataError: no such client, or one that never took part.
            StorageError: as ``load``.
        """
        names = result.about["clients"]
        if isinstance(client, str) and client not in names:
            raise DataError(f"no client {client!r}; {suggestion(client, names)}")
        number = names.index(client) if isinstance(client, str) else client
        if number not in [*result.models]:  # without reading them
            raise DataError(
                f"client {client} has no model: it is not in this run, took no part, or is removed"
            )
        if result.folder:
            return cls.load(model_path(result.folder, number), own_code)
        assert result.network, "models in memory come with it"
        first, frozen = result.network
        prepared = result.about["preprocessing"]
        metadata = first.model_copy(
            update={
                "client": names[number],
                "preprocessing": Preprocessing.model_validate(prepared[number % len(prepared)])
                if prepared
                else None,
            }
        )
        return cls(model_file.network(metadata, {**result.models[number], **frozen}), metadata)

    def outputs(self, x: Any) -> Tensor:
        """Return outputs (n, K) float32, logits or numbers in the units of the training data; for
        masks ``(n, K, *sides)``.

        A network trained on patches runs on sliding windows over each sample.

        Args:
            x: samples in every form that training takes: an array, a tensor or lists (n, H, W, C),
                (n, D, H, W, C), (n, F) or (n, T); a frame, whose columns are found by name; texts;
                the path of a file. Or as in a data set, and as ``pomona.personal.inputs.read``
                returns them.

        Raises:
            DataError: samples that do not fit those of training, or outputs that are not finite.
            ConfigError: windows are needed, and MONAI is not installed.

        Warns PomonaWarning of assumptions made in reading.
        """
        return self._outputs(self._samples(x))

    def features(self, x: Any) -> Tensor:
        """Return the numbers (n, f) that the last layer answers by; ``x`` and errors as for
        ``outputs``.
        """
        features: list[Tensor] = []
        last = self.module.get_submodule(layers(self.module)[-1][0])
        used = last.in_features if isinstance(last, LinearOnFirst) else None
        hook = last.register_forward_pre_hook(
            lambda _, inputs: features.append(inputs[0].flatten(1)[:, :used].float())
        )
        with hook:
            outputs = self.outputs(x)
        return torch.cat(features) if features else outputs[:, :0]

    def _samples(self, x: Any) -> NDArray[np.generic]:
        if isinstance(x, Samples):
            return x.x
        signature = (getattr(x, "dtype", None), getattr(x, "shape", ())[1:])
        if isinstance(x, np.ndarray) and signature == (self.about.dtype, self.about.sample_shape):
            _require_offset(x, self.about)
            return x
        samples = read(x, self.about)
        if samples.note:
            warnings.warn(samples.note, PomonaWarning, stacklevel=3)
        return samples.x

    @torch.no_grad()
    def _outputs(self, x: NDArray[np.generic]) -> Tensor:
        metadata = self.about
        validation.inputs(x, metadata.kind, metadata.vocabulary, "samples")
        if x.shape[1:] != metadata.sample_shape or x.dtype != metadata.dtype:
            expected = f"the model takes {metadata.dtype} {metadata.sample_shape}"
            raise DataError(
                f"samples are {x.dtype} {x.shape[1:]}, {expected}; bring them into that form"
            )
        batch_outputs = [
            self._pass(torch.from_numpy(np.array(batch))) for batch in self._batches(x)
        ]
        outputs = (
            torch.cat(batch_outputs) if batch_outputs else torch.empty(0, *metadata.output_shape)
        )
        if not outputs.isfinite().all():
            raise DataError(
                "the model's outputs are not finite; the samples are too unlike its training"
            )
        return outputs

    def _batches(self, x: NDArray[np.generic]) -> Iterator[NDArray[np.generic]]:
        sample, pixels = prod(self.about.sample_shape), prod(self.about.output_shape[1:])
        step = max(1, min(AT_ONCE // sample, PIXELS_AT_ONCE // pixels))
        return (x[i : i + step] for i in range(0, len(x), step))

    def _pass(self, values: Tensor) -> Tensor:
        metadata = self.about
        if metadata.kind != "text":
            values = (values.float() - torch.tensor(metadata.shift)) / torch.tensor(metadata.scale)
            values = values.movedim(-1, 1) if metadata.kind == "image" else values
        outputs = on_whole_images(self.module, metadata.network.patch)(values)
        if not TASKS[metadata.targets].standardised:
            return outputs
        return (
            outputs.double() * torch.tensor(metadata.target_scale)
            + torch.tensor(metadata.target_shift)
        ).float()

    def predict(self, x: Any) -> list[dict[str, Any]]:
        """Return one answer per sample; ``x`` as for ``outputs``.

        Returns:
            For classes ``class``, its ``probability``, and ``probabilities`` by class; for flags
            ``probabilities`` by label; for numbers ``values`` by target; for masks ``mask``
            ``(*sides)`` uint8, the class number of each pixel, and ``pixels`` by class; for times
            ``survival`` beyond each edge, ``median`` and ``risk``.

        Raises:
            DataError: as ``outputs``.
        """
        predict = task_of(self.about.targets, self.about.edges).predict
        return [
            answer
            for batch in self._batches(self._samples(x))
            for answer in predict(self._outputs(batch), self.about.names)
        ]


def _require_offset(x: NDArray[np.generic], metadata: ModelMetadata) -> None:
    """Raise DataError for rows of a table in float32 from which an offset is not subtracted: their
    numbers are rounded by more than they differ.
    """
    offsets = np.array(metadata.preprocessing.offsets if metadata.preprocessing else ())
    if not len(x) or not offsets.any():
        return
    offset_not_subtracted = (np.abs(x) > np.abs(offsets) / 2).all(axis=0) & (offsets != 0)
    if offset_not_subtracted.any():
        column = int(offset_not_subtracted.argmax())
        name = metadata.columns[column] if metadata.columns else column
        raise DataError(f"x is float32, too coarse for column {name}; give float64, as in training")
