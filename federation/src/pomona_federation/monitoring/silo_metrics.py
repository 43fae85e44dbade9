"""A silo's metrics for Prometheus, from its own folder. Times are seconds since 1970."""

import math
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pomona_federation import status
from pomona_federation.agreement import Federation
from pomona_federation.monitoring.prometheus_text import Family, Sample, counter, gauge, gauges, together
from pomona_federation.monitoring.server_metrics import day
from pomona_federation.silo import history
from pomona_federation.silo.settings import SiloFile
from pomona_federation.silo.studies.known_studies import KnownStudies
from pomona_federation.study import KIT, Study

STATES = ("never started", "starting", "connected", "waiting", "restarting", "stopped", "revoked", "killed")
STATUSES = ("pending", "accepted", "declined")
HEALTHY = {"starting", "connected"}
RUNNING = {"starting", "connected", "waiting", "restarting"}
PREFIX = "pomona_silo"


@dataclass
class WatchedSilo:
    """A silo's kit."""

    kit: Path

    @classmethod
    def of(cls, kit: Path) -> "WatchedSilo":
        """The silo of a kit. Raises ConfigError for a folder that is not a kit."""
        Federation.read(kit / "federation.toml")
        return cls(kit)

    def look(self) -> tuple[dict[str, Any], list[Family]]:
        """The status, as returned by ``status.silo``, and all metrics. Raises StorageError, ConfigError."""
        now, own = status.silo(self.kit), SiloFile.load(self.kit / "silo.toml")
        studies = {title: self._study(homes, study) for title, homes, study in self._studies()}
        return now, [*self._node(now, own), *together("study", studies)]

    def _studies(self) -> Iterator[tuple[str, Sequence[Path], Study]]:
        """For each study that this silo takes part in: its name, the folders of its rounds, and itself."""
        federation, known = Federation.read(self.kit / "federation.toml"), KnownStudies(self.kit)
        if federation.study:
            yield KIT, [self.kit / "state"], federation.study
        for study in known.all:
            if study.status == "accepted":
                yield study.study.name, known.homes(study), study.study

    def _node(self, now: dict[str, Any], own: SiloFile) -> list[Family]:
        about = {"federation": now["federation"], "silo": own.name, "version": version("pomona")}
        counted = Counter(str(known.status) for known in KnownStudies(self.kit).all)
        spent, reserved = _by_study(now["privacy"], "spent", max), _by_study(now["privacy"], "epsilon_at_most", sum)
        most = max((_bound(row["all_on_its_data"]) for row in now["privacy"]), default=None)
        return [
            gauge(f"{PREFIX}_info", "What runs here, in labels; the value says nothing.", 1, **about),
            gauge(f"{PREFIX}_up", "Whether a silo process holds the folder.", float(now["state"] in RUNNING)),
            gauges(
                f"{PREFIX}_state", "1 for the state of the node.", "state",
                {state: float(state == now["state"]) for state in STATES},
            ),
            counter(f"{PREFIX}_restarts_total", "Times that the node was started again.", now["restarts"]),
            gauges(
                f"{PREFIX}_studies", "Studies that the server has offered.", "decision",
                {status: counted[status] for status in STATUSES},
            ),
            gauges(f"{PREFIX}_epsilon_spent", "What a study has cost, by its ledger.", "study", spent),
            gauges(f"{PREFIX}_epsilon_reserved", "The most that a study can cost.", "study", reserved),
            gauge(f"{PREFIX}_epsilon_on_same_data", "The most that all studies on one data can cost together.", most),
            gauge(f"{PREFIX}_epsilon_accepted", "The most that silo.toml accepts for a study.", own.accept_epsilon),
            gauge(f"{PREFIX}_epsilon_accepted_on_same_data", "The most for all on one data.", own.accept_epsilon_total),
            gauge(
                f"{PREFIX}_authority_expiry_timestamp_seconds", "When the authority's certificate ends.",
                day(now["authority"]),
            ),
            gauge(f"{PREFIX}_disk_free_bytes", "Room on the kit's disk.", shutil.disk_usage(self.kit).free),
        ]  # fmt: skip

    def _study(self, homes: Sequence[Path], study: Study) -> list[Family]:
        begun = [(home, visits) for home in homes if (visits := history.read(home)[0])]
        visits = [visit for _, each in begun for visit in each]
        traffic = {"down": sum(v.bytes_down for v in visits), "up": sum(v.bytes_up for v in visits)}
        last = (begun[-1][0] / history.FILE).stat().st_mtime if begun else None
        return [
            gauge(f"{PREFIX}_round", "The round of the last visit.", visits[-1].round if visits else None),
            gauge(f"{PREFIX}_rounds", "Rounds of the whole study.", study.rounds),
            gauge(f"{PREFIX}_last_visit_timestamp_seconds", "When the last task was done.", last),
            Family(
                f"{PREFIX}_bytes_total", "counter", "Bytes of models, all rounds.",
                tuple(Sample(count, {"direction": way}) for way, count in traffic.items()),
            ),
        ]  # fmt: skip


def _by_study(
    rows: Sequence[Mapping[str, Any]], key: str, over: Callable[[Sequence[float]], float]
) -> dict[str, float | None]:
    """A figure for each study over its reservations: worst costs add up, as do the amounts in its ledger."""
    return {
        name: over([_bound(row[key]) for row in rows if row["study"] == name])
        for name in dict.fromkeys(row["study"] for row in rows)
    }


def _bound(epsilon: float | None) -> float:
    """An epsilon; infinite if there is no noise, and so no bound."""
    return math.inf if epsilon is None else epsilon
