"""Section task of ``federation.toml``: the agreed form of the data, and the section for a given
data set.
"""

import hashlib
import json
from collections.abc import Collection, Mapping
from itertools import pairwise
from typing import Annotated, Self

from pydantic import FailFast, Field, model_validator

from pomona.core.bounds import LONGEST, WITH_CLASS_NAMES, Sha256, Targets
from pomona.core.errors import ConfigError
from pomona.core.settings import Settings
from pomona.core.toml import Tree
from pomona.data.dataset import INPUT_FORMS, Dataset, InputKind, SampleType
from pomona.data.preprocessing import Preprocessing
from pomona.data.settings import Edge

MAX_ITEMS = 10**6  # columns, outputs, classes and words
ClassName = Annotated[str, Field(max_length=LONGEST)]
WordText = Annotated[str, Field(max_length=1000)]
Size = Annotated[int, Field(ge=1, le=10**9)]
Numbers = Annotated[tuple[float, ...], Field(min_length=1, max_length=MAX_ITEMS), FailFast()]


class TaskSettings(Settings):
    """The form of one sample, the label map, and the preprocessing.

    Attributes:
        kind: kind of sample
        input_shape: one sample as read: (H, W, C), (D, H, W, C), (F,), (T,)
        dtype: of a sample as read: images uint8, uint16, int16 or float32; tables float32; texts
            int32
        classes: class names in the order of their numbers; empty: targets
        time_edges: survival: ends of the time intervals, ascending
        outputs: width of the network's output
        targets: what a sample's labels are
        shift: the network sees (x - shift) / scale, over the last axis
        scale: see shift
        target_shift: regression: the network learns (y - target_shift) / target_scale
        target_scale: see target_shift
        preprocessing: table: how its columns become the numbers of input_shape
        vocabulary: tokens including padding, for texts
        words: the words with numbers 2, 3, ...; 0 is padding, 1 any other word
        tokenizer: SHA-256 of the tokenizer.json of all silos, in place of words
    """

    kind: InputKind
    input_shape: Annotated[tuple[Size, ...], FailFast()] = Field(max_length=8)
    dtype: SampleType = Field(default_factory=lambda data: INPUT_FORMS[data["kind"]].dtypes[0])
    classes: Annotated[tuple[ClassName, ...], FailFast()] = Field((), max_length=MAX_ITEMS)
    time_edges: Annotated[tuple[Edge, ...], FailFast()] = Field((), max_length=1000)
    outputs: int = Field(
        default_factory=lambda data: len(data["classes"]) or len(data["time_edges"]),
        ge=0,
        le=MAX_ITEMS,
    )
    targets: Targets = "classes"
    shift: Numbers = (0.0,)
    scale: Numbers = (1.0,)
    target_shift: Numbers = (0.0,)
    target_scale: Numbers = (1.0,)
    preprocessing: Preprocessing | None = None
    vocabulary: int = Field(0, ge=0, le=MAX_ITEMS + 2)
    words: Annotated[tuple[WordText, ...], FailFast()] = Field((), max_length=MAX_ITEMS)
    tokenizer: Sha256 | None = None

    @property
    def sha256(self) -> str:
        """SHA-256 in hex of all settings, with defaults, by which a silo's rules recognise the
        task.
        """
        text = json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    @model_validator(mode="after")
    def _fits(self) -> Self:
        self._require_placed()
        self._require_form()
        self._require_targets()
        self._require_outputs()
        self._require_scales()
        return self

    def _require_placed(self) -> None:
        """Refuse keys of another kind of sample, or of other targets."""
        for key, (attribute, owners) in OWNERS.items():
            owner = getattr(self, attribute)
            if getattr(self, key) != type(self).model_fields[key].default and owner not in owners:
                raise ValueError(
                    f"{key} is for {attribute} = {' or '.join(map(repr, owners))}, not {owner!r}; "
                    "remove it"
                )

    def _require_form(self) -> None:
        """Require the form that samples of this kind have."""
        input_form = INPUT_FORMS[self.kind]
        if len(self.input_shape) not in input_form.ranks:
            ranks = " or ".join(map(str, input_form.ranks))
            raise ValueError(f"a sample of kind {self.kind} has {ranks} numbers in input_shape")
        if self.dtype not in input_form.dtypes:
            raise ValueError(
                f"a sample of kind {self.kind} has dtype {' or '.join(input_form.dtypes)}"
            )
        if self.preprocessing and self.input_shape != (self.preprocessing.width,):
            raise ValueError(
                f"preprocessing makes tables of input_shape = [{self.preprocessing.width}]"
            )
        if self.kind == "text" and self.vocabulary < max(2, len(self.words) + 2):
            raise ValueError(
                "texts have a vocabulary of 2 or more and at most vocabulary - 2 words"
            )

    def _require_targets(self) -> None:
        """Require what the targets need."""
        if self.targets == "segmentation" and self.kind != "image":
            raise ValueError("targets = 'segmentation' is for kind = 'image'")
        if self.targets in WITH_CLASS_NAMES and not self.classes:
            raise ValueError(f"name the classes of targets = {self.targets!r}")
        if self.targets == "survival" and not self.time_edges:
            raise ValueError("give the time_edges of targets = 'survival'")

    def _require_outputs(self) -> None:
        """Require lists in order and without repetition, and a network's output for each class or
        interval.
        """
        if any(b <= a for a, b in pairwise(self.time_edges)):
            raise ValueError("time_edges must ascend")
        if len(set(self.classes)) < len(self.classes) or len(set(self.words)) < len(self.words):
            raise ValueError("classes and words must differ from one another")
        if not self.outputs:
            raise ValueError("set outputs, the number of targets of a sample")
        for key in ("classes", "time_edges"):
            if (listed := getattr(self, key)) and self.outputs != len(listed):
                raise ValueError(f"outputs must be {len(listed)}, the number of {key}")

    def _require_scales(self) -> None:
        """Require scales that can be divided by, for each number of a sample or of its targets."""
        for values in (self.shift, self.scale):
            if len(values) not in {1, self.input_shape[-1]}:
                raise ValueError(f"shift and scale have 1 or {self.input_shape[-1]} numbers")
        if 0 in self.scale:
            raise ValueError("scale must not be 0")
        for values in (self.target_shift, self.target_scale):
            if len(values) not in {1, self.outputs}:
                raise ValueError(f"target_shift and target_scale have 1 or {self.outputs} numbers")
        if min(self.target_scale) <= 0:
            raise ValueError("target_scale must be positive")


