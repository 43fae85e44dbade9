"""Settings of the network: architecture, input, initial weights, and trained part."""

from math import ceil, prod
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, JsonValue

from pomona.core.bounds import Sha256, Targets
from pomona.core.settings import Settings

Width = Annotated[int, Field(ge=1, le=10**6)]
Weight = Annotated[float, Field(gt=0, le=1e6)]
Glob = Annotated[str, Field(min_length=1, max_length=200)]
Globs = Annotated[tuple[Glob, ...], Field(min_length=1, max_length=1000)]
LoraPart = Literal["both", "B"]
# names of what ``bodies`` and ``valve`` add
OWN_BODY, SHARED_BODY = "own_body", "shared_body"
CONDITIONS, EMBEDDINGS, VALVE, HEAD = "valve.conditions", "valve.embeddings", "valve.", "head."
MOST_WINDOWS = 2**18  # of one image


class LoraSettings(Settings):
    """Low-rank adaptation: a trained change A, B in addition to frozen layers.

    Attributes:
        rank: rank of the change, r
        alpha: the change is multiplied by alpha / rank; rank if not set
        on: globs over the paths of linear layers and convolutions
        trained: both, or B: A stays as it was drawn (ffa-lora sets it)
        beside: what is trained whole in addition to the changes: head, or globs as in train
    """

    rank: int = Field(8, ge=1, le=10**4)
    alpha: float | None = Field(None, gt=0)
    on: Globs
    trained: LoraPart = "both"
    beside: tuple[Glob, ...] = Field(("head",), max_length=1000)

    @property
    def scale(self) -> float:
        """Factor s of the change."""
        return 1.0 if self.alpha is None else self.alpha / self.rank


class LoraTraining(Settings):
    """``model.train = {lora = {...}}``."""

    lora: LoraSettings


class PatchSettings(Settings):
    """Patches of images with masks: random patches in training, and windows that cover the image in
    evaluation.

    Attributes:
        size: sides of a patch and of a window in pixels: [H, W], or [D, H, W]
        overlap: share of a window's side that the next window covers as well
        blend: weights of a window's outputs where windows overlap: all equal, or less towards its
            edges
    """

    size: tuple[Width, ...] = Field(min_length=2, max_length=3)
    overlap: float = Field(0.25, ge=0, le=0.75)
    blend: Literal["constant", "gaussian"] = "constant"

    def shape_of(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of a patch of a sample or of its outputs: channels or classes first."""
        return (shape[0], *self.size)

    def misfit(self, input_shape: tuple[int, ...], targets: Targets) -> str | None:
        """Describe why patches do not fit samples (C, *sides), with a remedy, as a phrase; None if
        they do.
        """
        sides = input_shape[1:]
        if targets != "segmentation":
            return f"patches are for masks, the targets are {targets}; take model.patch out"
        if len(self.size) != len(sides):
            return f"images have {len(sides)} sides, {sides}; give as many"
        if any(p > side for p, side in zip(self.size, sides, strict=True)):
            return f"a patch is larger than the images, {sides}; lower it"
        steps = (max(1, int(p * (1 - self.overlap))) for p in self.size)
        windows = prod(
            ceil((a - b) / step) + 1 for a, b, step in zip(sides, self.size, steps, strict=True)
        )
        if windows > MOST_WINDOWS:
            return (
                f"{windows} windows to an image, at most {MOST_WINDOWS}; raise it, or lower "
                "model.patch.overlap"
            )
        return None


def is_lora_factor(name: str, factor: Literal["A", "B"]) -> bool:
    """Return whether a parameter is A, or B, of a change."""
    return name.endswith(f".lora_{factor}.weight")


class ModelSettings(Settings):
    """Settings of the network and its loss.

    Attributes:
        name: a model of `pomona data list`; torchvision:NAME, timm:NAME or monai:NAME of these
            packages; transformers:TYPE or transformers:FOLDER with a config.json; or module:Class
            or module:function of your own
        args: arguments of a network from a package, or of a class of your own
        hidden: widths of the hidden layers of mlp
        width: width of the embedding and hidden layer of fasttext; channels on the first level of
            unet
        depth: how often unet halves the sides of images
        patch: masks: the part of an image that the network sees at a time; the whole image if not
            set
        loss: auto: by the kind of targets; or module:function of (outputs (B, K), targets) ->
            losses (B,)
        label_smoothing: classes: share of each target that is spread over all classes, in every
            reported loss
        class_weights: weight of each class, or of a label's yes, in the training loss: a list;
            balanced: n / (k n_c), or no / yes, from each client's own training samples; evaluation
            losses are not weighted
        init: safetensors file of the weights that training starts from
        init_sha256: hash of that file's tensors; others are refused; a run records it
        init_skip: globs of tensors that start at random
        bodies: 2: two copies of all layers but the last, one of them a client's own, under one last
            layer (fenda and perfcl set it)
        valve: a conditional valve before the last layer, with embeddings of the classes; it is
            trained whatever ``train`` names (gpfl sets it)
        train: what is trained: all; head, the last layer; a list of globs over parameters; or {lora
            = {rank = 8, on = [globs over layers]}}; all else is frozen, and stays out of every
            message
        cache_features: auto: the frozen part's outputs are computed once for each sample and kept;
            off: each time
    """

    name: str = "mlp"
    args: dict[str, JsonValue] = Field({}, max_length=100)
    hidden: tuple[Width, ...] = Field((64,), max_length=1000)
    width: Width = 32
    depth: int = Field(3, ge=1, le=8)
    patch: PatchSettings | None = None
    loss: str = "auto"
    label_smoothing: float = Field(0.0, ge=0, lt=1)
    class_weights: (
        Literal["none", "balanced"] | Annotated[tuple[Weight, ...], Field(max_length=10**6)]
    ) = "none"
    init: Path | None = None
    init_sha256: Sha256 | None = None
    init_skip: tuple[Glob, ...] = Field((), max_length=1000)
    bodies: Literal[1, 2] = 1
    valve: bool = False
    train: Literal["all", "head"] | Globs | LoraTraining = "all"
    cache_features: Literal["auto", "off"] = "auto"

    def idle(self) -> dict[str, str]:
        """Sizes are of some networks, and of those of one's own; only weights are skipped."""
        sizes = {"hidden": ("mlp",), "width": ("fasttext", "unet"), "depth": ("unet",)}
        skips = {} if self.init or self.init_sha256 else {"init_skip": "only with model.init"}
        return skips | {
            key: f"only for model.name = {' or '.join(names)}"
            for key, names in sizes.items()
            if self.name not in names and ":" not in self.name
        }
