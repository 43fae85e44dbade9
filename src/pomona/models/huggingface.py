"""Transformers by the type of their configuration, as ``transformers:vit``: images and texts.

``model.args`` are keys of the type's configuration. The type and these keys describe the network
completely, so ``transformers:FOLDER``, a folder with a ``config.json``, is replaced by them when a
run is prepared, and neither its record nor its models need the folder. Only the classes of the
package itself are built: no code of a folder, no download, no pickle.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib import import_module
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from pomona.core import bounds, files
from pomona.core.errors import ConfigError, suggestion
from pomona.core.files import expanded
from pomona.core.registry import require
from pomona.models.settings import ModelSettings
from pomona.models.weights import Weights

PREFIX = "transformers:"
CONFIG = "config.json"
MOST_BYTES = 2**20  # of a config.json
SIZES = ("image_size", "num_channels", "vocab_size")  # keys that otherwise follow from the data
# Types that were tried. Others may download a part of themselves, as timm_wrapper does, or read
# where a text ends from its ids.
IMAGES = (
    "beit",
    "convnext",
    "convnextv2",
    "deit",
    "dinov2",
    "regnet",
    "resnet",
    "swin",
    "swinv2",
    "vit",
)
TEXTS = (
    "albert",
    "bert",
    "camembert",
    "distilbert",
    "electra",
    "ernie",
    "modernbert",
    "mpnet",
    "roberta",
    "xlm-roberta",
)
# attends to near tokens in some layers, and makes the masks for that itself
LOCAL = "modernbert"


def resolved(settings: ModelSettings) -> ModelSettings:
    """Return the settings with ``transformers:FOLDER`` replaced by the type and the keys of its
    ``config.json``; any others as they are.

    ``model.args`` take precedence over the folder's keys. A folder that is called like a type is
    written as a path: ``transformers:./vit``.

    Raises ConfigError if the folder's file is missing, or not of a known type.
    """
    source = settings.name.removeprefix(PREFIX)
    if not settings.name.startswith(PREFIX) or source in (*IMAGES, *TEXTS):
        return settings
    folder = expanded(source)

    def no_config(reason: str) -> ConfigError:
        return ConfigError(
            f"model.name={settings.name}: {reason}; give a folder with the {CONFIG} of "
            f"transformers, or one of {', '.join((*IMAGES, *TEXTS))}"
        )

    try:
        text = files.text(files.regular(folder / CONFIG, no_config), MOST_BYTES)
    except (OSError, UnicodeDecodeError) as fault:
        raise no_config(str(fault)) from None
    tree = bounds.parse(text, no_config)
    model_type = tree.get("model_type") if isinstance(tree, dict) else None
    if model_type not in (*IMAGES, *TEXTS):
        raise no_config(f"its type is {bounds.plain(repr(model_type), 40)}")
    args = _args(keys(model_type), tree, settings.args)
    if nulls := [key for key, value in args.items() if value is None]:
        raise no_config(f"{nulls[0]} is null, which settings cannot hold; set it in model.args")
    return settings.model_copy(update={"name": f"{PREFIX}{model_type}", "args": args})


def _args(
    defaults: Mapping[str, Any], config: Mapping[str, Any], chosen: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the arguments of a type: those chosen, then those of its file, which may leave the
    usual sizes out; without those that are null by default.
    """
    sizes = {key: defaults[key] for key in SIZES if key in defaults}
    args = sizes | {key: value for key, value in config.items() if key in defaults} | {**chosen}
    return {key: value for key, value in args.items() if value is not None or defaults.get(key)}


def keys(model_type: str) -> dict[str, Any]:
    """Return the keys that a type's configuration adds to those of all types, with defaults."""
    require("transformers", f"model.name={PREFIX}{model_type}")
    common = signature(import_module("transformers").PreTrainedConfig).parameters
    parameters = signature(_configuration(model_type)).parameters.values()
    return {
        p.name: p.default for p in parameters if p.name not in common and p.kind != p.VAR_KEYWORD
    }


def require_padding(settings: ModelSettings, padding: int) -> None:
    """Raise ConfigError for a network of texts whose padding token is not the tokenizer's."""
    model_type = settings.name.removeprefix(PREFIX)
    if not settings.name.startswith(PREFIX) or model_type not in TEXTS:
        return
    pad_token = settings.args.get("pad_token_id", keys(model_type).get("pad_token_id"))
    if (pad_token or 0) != padding:
        raise ConfigError(
            f"model.args.pad_token_id = {pad_token}, but data.tokenizer pads with {padding}; set "
            f"model.args.pad_token_id={padding}, or take the network's own tokenizer"
        )


def _configuration(model_type: str) -> Any:
    mapping = import_module("transformers.models.auto.configuration_auto").CONFIG_MAPPING
    return mapping[model_type]


