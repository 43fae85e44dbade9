"""The networks, by name: plain ``nn.Module``s, imported and built only on request.

A family is a function ``(settings, input_shape, n_outputs, vocabulary) -> nn.Module`` and a line in
``MODELS``; a user's own is given as ``module:function``, or ``module:Class`` for a class of
networks. PyTorch is imported by the families, not here, to keep settings and listings light.
"""

from typing import TYPE_CHECKING

from pomona.core.registry import Registry
from pomona.models.settings import LoraTraining, ModelSettings

if TYPE_CHECKING:
    from torch import nn

    from pomona.models.weights import Weights

__all__ = ["MODELS", "ModelSettings", "build", "outline"]

MODELS = Registry(
    "model",
    {
        "cnn": "pomona.models.convolutional:cnn",
        "efficientnet-lite0": "pomona.models.efficientnet_lite:efficientnet_lite0",
        "fasttext": "pomona.models.mlp:fasttext",
        "fomo-cnn": "pomona.models.convolutional:fomo_cnn",
        "lenet": "pomona.models.convolutional:lenet",
        "lenet5": "pomona.models.convolutional:lenet5",
        "logistic": "pomona.models.mlp:logistic",
        "mcmahan-cnn": "pomona.models.convolutional:mcmahan_cnn",
        "mlp": "pomona.models.mlp:mlp",
        "proportional-hazards": "pomona.models.mlp:proportional_hazards",
        "resnet18": "pomona.models.convolutional:resnet18",
        "small": "pomona.models.convolutional:small",
        "unet": "pomona.models.segmentation:unet",
        "vgg11": "pomona.models.convolutional:vgg11",
    },
)


def build(
    settings: ModelSettings,
    input_shape: tuple[int, ...],
    n_outputs: int,
    vocabulary: int = 0,
    seed: int = 0,
    output_shape: tuple[int, ...] | None = None,
) -> "nn.Module":
    """Build a network with weights from ``model.init`` or drawn from ``seed``, and freeze what is
    not trained.

    PyTorch's global generator is left unchanged.

    Args:
        settings: the network, and the patch size if it receives patches of samples.
        input_shape: of one sample: (C, H, W) of an image, (C, D, H, W) of a volume, (F,) of a
            table's row, (T,) of a text.
        n_outputs: K, the width of the output.
        vocabulary: number of tokens including padding; 0 unless the samples are texts.
        seed: of the initial weights.
        output_shape: of a sample's outputs, K first; (K,) if not given.

    Raises:
        ConfigError: an unknown model, or one that does not fit the samples, the outputs, the
            weights in ``model.init`` or the machine's memory; or no part of it is trained.
    """
    import torch

    from pomona.models import weights
    from pomona.models.compatibility import require_room, verified
    from pomona.models.packages import package

    if settings.name in MODELS or package(settings.name):
        require_room(outline(settings, input_shape, n_outputs, vocabulary), settings.name)
    initial_weights = weights.initial(settings)
    with torch.random.fork_rng(devices=[]):
        # Not torch.manual_seed, which would also reseed every accelerator.
        torch.default_generator.manual_seed(seed)
        module = _build(settings, initial_weights, input_shape, n_outputs, vocabulary)
        shapes = input_shape, output_shape or (n_outputs,)
        network_input, answer = map(settings.patch.shape_of, shapes) if settings.patch else shapes
        return verified(module, settings.name, network_input, answer, vocabulary)


def outline(
    settings: ModelSettings, input_shape: tuple[int, ...], n_outputs: int, vocabulary: int = 0
) -> "nn.Module":
    """Build a network on the meta device, for its tensors' names and shapes; takes no memory and
    runs no own code.

    Arguments as for ``build``; the weights in ``model.init`` are not read. Raises ConfigError for a
    name that is neither registered nor a package's, or a network that does not fit the samples.
    """
    import torch

    from pomona.models.packages import package

    if not package(settings.name):
        MODELS.registered(settings.name)
    with torch.device("meta"):
        return _build(settings, None, input_shape, n_outputs, vocabulary)


def _build(
    settings: ModelSettings,
    initial_weights: "Weights | None",
    input_shape: tuple[int, ...],
    n_outputs: int,
    vocabulary: int,
) -> "nn.Module":
    """Build the network, with its weights if given, and freeze what is not trained."""
    from torch import nn

    from pomona.models import layers, lora
    from pomona.models.around_last_layer import TwoBodies, Valved

    if settings.patch:
        input_shape = settings.patch.shape_of(input_shape)
    sizes = input_shape, n_outputs, vocabulary
    module = _whole(settings, initial_weights, *sizes)
    if not isinstance(module, nn.Module):
        return module  # type: ignore[return-value]  # ``verified`` refuses it
    if settings.bodies == 2:
        module = TwoBodies(module, _whole(settings, initial_weights, *sizes), settings.name)  # type: ignore[arg-type]
    if isinstance(settings.train, LoraTraining):
        change = settings.train.lora
        lora.insert(module, change.rank, change.scale, change.on, change.trained)
        layers.unfreeze(module, change.beside, "model.train.lora.beside")
    elif settings.train != "all":
        module.requires_grad_(False)
        globs = (settings.train,) if isinstance(settings.train, str) else settings.train
        layers.unfreeze(module, globs, "model.train")
    return Valved(module, settings.name) if settings.valve else module


def _whole(
    settings: ModelSettings,
    initial_weights: "Weights | None",
    input_shape: tuple[int, ...],
    n_outputs: int,
    vocabulary: int,
) -> object:
    """Build a network by its name, with its weights if given; what own code returns may be none."""
    from torch import nn

    from pomona.models import huggingface, packages, weights
    from pomona.models.compatibility import call_family, construction

    sizes = input_shape, n_outputs, vocabulary
    with construction(settings.name):
        if packages.package(settings.name):
            module: object = packages.build(settings.name, settings.args, *sizes)
        else:
            family = MODELS.resolve(settings.name)
            if isinstance(family, type) and issubclass(family, nn.Module):
                module = family(**settings.args)
            else:
                module = call_family(family, settings.name, settings, *sizes)
    if initial_weights and isinstance(module, nn.Module):
        if settings.name.startswith(huggingface.PREFIX):
            initial_weights = huggingface.renamed(module, initial_weights)
        weights.load(module, initial_weights, settings.init_skip)
    return module
