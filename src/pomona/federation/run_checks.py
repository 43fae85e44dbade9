"""Checks before a run: impossible combinations, and warnings."""

from collections.abc import Iterator

import torch

from pomona.config import Config
from pomona.core.bounds import FIRST_ROUND
from pomona.core.errors import ConfigError
from pomona.core.notes import Note
from pomona.core.training_settings import require_steps
from pomona.federation.round_plan import cohort_size, round_of
from pomona.federation.secure_sum import require_sums
from pomona.federation.trackers import require_tracker
from pomona.models import MODELS
from pomona.models.compatibility import final_activation
from pomona.models.packages import package
from pomona.models.settings import is_lora_factor
from pomona.objective.engine import load_engine
from pomona.scenario import Scenario

MAX_CHECKED = 100  # approximate maximum number of rounds for which a method's warning is evaluated
BF16 = ("amx_bf16", "avx512_bf16", "bf16")  # the last is ARM's


def require_possible(scenario: Scenario) -> None:
    """Raise ConfigError for a method, settings and a device that are incompatible."""
    config, method = scenario.config, scenario.config.method.method()
    if config.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device = 'cuda', but PyTorch sees no GPU; set device=cpu")
    require_tracker(config.track)
    require_sums(config, len(scenario.partition.clients))
    _require_cluster(config)
    _require_validation(scenario)
    require_steps(config.method.name, method.card.needs.steps, config.momentum, config.optimizer)


def _require_validation(scenario: Scenario) -> None:
    """Raise ConfigError for choices on validation samples where there are none."""
    config, threshold = scenario.config, scenario.config.threshold_target
    keys = {"stop.patience": config.stop, "keep": config.keep != "last"}
    key = next((key for key, applies in keys.items() if applies), threshold and threshold.measure)
    if key and not any(len(c.validation) for c in scenario.partition.clients):
        raise ConfigError(
            f"{key} needs validation samples, but no client has any; raise data.validation_share, "
            "or give them validation rows"
        )


def _require_cluster(config: Config) -> None:
    """Raise ConfigError for a cluster where privacy or a GPU keeps clients on one machine."""
    if config.cluster and (config.privacy or config.device != "cpu"):
        obstacle = "privacy, whose keys stay on one machine" if config.privacy else "a GPU"
        raise ConfigError(f"a cluster cannot run with {obstacle}; remove cluster")


def cautions(scenario: Scenario) -> list[Note]:
    """Return the notes for the user before the run starts."""
    lines = [
        _slow(scenario),
        scenario.choice.reason,
        *_unused(scenario.config),
        _unaveraged(scenario),
        _plain(scenario),
        _frozen(scenario),
        _activated(scenario),
    ]
    return [*scenario.notes, *(Note(line, "settings") for line in lines if line)]


