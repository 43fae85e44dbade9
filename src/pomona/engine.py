"""``engine = "auto"``: the engine of a run is chosen once, before its first round, or taken from its record."""

from pathlib import Path

from pomona.federation.callbacks import Callback
from pomona.lifecycle import begun_with
from pomona.objective.native_package import release
from pomona.scenario import Scenario


def on_engine(scenario: Scenario, watcher: Callback, before: Path | None = None) -> Scenario:
    """Return the scenario with its engine: that of the resumed run, else native if supported.

    Args:
        scenario: any.
        watcher: notified of the engine, and why it is not the other.
        before: folder of the run to resume, if any.

    Raises:
        CheckpointError: all checkpoints of that run are damaged.
        ConfigError: that run used the native engine, which is not available here.
    """
    if scenario.config.engine == "native":
        watcher.note(f"engine = native: pomona-native {release()}")
    if scenario.config.engine != "auto":
        return scenario
    if (known := begun_with(before, "engine") if before else None) is not None:
        watcher.note(f"engine = {known}, as {before} was begun with")
        chosen = scenario.on_engine(known)
        chosen.check()
        return chosen
    if why := scenario.not_native():
        watcher.note(f"engine = torch: {why}")
        return scenario.on_engine("torch")
    watcher.note(f"engine = native: pomona-native {release()}")
    return scenario.on_engine("native")