def build(
    model_type: str,
    args: dict[str, Any],
    input_shape: tuple[int, ...],
    n_outputs: int,
    vocabulary: int,
) -> nn.Module:
    """Build a network that returns logits (b, K) of images (b, C, H, W) or of token ids (b, T).

    Its parameters have the names of the package's class. Attention is computed by plain products
    (``eager``), which can be differentiated twice and for each sample.

    Raises ConfigError for an unknown type, a type for other samples, or unknown keys.
    """
    _require_type(model_type, bool(vocabulary))
    defaults = keys(model_type)
    if unknown := [key for key in args if key not in defaults]:
        raise ConfigError(
            f"model.args.{bounds.plain(unknown[0], 40)}: {suggestion(unknown[0], defaults)}"
        )
    data_args = {"vocab_size": vocabulary} if vocabulary else _of_images(input_shape)
    arguments = {key: value for key, value in data_args.items() if key in defaults} | args
    config = _configuration(model_type)(
        **arguments, num_labels=n_outputs, attn_implementation="eager"
    )
    if vocabulary and config.vocab_size < vocabulary:
        raise ConfigError(
            f"model.args.vocab_size = {config.vocab_size}, but the texts have {vocabulary} "
            "tokens; raise it, or lower data.vocabulary_size"
        )
    module: nn.Module = _class(model_type, config)(config)
    _put_head_last(module)
    if vocabulary:
        mask = partial(_masked, padding=config.pad_token_id or 0, local=model_type == LOCAL)
        module.register_forward_pre_hook(mask)
    module.register_forward_hook(_logits)
    return module


def _require_type(model_type: str, texts: bool) -> None:
    """Raise ConfigError for an unknown type, or one for other samples."""
    if model_type not in (*IMAGES, *TEXTS):
        raise ConfigError(
            f"unknown model.name={PREFIX}{model_type}; {suggestion(model_type, (*IMAGES, *TEXTS))}"
        )
    if (model_type in TEXTS) != texts:
        expected, alternatives = ("texts", IMAGES) if model_type in TEXTS else ("images", TEXTS)
        raise ConfigError(
            f"model.name={PREFIX}{model_type} takes {expected}; take one of "
            f"{', '.join(alternatives)}"
        )


def _class(model_type: str, config: Any) -> Any:
    """Return the package's class for this task; of several the first."""
    models = import_module("transformers.models.auto.modeling_auto")
    mapping = (
        models.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING
        if model_type in IMAGES
        else models.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING
    )
    network_class = mapping[type(config)]
    return network_class[0] if isinstance(network_class, list | tuple) else network_class


def _of_images(shape: tuple[int, ...]) -> dict[str, Any]:
    sides = list(shape[1:])
    return {"num_channels": shape[0], "image_size": sides[0] if len({*sides}) == 1 else sides}


def _put_head_last(module: nn.Module) -> None:
    """Register what follows the encoder after it, where some types register it before."""
    names = [name for name, _ in module.named_children()]
    for name in names[: names.index(str(module.base_model_prefix))]:
        child = getattr(module, name)
        delattr(module, name)
        setattr(module, name, child)


def _masked(
    _: nn.Module, inputs: tuple[Tensor], padding: int, local: bool
) -> tuple[Tensor, Tensor]:
    """Return token ids (b, T), and what is added to the scores of attention (b, 1, T, T): nothing,
    or for padding so much that its weight is 0.

    The package's own masks (b, T) branch on values, which gradients of each sample do not allow;
    ``local`` networks get them nevertheless. Padding is 0 in all data; in the network it is
    ``padding``, and the two ids are exchanged.
    """
    ids = inputs[0]
    is_token = ids != 0
    if padding:
        ids = torch.where(is_token, torch.where(ids == padding, 0, ids), padding)
    if local:
        return ids, is_token.long()
    added = torch.where(is_token, 0.0, torch.finfo(torch.float32).min)[:, None, None]
    return ids, added.expand(-1, -1, ids.shape[1], -1)


def _logits(_: nn.Module, __: object, outputs: Any) -> Tensor:
    logits: Tensor = outputs.logits
    return logits


def renamed(module: nn.Module, weights: Weights) -> Weights:
    """Return a checkpoint's weights by the names in the network.

    The package renames what it loads: its names change from version to version, those in
    checkpoints do not. What it does not know keeps its name.
    """
    tensors = dict(weights.tensors)
    if tensors.keys() <= module.state_dict().keys():
        return weights
    network_class: Any = type(module)
    with _quiet():
        pretrained, loading_info = network_class.from_pretrained(
            None,
            config=module.config,
            state_dict=dict(tensors),
            output_loading_info=True,
            ignore_mismatched_sizes=True,
            local_files_only=True,
        )
    mismatched = {name: torch.empty(shape) for name, shape, _ in loading_info["mismatched_keys"]}
    loaded = {
        k: t for k, t in pretrained.state_dict().items() if k not in {*loading_info["missing_keys"]}
    }
    unknown = {name: tensors[name] for name in loading_info["unexpected_keys"] if name in tensors}
    return replace(weights, tensors=loaded | mismatched | unknown)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the package's remarks and progress bars from the user."""
    log = import_module("transformers.utils.logging")
    level, bars = log.get_verbosity(), log.is_progress_bar_enabled()
    log.set_verbosity(log.CRITICAL)
    log.disable_progress_bar()
    try:
        yield
    finally:
        log.set_verbosity(level)
        if bars:
            log.enable_progress_bar()
