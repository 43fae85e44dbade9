"""What can be known of a study before any silo's data: its scenario without samples, and checks
that every silo would fail.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
from torch import nn

from pomona.core.errors import ConfigError
from pomona.data.dataset import Dataset, network_shape
from pomona.models import outline
from pomona.models.packages import package
from pomona.partition.partition import ClientRows, Partition
from pomona.scenario import Scenario
from pomona.scenario.checks import require_covered
from pomona.tasks import TASKS
from pomona_federation.agreement import StudyAgreement
from pomona_federation.study import TrainingStudy


def require_possible(terms: StudyAgreement) -> None:
    """Raise ConfigError for a study that no silo could run, whatever its data.

    Of a network only the shapes are computed: its size is for each silo's rules to judge.
    """
    terms.require_computable()
    for run in () if terms.survey else terms.runs:
        module = network_outline(run)
        if isinstance(run.study, TrainingStudy) and run.config.privacy:
            scenario = without_data(run)
            require_covered(run.config, scenario.dataset, scenario.partition, True, module)


def require_other_seed(terms: StudyAgreement, earlier: Iterable[StudyAgreement]) -> None:
    """Require that a study with secure aggregation names its seed, if an earlier one has that which
    it would take by default.

    With one seed, each silo whose rows stay repeats its first change, to the bit, and refuses to
    have it summed over other silos or sample counts.

    Raises ConfigError with a seed that none has.
    """
    seeds = {k: t.study.name for t in earlier if t.least_in_a_sum for k in t.seeds or (0,)}
    if terms.least_in_a_sum and 0 in seeds and not terms.seeds:
        raise ConfigError(
            f"run.seed is 0 unless set, as in {seeds[0]}, whose changes were summed too: silos "
            "repeat their first change, and refuse to sum it if a silo's rows, the silos, or "
            f"max_norm have changed since; set seed = {max(seeds) + 1} in [run]"
        )


def network_outline(terms: StudyAgreement) -> nn.Module | None:
    """A study's network by the shapes of its tensors, none of which is allocated; None for own
    code, whose tensors are known only once they are built.

    Raises ConfigError for a network that does not fit the task.
    """
    model, task = terms.config.model, terms.task
    if ":" in model.name and not package(model.name):
        return None
    shape = network_shape(task.kind, task.input_shape)
    return outline(model, shape, task.outputs, task.vocabulary)


def without_data(terms: StudyAgreement) -> Scenario:
    """Return the scenario of the agreed task without data, which is all that the server knows."""
    task, config = terms.task, terms.config
    x = np.zeros((0, *task.input_shape), task.dtype)
    fields: dict[str, Any] = {
        "shift": task.shift,
        "scale": task.scale,
        "vocabulary": task.vocabulary,
        "target_kind": task.targets,
        "target_shift": task.target_shift,
        "target_scale": task.target_scale,
        "edges": task.time_edges,
    }
    target_task = TASKS[task.targets]
    y = (target_task.stored_target or target_task.no_target)(
        task.outputs, network_shape(task.kind, task.input_shape)
    )[np.newaxis][:0]
    dataset = Dataset(
        terms.federation.name, task.kind, x, y, task.classes, 0, words=task.words, **fields
    )
    no_rows = ClientRows(*(np.empty(0, np.int64) for _ in range(3)))
    partition = Partition((no_rows,) * terms.federation.places, {"fingerprint": ""})
    return Scenario(config, dataset, partition)
