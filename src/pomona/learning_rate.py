"""``lr = "auto"``: the learning rate of a run is searched for, or that which its record says."""

from pathlib import Path

from pomona.core.errors import ConfigError
from pomona.federation.callbacks import Callback
from pomona.lifecycle import rate
from pomona.objective.range_test import Steps, range_test
from pomona.scenario import Scenario


def settled(scenario: Scenario, watcher: Callback, before: Path | None = None) -> Scenario:
    """The scenario with its learning rate as a number: that of the run to go on with, else one that is searched for.

    Args:
        scenario: any.
        watcher: told of the rate, and where it comes from.
        before: folder of the run to go on with, if there is one.

    Raises:
        CheckpointError: all checkpoints of that run are damaged.
        ConfigError: under privacy, where nothing may be tried.
    """
    config = scenario.config
    if config.lr != "auto":
        return scenario
    if config.privacy:
        raise ConfigError("lr = 'auto' looks at training losses, which privacy does not cover; set lr, e.g. lr=0.1")
    known = rate(before) if before else None
    if known is not None:
        watcher.note(f"lr = {known:g}, as {before} was begun with")
        return scenario.at_rate(known)
    steps = Steps(config.batch_size, config.momentum, config.weight_decay, config.seed)
    sizes = [len(c.train) for c in scenario.partition.clients]
    watcher.note("lr = auto: trying learning rates")
    test = range_test(scenario.objective(), scenario.initial(), sizes, steps)
    watcher.note(str(test))
    return scenario.at_rate(test.chosen)