def caution(config: Config) -> str | None:
    """Return the method's warning for the first round, that of the largest rate, the last, or one
    between.
    """
    warn, last = config.method.method().caution, config.rounds
    fastest, between = min(config.lr_warmup_rounds + 1, last), max(1, last // MAX_CHECKED)
    for number in (1, fastest, last, *range(1, last, between)):
        members = len(config.membership.members(config.clients, number))
        if warning := warn(round_of(config, number), members):
            return warning
    return None


def bf16_instructions() -> list[str]:
    """Return the processor's instructions for bf16 arithmetic, by PyTorch's names; without any it
    is emulated.
    """
    # Older supported versions of PyTorch do not have the function.
    capabilities: dict[str, bool] = getattr(torch.cpu, "get_capabilities", dict)()
    return [name for name in BF16 if capabilities.get(name)]


def _slow(scenario: Scenario) -> str:
    """Warn if bf16 costs time instead of saving it."""
    config = scenario.config
    if config.precision != "bf16" or config.device != "cpu":
        return ""
    by_engine = config.engine != "torch" and not scenario.why_torch()
    # an engine detects its own instructions: the native one's are none on ARM
    if by_engine and load_engine(scenario.engine).emulates_bf16:
        return f"the {scenario.engine} engine emulates bf16 here: bf16 is slower than fp32"
    if not by_engine and not bf16_instructions():
        return "this processor has no bf16 arithmetic (AMX, AVX512-BF16): bf16 is slower than fp32"
    return ""


def _unused(config: Config) -> Iterator[str]:
    """Note what would act after the last round only, or with more clients. It is no error: a run is
    tried with few rounds, and goes on with more.
    """
    rounds, stop = config.rounds, config.stop
    fields = type(config.method).model_fields
    first_rounds = [key for key, field in fields.items() if FIRST_ROUND in field.metadata]
    quiet_until = {f"method.{key}": getattr(config.method, key) - 1 for key in first_rounds} | {
        "the last of lr_milestones": max(config.lr_milestones, default=0),
        "lr_schedule": (config.lr_schedule == "cosine") * (config.lr_warmup_rounds + 1),
        "stop": max(stop.patience * config.eval_every, stop.after) if stop else 0,
    }
    for key, number in quiet_until.items():
        if number >= rounds:
            yield f"{key} acts after round {number}, and the run ends with round {rounds}"
    if config.participation < 1 < config.clients == cohort_size(config, config.clients):
        yield f"participation = {config.participation:g} of {config.clients} clients is all of them"


def _unaveraged(scenario: Scenario) -> str:
    """Note averaged statistics that no model has, or that none can use."""
    config, initial = scenario.config, scenario.initial
    if config.buffers == "average" and not initial.statistics.numel():
        return f"buffers = average: no BatchNorm layer of {config.model.name} is trained"
    if config.buffers == "average" and not config.method.method().server.global_model:
        return f"buffers = average: {config.method.name} has no global model; clients keep theirs"
    return ""


def _plain(scenario: Scenario) -> str:
    """Warn if a method is about some layers, and none of them is trained."""
    config, initial = scenario.config, scenario.initial
    requirements = config.method.method().card.needs
    low_rank = any(is_lora_factor(e.name, "B") for e in initial.parameters)
    if requirements.without_norms and not initial.norms:
        equivalent, layer = requirements.without_norms, "normalisation layer"
    elif requirements.without_lora and not low_rank:
        equivalent, layer = requirements.without_lora, "low-rank change (model.train.lora)"
    else:
        return ""
    return (
        f"{config.method.name} is {equivalent} here: no {layer} of {config.model.name} is trained"
    )


def _activated(scenario: Scenario) -> str:
    """Warn if a network of one's own ends in an activation that its loss applies by itself."""
    model, shape = scenario.config.model, scenario.input_shape
    if model.loss != "auto" or model.name in MODELS or package(model.name):
        return ""
    sides = model.patch.shape_of(shape) if model.patch else shape
    dtype = torch.int64 if scenario.dataset.vocabulary else torch.float32
    activation = final_activation(scenario.module(), torch.zeros((1, *sides), dtype=dtype))
    if not activation:
        return ""
    name, path = activation
    reason = "the loss takes raw outputs (logits), and applies softmax or sigmoid itself"
    if scenario.task.standardised:
        reason = "targets are standardised, and lie on both sides of 0"
    layer = f", layer {path}" if path else ""
    effect = "it changes nothing" if name == "log-softmax" else "training is slow or stops early"
    return f"{model.name} ends in {name}{layer}: {reason}, so {effect}; remove it"


def _frozen(scenario: Scenario) -> str:
    """Describe how the frozen part of a partly trained network is handled."""
    if not scenario.network.frozen:
        return ""
    model, trained = scenario.config.model, scenario.initial().numel()
    frequency = "once for each sample" if scenario.network.keeps_features else "in every step"
    changing = "augment" if scenario.config.augment else "model.patch" if model.patch else ""
    frequency += f", since {changing} changes the samples" if changing else ""
    random_weights = model.init is None and (model.name in MODELS or package(model.name))
    warning = "; it has random values, since model.init names no weights" if random_weights else ""
    return f"{trained:,} parameters are trained; the frozen part is computed {frequency}{warning}"
