"""The networks, by name: plain ``nn.Module``s, imported and built only when asked for.

A family is a function ``(settings, input_shape, n_outputs, vocabulary) -> nn.Module`` and a line in ``MODELS``; a
user's own is named as ``module:function``. PyTorch is imported by the families, not here: settings and listings stay
light.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from pomona.core.registry import Registry
from pomona.core.settings import Settings

if TYPE_CHECKING:
    from torch import Tensor, nn

Targets = Literal["classes", "regression", "multilabel"]
Width = Annotated[int, Field(ge=1, le=10**6)]

MODELS = Registry(
    "model",
    {
        "cnn": "pomona.models.convolutional:cnn",
        "fasttext": "pomona.models.fasttext:fasttext",
        "fomo-cnn": "pomona.models.convolutional:fomo_cnn",
        "lenet": "pomona.models.convolutional:lenet",
        "logistic": "pomona.models.mlp:logistic",
        "mcmahan-cnn": "pomona.models.convolutional:mcmahan_cnn",
        "mlp": "pomona.models.mlp:mlp",
        "resnet18": "pomona.models.resnet:resnet18",
        "small": "pomona.models.convolutional:small",
        "vgg11": "pomona.models.vgg:vgg11",
    },
)

_LOSSES: dict[Targets, str] = {
    "classes": "pomona.models.losses:cross_entropy",
    "regression": "pomona.models.losses:squared_error",
    "multilabel": "pomona.models.losses:binary_cross_entropy",
}


class ModelSettings(Settings):
    """Settings of the network and its loss."""

    name: str = Field("mlp", description="a model of `pomona data list`, or module:function of your own")
    hidden: tuple[Width, ...] = Field((64,), max_length=1000, description="widths of the hidden layers of mlp")
    width: Width = Field(32, description="width of the embedding and of the hidden layer of fasttext")
    loss: str = Field(
        "auto",
        description="auto: by the kind of targets; or module:function of (outputs (B, K), targets) -> losses (B,)",
    )


def build(
    settings: ModelSettings, input_shape: tuple[int, ...], n_outputs: int, vocabulary: int = 0, seed: int = 0
) -> "nn.Module":
    """Build a network, its weights drawn from ``seed``; PyTorch's global generator is left as it was.

    Args:
        settings: which network.
        input_shape: of one sample: (C, H, W) of an image, (F,) of a table row, (T,) of a text.
        n_outputs: K, the width of the output.
        vocabulary: number of tokens including padding; 0 unless the samples are texts.
        seed: of the initial weights.

    Raises:
        ConfigError: an unknown model, or one that does not fit the samples, the outputs or the machine's memory.
    """
    import torch

    from pomona.models.compatibility import called, require_room, verified

    family = MODELS.resolve(settings.name)
    if settings.name in MODELS:
        require_room(outline(settings, input_shape, n_outputs, vocabulary), settings.name)
    with torch.random.fork_rng(devices=[]):
        # Not torch.manual_seed, which would also reseed every accelerator.
        torch.default_generator.manual_seed(seed)
        module = called(family, settings.name, settings, input_shape, n_outputs, vocabulary)
        return verified(module, settings.name, input_shape, n_outputs, vocabulary)


def outline(settings: ModelSettings, input_shape: tuple[int, ...], n_outputs: int, vocabulary: int = 0) -> "nn.Module":
    """A registered network's tensors by name and shape, on the meta device: neither memory is taken nor own code run.

    Arguments as for ``build``. Raises ConfigError for a name that is not registered, or what does not fit the samples.
    """
    import torch

    family = MODELS.registered(settings.name)
    with torch.device("meta"):
        module: nn.Module = family(settings, input_shape, n_outputs, vocabulary)
    return module


def criterion(settings: ModelSettings, targets: Targets) -> "Callable[[Tensor, Tensor], Tensor]":
    """The loss per sample: (outputs (B, K), targets (B,) int64 or (B, K) float) -> (B,).

    Raises ConfigError for a name that is neither ``auto`` nor an importable ``module:function``.
    """
    loss: Callable[[Tensor, Tensor], Tensor] = Registry("loss", {"auto": _LOSSES[targets]}).resolve(settings.loss)
    return loss


def layers(module: "nn.Module") -> list[tuple[str, list[str]]]:
    """The layers of a network from input to output: (path, names of its parameters); each parameter is in one layer.

    Layers and names stand in order of registration, so that each layer is a slice of the parameters in a row. A layer
    is a submodule that owns parameters directly; a module with the attribute ``parameter_blocks``, a tuple of paths,
    has everything below one of these paths counted as one layer instead.
    """
    blocks: tuple[str, ...] = getattr(module, "parameter_blocks", ())
    owned: dict[str, list[str]] = {}
    for name, _ in module.named_parameters():
        path = name.rpartition(".")[0]
        layer = next((block for block in blocks if f"{path}.".startswith(f"{block}.")), path)
        owned.setdefault(layer, []).append(name)
    return list(owned.items())