# Keys that mean something for one kind of sample, or for some targets, alone.
OWNERS: Mapping[str, tuple[str, Collection[str]]] = {
    "preprocessing": ("kind", ("table",)),
    "vocabulary": ("kind", ("text",)),
    "words": ("kind", ("text",)),
    "tokenizer": ("kind", ("text",)),
    "classes": ("targets", tuple(sorted(WITH_CLASS_NAMES))),
    "time_edges": ("targets", ("survival",)),
    "target_shift": ("targets", ("regression",)),
    "target_scale": ("targets", ("regression",)),
}


def of_samples(dataset: Dataset) -> Tree:
    """The section for silos whose files hold samples in the form of ``dataset.x``: preprocessing of
    columns is done.
    """
    return {
        "kind": dataset.kind,
        "input_shape": list(dataset.x.shape[1:]),
        "dtype": dataset.x.dtype.name,
        "classes": list(dataset.classes),
        "outputs": dataset.n_outputs,
        "targets": dataset.targets,
        "shift": list(dataset.shift),
        "scale": list(dataset.scale),
        "target_shift": list(dataset.target_shift),
        "target_scale": list(dataset.target_scale),
        "time_edges": list(dataset.edges),
    }


def of_files(dataset: Dataset) -> Tree:
    """The section for silos whose files are like those that the data set was read from: raw tables,
    texts, images.

    Raises:
        ConfigError: preprocessing differs by client, which an agreement cannot express.
    """
    if len(dataset.preprocessing) > 1:
        raise ConfigError(
            "data.fit = client learns a preprocessing for each client, and silos agree on one; "
            "drop it"
        )
    task = of_samples(dataset)
    if dataset.preprocessing:
        task["preprocessing"] = dataset.preprocessing[0].model_dump(mode="json", exclude_none=True)
    if dataset.vocabulary:
        task |= {"vocabulary": dataset.vocabulary, "words": list(dataset.words)}
    if dataset.tokenizer:
        task["tokenizer"] = dataset.tokenizer.sha256
    return task
