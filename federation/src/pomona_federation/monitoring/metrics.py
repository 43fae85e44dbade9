"""Metrics of a server and of a silo for Prometheus.

Times are seconds since 1970; an age is ``time() - value``.
"""

import math
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, get_args

from pomona_federation import status
from pomona_federation.agreement import Federation
from pomona_federation.monitoring.prometheus_text import (
    Family,
    Sample,
    counter,
    counters,
    gauge,
    gauges,
    merged,
)
from pomona_federation.monitoring.watched_server import StudyView, moment
from pomona_federation.silo import history
from pomona_federation.silo.settings import SiloFile
from pomona_federation.silo.study_decisions import StudyDecisions
from pomona_federation.study import KIT, Study
from pomona_federation.unused_uplinks import ADMITTED, Stage

QUEUED = ("proposed", "queued", "declined", "aborted")  # states of submitted studies
STUDY_STATES = (
    "never started",
    "starting",
    "running",
    "interrupted",
    "failed",
    "finished",
    "killed",
    *QUEUED,
)
SILO_STATES = ("not seen yet", "greeted", "present", "absent", "rejected", "revoked")
HEALTHY_STUDY = {"starting", "running", "finished", *QUEUED}
SERVER = "pomona_server"


def state_of(row: dict[str, Any]) -> str:
    """The state as one of ``STUDY_STATES``."""
    return str(row["state"]).partition(";")[0]


def families_of_study(study: StudyView) -> list[Family]:
    """All metrics of one study, and those of its server."""
    return [*_run(study), *_silos(study), *_machine(study)]


def _run(study: StudyView) -> list[Family]:
    row, record, state = study.status, study.recorded, state_of(study.status)
    labels = {
        "federation": row["federation"],
        "method": row["method"],
        "version": version("pomona"),
    }
    waiting, committed = row["waiting"] or {}, moment(study.audited.committed)
    return [
        gauge(f"{SERVER}_info", "What runs here, in labels; the value says nothing.", 1, **labels),
        gauge(
            f"{SERVER}_up",
            "Whether a server process holds the folder.",
            float(row["pid"] is not None),
        ),
        gauge(f"{SERVER}_draining", "Whether no round begins.", float(bool(row["drain"]))),
        gauges(
            f"{SERVER}_state",
            "1 for the state of the run.",
            "state",
            {s: float(s == state) for s in STUDY_STATES},
        ),
        gauge(f"{SERVER}_round", "Rounds that are committed.", row["round"]),
        gauge(f"{SERVER}_rounds", "Rounds of the whole run.", row["rounds"]),
        gauge(f"{SERVER}_round_seconds", "Seconds of the last round.", row["seconds"]),
        gauge(
            f"{SERVER}_last_round_timestamp_seconds",
            "When the last round was committed.",
            committed,
        ),
        gauge(
            f"{SERVER}_waiting_silos",
            "Silos whose answer is missing now.",
            len(waiting.get("missing", ())),
        ),
        gauge(
            f"{SERVER}_waiting_since_timestamp_seconds",
            "Since when answers are awaited.",
            waiting.get("since"),
        ),
        counters(
            f"{SERVER}_bytes_total",
            "Bytes of models that were sent and received, all rounds.",
            "direction",
            {"down": record.bytes_down, "up": record.bytes_up},
        ),
        counters(
            f"{SERVER}_restarts_total",
            "Processes that were lost and started again.",
            "process",
            {name: study.lost.get(name, 0) for name in ("SuperLink", "ServerApp")},
        ),
        Family(
            f"{SERVER}_metric",
            "gauge",
            "Mean over silos of the last evaluation of each kind.",
            tuple(
                Sample(
                    mean, {"metric": record.metric, "model": model, "when": stage, "split": split}
                )
                for (model, stage, split), mean in record.means.items()
            ),
        ),
    ]


def _silos(study: StudyView) -> list[Family]:
    silos, audited = study.status["silos"], study.audited
    names = [silo["silo"] for silo in silos]
    counts = {state: float(sum(silo["state"] == state for silo in silos)) for state in SILO_STATES}
    return [
        gauges(f"{SERVER}_silos", "Silos by their state in the last round.", "state", counts),
        gauges(
            f"{SERVER}_silo_present",
            "Whether a silo's model was used in the last round.",
            "silo",
            {silo["silo"]: float(silo["state"] == "present") for silo in silos},
        ),
        gauges(
            f"{SERVER}_silo_last_seen_timestamp_seconds",
            ("When a silo last sent a signed message."),
            "silo",
            {name: moment(study.last_messages.get(name, "")) for name in names},
        ),
        gauges(
            f"{SERVER}_silo_samples",
            "Training samples that a silo has registered.",
            "silo",
            {silo["silo"]: silo["samples"] for silo in silos},
        ),
        gauges(
            f"{SERVER}_silo_epsilon_bound",
            "The most epsilon that a silo's rounds can have cost.",
            "silo",
            {silo["silo"]: silo["epsilon"] for silo in silos},
        ),
        Family(
            f"{SERVER}_uplinks_total",
            "counter",
            "Uplinks that were used, or not, by the stage of the reason.",
            tuple(
                Sample(audited.uplinks[name, outcome], {"silo": name, "outcome": outcome})
                for outcome in (ADMITTED, *get_args(Stage))
                for name in names
            ),
        ),
        gauges(
            f"{SERVER}_silo_connected",
            "Whether a silo's node is connected.",
            "silo",
            {silo["silo"]: float(silo["connected"]) for silo in silos},
        ),
        gauges(
            f"{SERVER}_silo_connection_change_timestamp_seconds",
            "Since when a silo's node is connected, or not.",
            "silo",
            {silo["silo"]: moment(silo["since"] or "") for silo in silos},
        ),
    ]


