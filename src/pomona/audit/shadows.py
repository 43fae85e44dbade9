"""Shadow runs: the audited run again, each with other records in its clients' training data.

Each is one file, complete or absent: a kill loses the run that was in progress.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import load, save
from torch import Tensor

from pomona.audit.membership import confidence
from pomona.audit.roc import Mask
from pomona.audit.views import Readable, Recorder, Records
from pomona.config import Config
from pomona.core.errors import ConfigError, StorageError, titled
from pomona.core.files import WEIGHTS, content, publish, writing
from pomona.core.rng import stream
from pomona.lifecycle import recorded_setting
from pomona.metrics.nan_safe import Array
from pomona.models.parameter_space import ParameterSpace
from pomona.partition.natural import FromFile
from pomona.partition.partition import ClientRows, Partition
from pomona.record.result import Result
from pomona.scenario import Scenario
from pomona.simulation import simulate

READINGS = 3  # in which the parties are read: in two rounds, and at the end
FORMAT = 1  # of the files
UNATTACKED = 9999  # number of a run


@dataclass(frozen=True)
class Shadows:
    """Observations of M runs; run 0 is the audited one itself.

    Attributes:
        records: the R records.
        member: (M, R) who was trained on.
        confidences: by party, (M, R): confidence in each record, by what the party receives.
        sites: by party, (N, R): losses under each client's model in run 0.
        messages: by client, (M, D): messages of a client without a model.
        epsilon: (M, N) by each client's ledger; NaN without one, infinite without a bound.
    """

    records: Records
    member: Mask
    confidences: Mapping[str, Array]
    sites: Mapping[str, Array]
    messages: Mapping[int, Array]
    epsilon: Array


@dataclass(frozen=True)
class Plan:
    """The shadow runs of one audit: settings and partition of the run, and the folder of files."""

    config: Config
    partition: Partition
    folder: Path

    @classmethod
    def for_run(cls, result: Result, config: Config, folder: Path) -> "Plan":
        """Return the plan for a recorded run.

        Raises ConfigError for a run that cannot be audited.
        """
        assert result.folder
        if config.method.method().share:
            raise ConfigError(
                f"{config.method.name} sends samples to all clients, so there is nothing to "
                "audit; use another method"
            )
        partition = Partition.load(result.folder / "partition.json")
        clients = zip(result.about["clients"], partition.clients, strict=True)
        for name, train, test in ((name, len(c.train), len(c.test)) for name, c in clients):
            if min(train, test) < 1 or train + test < 3:  # see ``_redraw_client``
                raise ConfigError(
                    f"{titled(name)} has {train} training and {test} test records; an audit "
                    "compares training records with records of the same client that were not "
                    "trained on, and takes one of each, three together"
                )
        lr = recorded_setting(result.folder, "lr") if config.lr == "auto" else config.lr
        if lr is None:
            raise StorageError(
                f"{result.folder} has lr = 'auto' and no checkpoint with the rate that was "
                "chosen; run it again"
            )
        return cls(_without_extras(config, lr), partition, folder)

    def file(self, number: int) -> Path:
        """Return the file of a run; other settings or data have other files."""
        tree = {"format": FORMAT, "config": self.config.tree(), "partition": self.partition.sha256}
        name = sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()[:16]
        return self.folder / f"{number:04d}-{name}.safetensors"

    def missing(self, runs: int) -> list[int]:
        """Return the numbers of missing runs."""
        return [k for k in range(runs) if not self.file(k).exists()]

    def run(self, number: int) -> None:
        """Make one run, and save the observations.

        Raises PomonaError as the run does.
        """
        partition = redraw(self.partition, self.config.seed, number)
        scenario = scenario_with(self.config, partition, self.folder)
        records = Records.build(scenario)
        rounds, torched = reading_rounds(self.config.rounds), scenario.with_settings(engine="torch")
        recorder = Recorder(torched, records, rounds, self._reference_models(torched))
        result = simulate(scenario, None, recorder)
        trained = np.concatenate([c.train for c in partition.clients])
        privacy = result.summary.get("privacy", {"void": "no privacy"})
        epsilons = [None] * len(partition.clients) if privacy["void"] else privacy["clients"]
        tensors = {
            "rows": records.rows,
            "client": records.client,
            "member": np.isin(records.rows, trained),
            "epsilon": np.array([np.inf if e is None else e for e in epsilons]),
            **{f"seen.{p}": _mean(readings) for p, readings in recorder.losses.items()},
            **{f"others.{i}": message for i, message in recorder.messages.items()},
        }
        if number == 0:
            tensors |= {f"sites.{party}": losses for party, losses in recorder.sites.items()}
        self._write(number, tensors)

    def _reference_models(self, scenario: Scenario) -> Tensor | None:
        """Return each client's model (N, d) in a run that is not attacked, for methods whose
        messages are parts of models; made once.
        """
        if not Readable.build(scenario).partial:
            return None
        path = self.file(UNATTACKED)
        if not path.exists():
            partition = redraw(self.partition, self.config.seed, UNATTACKED)
            models = simulate(scenario_with(self.config, partition, self.folder)).models
            space = ParameterSpace(scenario.module())
            rows = [space.row(models[i]) for i in range(self.config.clients)]
            self._write(UNATTACKED, {"rows": torch.stack(rows).numpy()})
        return torch.from_numpy(load(content(path, WEIGHTS))["rows"])

    def _write(self, number: int, tensors: dict[str, Any]) -> None:
        with writing(self.folder):
            publish(self.file(number), [save(tensors)], mode=0o600)

    def read(self, runs: int) -> Shadows:
        """Return the observations of all runs, in order."""
        observations = [load(content(self.file(k), WEIGHTS)) for k in range(runs)]

        def stacked(section: str, sources: list[dict[str, Any]] = observations) -> dict[str, Array]:
            names = set.intersection(*({*source} for source in sources))
            chosen = sorted(name for name in names if name.startswith(f"{section}."))
            return {
                name.partition(".")[2]: np.stack([source[name] for source in sources])
                for name in chosen
            }

        return Shadows(
            Records(observations[0]["rows"], observations[0]["client"]),
            np.stack([observation["member"] for observation in observations]),
            stacked("seen"),
            {party: losses[0] for party, losses in stacked("sites", observations[:1]).items()},
            {int(i): messages for i, messages in stacked("others").items()},
            np.stack([observation["epsilon"] for observation in observations]),
        )


def _without_extras(config: Config, lr: Any) -> Config:
    """Return settings that train the same models, and record nothing else."""
    changed: dict[str, Any] = {"lr": lr, "workers": 1, "track": None}
    if not (config.privacy or config.stop or config.keep != "last"):
        changed["eval_every"] = config.rounds
    return config.model_copy(update=changed)


def reading_rounds(rounds: int) -> frozenset[int]:
    """Return the rounds in which the parties are read, evenly spaced, besides the end."""
    return frozenset(round(rounds * k / READINGS) for k in range(1, READINGS)) - {0, rounds}


def _mean(losses: list[Array]) -> Array:
    """Return the mean confidence (R,) over readings, of those that are there."""
    confidences = confidence(np.stack(losses))
    defined = ~np.isnan(confidences)
    sums = np.where(defined, confidences, 0.0).sum(0)
    return np.asarray(np.where(defined.any(0), sums / np.maximum(defined.sum(0), 1), np.nan))


def redraw(partition: Partition, seed: int, number: int) -> Partition:
    """Return the partition of a run: its own for run 0; else each record is trained on with its
    client's share, independently.

    Validation rows stay. Independence is what the bounds on epsilon need.
    """
    if number == 0:
        return partition
    clients = tuple(
        _redraw_client(rows, stream(seed, "audit membership", number, i))
        for i, rows in enumerate(partition.clients)
    )
    return replace(partition, clients=clients)


def _redraw_client(rows: ClientRows, draw: np.random.Generator) -> ClientRows:
    pool = np.union1d(rows.train, rows.test)
    share = len(rows.train) / len(pool)
    while True:
        inside = draw.random(len(pool)) < share
        if 2 <= inside.sum() < len(pool):  # BatchNorm needs two, and there must be others
            return replace(rows, train=pool[inside], test=pool[~inside])


def scenario_with(config: Config, partition: Partition, folder: Path) -> Scenario:
    """Return the scenario of a run with another partition, given by a file as users give one."""
    with writing(folder):
        path = publish(folder / "partition.json", [partition.text().encode()], mode=0o600)
    return Scenario.prepare(
        config.model_copy(
            update={"partition": FromFile(path=path), "clients": len(partition.clients)}
        )
    )


def run_all(
    plan: Plan, runs: int, report_progress: Callable[[int, int], None] = lambda *_: None
) -> Shadows:
    """Make the missing runs, and return the observations of all.

    ``report_progress``: called with the numbers of existing and of all runs, before each and at the
    end.
    """
    missing = plan.missing(runs)
    for count, number in enumerate(missing):
        report_progress(runs - len(missing) + count, runs)
        plan.run(number)
    report_progress(runs, runs)
    return plan.read(runs)
