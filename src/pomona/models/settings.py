"""Settings of the network: which one, what it starts from, and which part of it is trained."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, JsonValue

from pomona.core.bounds import Sha256
from pomona.core.settings import Settings

Width = Annotated[int, Field(ge=1, le=10**6)]
Weight = Annotated[float, Field(gt=0, le=1e6)]
Glob = Annotated[str, Field(min_length=1, max_length=200)]
Globs = Annotated[tuple[Glob, ...], Field(min_length=1, max_length=1000)]


class LoraSettings(Settings):
    """Low-rank adaptation: a trained change A, B beside frozen layers."""

    rank: int = Field(8, ge=1, le=10**4, description="rank of the change, r")
    alpha: float | None = Field(None, gt=0, description="the change is multiplied by alpha / rank; rank if not set")
    on: Globs = Field(description="globs over the paths of linear layers and convolutions")
    beside: tuple[Glob, ...] = Field(
        ("head",), max_length=1000, description="what is trained whole beside the changes: head, or globs as in train"
    )

    @property
    def scale(self) -> float:
        """The factor s on the change."""
        return 1.0 if self.alpha is None else self.alpha / self.rank


class LoraTraining(Settings):
    """``model.train = {lora = {...}}``."""

    lora: LoraSettings


class ModelSettings(Settings):
    """Settings of the network and its loss."""

    name: str = Field(
        "mlp",
        description="a model of `pomona data list`; torchvision:NAME, timm:NAME or monai:NAME of these packages; or "
        "module:Class or module:function of your own",
    )
    args: dict[str, JsonValue] = Field(
        {}, max_length=100, description="arguments of a network from a package, or of a class of your own"
    )
    hidden: tuple[Width, ...] = Field((64,), max_length=1000, description="widths of the hidden layers of mlp")
    width: Width = Field(
        32,
        description="width of the embedding and hidden layer of fasttext; channels on the first level of unet",
    )
    depth: int = Field(3, ge=1, le=8, description="how often unet halves the sides of images")
    loss: str = Field(
        "auto",
        description="auto: by the kind of targets; or module:function of (outputs (B, K), targets) -> losses (B,)",
    )
    label_smoothing: float = Field(
        0.0, ge=0, lt=1, description="classes: share of each target that is spread over all classes, in all losses told"
    )
    class_weights: Literal["none", "balanced"] | Annotated[tuple[Weight, ...], Field(max_length=10**6)] = Field(
        "none",
        description="what a sample's class, or a label's yes, weighs in the training loss: a list in the order of "
        "classes or labels; balanced: n / (k n_c), or no / yes, by the counts of each client's own training samples; "
        "evaluated losses have no weights",
    )
    init: Path | None = Field(None, description="safetensors file of the weights that training starts from")
    init_sha256: Sha256 | None = Field(
        None, description="hash of the tensors in that file, so that no others are taken; a run writes it down"
    )
    init_skip: tuple[Glob, ...] = Field(
        (), max_length=1000, description="globs over the tensors that start at random all the same"
    )
    train: Literal["all", "head"] | Globs | LoraTraining = Field(
        "all",
        description="what is trained: all; head, the last layer; a list of globs over parameters; or "
        "{lora = {rank = 8, on = [globs over layers]}}; all else is frozen, and stays out of every message",
    )
    cache_features: Literal["auto", "off"] = Field(
        "auto", description="auto: what the frozen part computes of a sample is computed once and kept; off: every time"
    )
