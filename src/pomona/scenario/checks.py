"""Checks before round 1 that the data and settings meet the needs of the method and the network."""

from collections.abc import Iterator, Sequence
from itertools import islice

from torch import nn

from pomona.config import Config
from pomona.core.bounds import Targets
from pomona.core.errors import ConfigError, DataError, refuse
from pomona.data.catalogue import CATALOGUE
from pomona.data.dataset import Dataset, network_shape
from pomona.data.settings import ClassNames, DataSettings, EventTimes
from pomona.models import segmentation
from pomona.models.layers import active
from pomona.models.mlp import PROPORTIONAL_HAZARDS
from pomona.objective.private import statistics_problems
from pomona.partition.partition import Partition
from pomona.privacy.settings import WITHOUT_GROUPS, release_problems
from pomona.tasks import TASKS


def require_covered(
    config: Config,
    dataset: Dataset,
    partition: Partition,
    agreed_reader: bool,
    module: nn.Module | None,
) -> None:
    """Raise one ConfigError with all that keeps a run from training privately: its method, network
    and unit of privacy, and releases that are not acknowledged.

    Args:
        config: of the run.
        dataset: its data; without samples where they are not known.
        partition: of the samples.
        agreed_reader: whether the clients have agreed on class names before.
        module: the network; None for one that is not known.
    """
    problems = [*_privacy_problems(config, dataset, partition, agreed_reader)]
    # one layer is reported for all of its type
    problems += islice(statistics_problems(module) if module else (), 1)
    refuse("section privacy", problems, error=ConfigError)


def _privacy_problems(
    config: Config, dataset: Dataset, partition: Partition, agreed_reader: bool
) -> Iterator[str]:
    privacy, card = config.privacy, config.method.method().card.privacy
    assert privacy
    if card.not_private:
        yield card.not_private
    if privacy.unit == "group" and len(dataset.x) and dataset.groups is None:
        yield WITHOUT_GROUPS
    sizes = [len(c.train) for c in partition.clients]
    learnt_classes = _learns_classes(config.data, dataset, agreed_reader)
    learnt = dataset.kind == "image" and dataset.learn is not None
    input_kind = _input_kind(dataset, agreed_reader)
    yield from release_problems(privacy, sizes, card.releases, input_kind, learnt_classes, learnt)
    if _learns_edges(config.data, dataset, agreed_reader):
        yield (
            "data.time_edges must be given: learnt intervals end at event times of training rows, "
            "a release that privacy does not cover"
        )


def _learns_classes(data: DataSettings, dataset: Dataset, agreed_reader: bool) -> bool:
    """Return whether the names of the classes are known from rows alone."""
    in_settings = agreed_reader or (isinstance(data, ClassNames) and data.classes)
    return bool(dataset.classes) and not (in_settings or data.name in CATALOGUE)


def _learns_edges(data: DataSettings, dataset: Dataset, agreed_reader: bool) -> bool:
    """Return whether the ends of the intervals are known from rows alone."""
    in_settings = agreed_reader or (isinstance(data, EventTimes) and data.time_edges)
    return bool(dataset.edges) and not in_settings


def _input_kind(dataset: Dataset, agreed_reader: bool) -> str:
    """Return the kind of inputs: the numbers of a public tokenizer, or of an agreement, say nothing
    about texts.
    """
    public = dataset.tokenizer or (agreed_reader and dataset.kind == "text" and not dataset.words)
    return "tokens" if public else dataset.kind


def require_task(config: Config, targets: Targets) -> None:
    """Raise ConfigError if the method or the network does not support targets of this type."""
    tasks = config.method.method().card.tasks
    if tasks and targets not in tasks:
        raise ConfigError(
            f"method.name: {config.method.name} is for targets of kind {', '.join(tasks)}, but "
            f"the data have {targets}; use another method"
        )
    threshold = config.threshold_target
    if threshold and not TASKS[targets].outcomes:
        raise ConfigError(
            f"{threshold.measure} is for classes and labels, but the data have {targets}; remove it"
        )
    if config.model.name == PROPORTIONAL_HAZARDS and targets != "survival":
        raise ConfigError(
            f"model.name: {PROPORTIONAL_HAZARDS} is for times to an event (data.targets = "
            f"survival), but the data have {targets}; take logistic"
        )


def require_patches(config: Config, dataset: Dataset) -> None:
    """Raise ConfigError for patches larger than the images, a method that compares whole images, or
    missing MONAI.
    """
    if not (patch := config.model.patch):
        return
    if problem := patch.misfit(network_shape(dataset.kind, dataset.x.shape[1:]), dataset.targets):
        raise ConfigError(f"model.patch.size = {list(patch.size)}: {problem}")
    card = config.method.method().card
    taught = next(
        (release for release in card.privacy.releases if release.name == "output-criterion"), None
    )
    if taught and not card.privacy.batchwise:
        raise ConfigError(
            f"model.patch: {config.method.name} compares outputs on training images, but every "
            f"step sees different patches; {f'{taught.remedy}, or ' if taught.remedy else ''}take "
            "another method"
        )
    segmentation.require()


def require_samples(
    config: Config, partition: Partition, names: Sequence[str], module: nn.Module
) -> None:
    """Raise DataError or ConfigError if a client, or a batch, has fewer samples than the run
    needs.
    """
    by_name = list(zip(names, partition.clients, strict=True))
    blind = [name for name, c in by_name if not len(c.validation)]
    if config.method.method().card.needs.validation and blind:
        raise DataError(
            f"{', '.join(blind)}: no validation samples, which {config.method.name} needs to "
            "weigh models; raise data.validation_share, or give them validation rows"
        )
    normed = _first_norm(module)
    lone = [name for name, c in by_name if len(c.train) == 1]
    if normed and config.batch_size == 1:
        raise ConfigError(
            f"batch_size = 1, but {config.model.name} has BatchNorm; set batch_size to 2 or more"
        )
    if normed and lone:
        raise DataError(
            f"{', '.join(lone)}: one training sample, but {config.model.name}'s {normed} "
            "normalises over a batch; give at least 2 samples per client, or take a model "
            "without BatchNorm"
        )


def _first_norm(module: nn.Module) -> str | None:
    """Return the path of the first trained layer with statistics of batches; None without one."""
    for path, layer in active(module):
        if any(buffer.is_floating_point() for buffer in layer.buffers(recurse=False)):
            return path
    return None