def _machine(study: StudyView) -> list[Family]:
    row, folder = study.status, study.folder
    free = shutil.disk_usage(folder if folder.exists() else folder.parent).free
    return [
        gauge(f"{SERVER}_disk_free_bytes", "Room on the disk of the run.", free),
        gauge(
            f"{SERVER}_certificate_expiry_timestamp_seconds",
            "When the certificate ends.",
            moment(row["certificate"] or ""),
        ),
    ]


NODE_STATES = (
    "never started",
    "starting",
    "connected",
    "waiting",
    "restarting",
    "stopped",
    "revoked",
    "killed",
)
STATUSES = ("pending", "accepted", "declined")
HEALTHY_NODE = {"starting", "connected"}
RUNNING = {"starting", "connected", "waiting", "restarting"}
SILO = "pomona_silo"


@dataclass
class WatchedSilo:
    """A silo's kit."""

    kit: Path

    def __post_init__(self) -> None:
        """Raise ConfigError for a folder that is not a kit."""
        Federation.read(self.kit / "federation.toml")

    def report(self) -> tuple[dict[str, Any], list[Family]]:
        """The status, as returned by ``status.silo``, and all metrics.

        Raises StorageError, ConfigError.
        """
        row, settings = status.silo(self.kit), SiloFile.load(self.kit / "silo.toml")
        studies = {title: self._study(homes, study) for title, homes, study in self._studies()}
        return row, [*self._node(row, settings), *merged("study", studies)]

    def _studies(self) -> Iterator[tuple[str, Sequence[Path], Study]]:
        """For each study that this silo takes part in: its name, the folders of its rounds, and
        itself.
        """
        federation = Federation.read(self.kit / "federation.toml")
        studies = StudyDecisions(self.kit)
        if federation.study:
            yield KIT, [self.kit / "state"], federation.study
        for study in studies.all:
            if study.status == "accepted":
                yield study.study.name, studies.folders(study), study.study

    def _node(self, node: dict[str, Any], settings: SiloFile) -> list[Family]:
        labels = {
            "federation": node["federation"],
            "silo": settings.name,
            "version": version("pomona"),
        }
        counts = Counter(str(study.status) for study in StudyDecisions(self.kit).all)
        costs = _by_study(node["privacy"], "spent", max)
        reserved = _by_study(node["privacy"], "epsilon_at_most", sum)
        total = max((_bound(row["all_on_its_data"]) for row in node["privacy"]), default=None)
        return [
            gauge(
                f"{SILO}_info", "What runs here, in labels; the value says nothing.", 1, **labels
            ),
            gauge(
                f"{SILO}_up",
                "Whether a silo process holds the folder.",
                float(node["state"] in RUNNING),
            ),
            gauges(
                f"{SILO}_state",
                "1 for the state of the node.",
                "state",
                {state: float(state == node["state"]) for state in NODE_STATES},
            ),
            counter(
                f"{SILO}_restarts_total", "Times that the node was started again.", node["restarts"]
            ),
            gauges(
                f"{SILO}_studies",
                "Studies that the server has offered.",
                "decision",
                {status: counts[status] for status in STATUSES},
            ),
            gauges(
                f"{SILO}_epsilon_spent", "What a study has cost, by its ledger.", "study", costs
            ),
            gauges(f"{SILO}_epsilon_reserved", "Largest cost of a study.", "study", reserved),
            gauge(
                f"{SILO}_epsilon_on_same_data",
                ("Largest cost of all studies on the same data together."),
                total,
            ),
            gauge(
                f"{SILO}_epsilon_accepted",
                "Limit of silo.toml for one study.",
                settings.accept_epsilon,
            ),
            gauge(
                f"{SILO}_epsilon_accepted_on_same_data",
                "The most for all on one data.",
                settings.accept_epsilon_total,
            ),
            gauge(
                f"{SILO}_authority_expiry_timestamp_seconds",
                ("When the authority's certificate ends."),
                moment(node["authority"] or ""),
            ),
            gauge(
                f"{SILO}_disk_free_bytes",
                "Room on the kit's disk.",
                shutil.disk_usage(self.kit).free,
            ),
        ]

    def _study(self, folders: Sequence[Path], study: Study) -> list[Family]:
        visited = [(folder, visits) for folder in folders if (visits := history.read(folder)[0])]
        visits = [visit for _, folder_visits in visited for visit in folder_visits]
        traffic = {"down": sum(v.bytes_down for v in visits), "up": sum(v.bytes_up for v in visits)}
        last = (visited[-1][0] / history.FILE).stat().st_mtime if visited else None
        return [
            gauge(
                f"{SILO}_round",
                "The round of the last visit.",
                visits[-1].round if visits else None,
            ),
            gauge(f"{SILO}_rounds", "Rounds of the whole study.", study.rounds),
            gauge(f"{SILO}_last_visit_timestamp_seconds", "When the last task was done.", last),
            Family(
                f"{SILO}_bytes_total",
                "counter",
                "Bytes of models, all rounds.",
                tuple(
                    Sample(count, {"direction": direction}) for direction, count in traffic.items()
                ),
            ),
        ]


def _by_study(
    rows: Sequence[Mapping[str, Any]], key: str, combine: Callable[[Sequence[float]], float]
) -> dict[str, float | None]:
    """A figure for each study over its reservations: worst costs add up, as do the amounts in its
    ledger.
    """
    return {
        name: combine([_bound(row[key]) for row in rows if row["study"] == name])
        for name in dict.fromkeys(row["study"] for row in rows)
    }


def _bound(epsilon: float | None) -> float:
    """An epsilon; infinite if there is no noise, and so no bound."""
    return math.inf if epsilon is None else epsilon
