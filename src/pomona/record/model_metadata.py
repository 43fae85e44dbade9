"""Metadata of a model file: everything needed to use the model, bounded and consistent."""

from collections.abc import Iterator
from itertools import pairwise
from math import prod
from typing import Annotated, Literal

from pydantic import Field, model_validator

from pomona.core.bounds import WITH_CLASS_NAMES, Finite, Line, Sha256, Targets
from pomona.core.settings import Settings
from pomona.data.dataset import INPUT_FORMS, InputKind, SampleType
from pomona.data.preprocessing import Preprocessing
from pomona.data.settings import Edge
from pomona.data.table_settings import TableForm
from pomona.data.tokenizer import Tokenizer
from pomona.models import ModelSettings
from pomona.tasks import TASKS

FORMAT: Literal["pomona-model-2"] = "pomona-model-2"
MOST_VALUES = 2**26  # of one sample: an image of 8192 x 8192

Side = Annotated[int, Field(ge=1, le=MOST_VALUES)]
Outputs = Annotated[int, Field(ge=1, le=10**6)]
Length = Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]  # mm
Tokens = Annotated[int, Field(ge=0, lt=2**31)]


class ModelMetadata(Settings):
    """The metadata of a model file.

    Attributes:
        format: of the file.
        client: the client whose model it is.
        model: model and stage in the round, as in reports.
        network: as in the run's settings.
        kind: ``image`` samples (H, W, C) or (D, H, W, C), ``table`` (F,), ``text`` (T,), as in a
            data set.
        dtype: of samples as stored by their owner.
        input_shape: of one sample as network input: (C, H, W), (C, D, H, W), (F,) or (T,).
        outputs: K, the width of the network's output.
        vocabulary: number of tokens including padding; 0 unless the samples are texts.
        words: the tokens with numbers 2, 3, ..., if known.
        tokenizer: of the texts, if not by these words.
        targets: type of the outputs: logits of classes, of flags, of hazards, or numbers.
        classes: names of the K classes; empty for flags and numbers.
        labels: names of the K flags or numbers, if known.
        columns: names of the F columns of a table in order, or of the columns joined to texts, if
            known.
        others: names of the training file's other columns: label, client, and dropped columns.
        preprocessing: conversion of a table file's columns to the F columns of a sample, if they
            differ.
        target_shift, target_scale: a number is the network's output times target_scale plus
            target_shift, by target.
        edges: for times to an event, the ends of the K intervals of the hazards.
        frozen_sha256: hash of the frozen tensors, if they are in a separate file.
        form: how tables of the training were read; also used for files of samples.
        window: centre and width of the window that converted image values to 8 bits, if any.
        spacings: mm between voxels along (z, y, x) of the training's volumes, if known.
        orientation: the directions in which x, y and z of its volumes grow (``RAS``), if all files
            state their orientation in the patient.
        traits: what the headers of its images say, as in a data set.
        resize: the side to which its images were resized, if they were.
        shift, scale: the network's input is ``(x - shift) / scale``, broadcast over the last axis
            of x (not for text).
    """

    format: Literal["pomona-model-2"] = FORMAT
    client: Line
    model: Line
    network: ModelSettings
    kind: InputKind
    dtype: SampleType = Field(default_factory=lambda fields: INPUT_FORMS[fields["kind"]].dtypes[0])
    input_shape: tuple[Side, ...] = Field(min_length=1, max_length=4)
    outputs: Outputs
    vocabulary: Tokens
    words: tuple[str, ...]
    tokenizer: Tokenizer | None = None
    targets: Targets
    classes: tuple[str, ...]
    labels: tuple[str, ...]
    columns: tuple[str, ...]
    others: tuple[str, ...]
    shift: tuple[Finite, ...]
    scale: tuple[Finite, ...]
    frozen_sha256: Sha256 | None = None
    form: TableForm = TableForm()
    window: tuple[Finite, Annotated[Finite, Field(gt=0)]] | None = None
    target_shift: tuple[Finite, ...]
    target_scale: tuple[Finite, ...]
    edges: tuple[Edge, ...] = Field((), max_length=1000)
    preprocessing: Preprocessing | None = None
    spacings: tuple[tuple[Length, Length, Length], ...] = Field((), max_length=64)
    orientation: Literal["", "RAS"] = ""
    traits: dict[Line, Annotated[tuple[Line, ...], Field(max_length=64)]] = Field(
        default_factory=dict, max_length=16
    )
    resize: Side | None = None

    @property
    def read_columns(self) -> tuple[str, ...]:
        """Names of the columns required in a file of samples: those that become features, else
        ``columns``.
        """
        return self.preprocessing.names if self.preprocessing else self.columns

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """Shape of one sample as stored by its owner: (H, W, C), (D, H, W, C), (F,) or (T,)."""
        if self.kind == "image":
            return (*self.input_shape[1:], self.input_shape[0])
        return self.input_shape

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Shape of a sample's outputs: (K,), or (K, *sides) of masks."""
        return TASKS[self.targets].output_shape(self.outputs, self.input_shape)

    @property
    def names(self) -> tuple[str, ...]:
        """Name of each output: the classes, else the labels, else numbers."""
        noun = TASKS[self.targets].output
        return self.classes or self.labels or tuple(f"{noun} {k}" for k in range(self.outputs))

    @model_validator(mode="after")
    def _fits(self) -> "ModelMetadata":
        """Reject contradictory fields."""
        for valid, problem in (*self._of_samples(), *self._of_outputs()):
            if not valid:
                raise ValueError(problem)
        return self

    def _of_samples(self) -> Iterator[tuple[bool, str]]:
        """Yield each condition on a sample, and the problem if it does not hold."""
        text, table = self.kind == "text", self.kind == "table"
        last, input_form = self.sample_shape[-1], INPUT_FORMS[self.kind]
        yield len(self.input_shape) in input_form.ranks, "input_shape is not that of its kind"
        yield self.dtype in input_form.dtypes, "dtype is not that of its kind"
        yield prod(self.input_shape) <= MOST_VALUES, f"a sample has more than {MOST_VALUES} values"
        yield bool(self.vocabulary) == text, "texts, and only texts, have a vocabulary"
        yield (
            len(self.words) <= max(0, self.vocabulary - 2),
            "words are not those of the vocabulary",
        )
        yield (
            self.tokenizer is None or (text and self.tokenizer.padding < self.vocabulary),
            "the tokenizer is not that of the vocabulary",
        )
        yield not table or len(self.columns) in {0, last}, "columns are not those of a sample"
        yield len(set(self.columns)) == len(self.columns), "two columns have one name"
        yield (
            {len(self.shift), len(self.scale)} <= {1, last},
            "shift or scale is not that of a sample",
        )
        yield 0 not in self.scale, "a scale is 0"
        volumes = self.kind == "image" and len(self.input_shape) == 4
        yield volumes or not (self.spacings or self.orientation), "only volumes have a spacing"
        preprocessing = self.preprocessing
        yield (
            preprocessing is None or (table and preprocessing.width == last),
            "preprocessing does not fit",
        )

    def _of_outputs(self) -> Iterator[tuple[bool, str]]:
        """Yield each condition on the outputs, and the problem if it does not hold."""
        k, patch = self.outputs, self.network.patch
        yield self.kind == "image" or self.targets != "segmentation", "masks are for images"
        yield (
            len(self.classes) == (k if self.targets in WITH_CLASS_NAMES else 0),
            "classes are not the outputs",
        )
        yield len(self.labels) in ({0} if self.classes else {0, k}), "labels are not the outputs"
        yield len(set(self.names)) == k, "two outputs have one name"
        sides = {len(self.target_shift), len(self.target_scale)}
        yield sides <= {1, k}, "target_shift or target_scale is not that of the outputs"
        yield 0 not in self.target_scale, "a scale is 0"
        yield (
            len(self.edges) == (k if self.targets == "survival" else 0),
            "edges are not the outputs",
        )
        yield all(a < b for a, b in pairwise(self.edges)), "edges do not ascend"
        fits = patch is None or patch.misfit(self.input_shape, self.targets) is None
        yield fits, "patches do not fit the samples"
