"""A server's metrics for Prometheus. Times are seconds since 1970; an age is ``time() - value``."""

import shutil
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

from pomona_federation.monitoring.prometheus_text import Family, Sample, counters, gauge, gauges
from pomona_federation.monitoring.watched_server import StudyView, moment

QUEUED = ("proposed", "ready", "declined", "aborted")  # states of submitted studies
STATES = ("never started", "starting", "running", "interrupted", "failed", "finished", "killed", *QUEUED)
SILO_STATES = ("not seen yet", "greeted", "present", "absent", "rejected", "revoked")
HEALTHY = {"starting", "running", "finished", *QUEUED}
PREFIX = "pomona_server"


def state_of(standing: dict[str, Any]) -> str:
    """The state as one of ``STATES``; while the server runs another study, the study's state in the queue."""
    row = next((row for row in standing["studies"] if row["study"] == standing["study"]), {"state": "", "hash": ""})
    queued = bool(standing["pid"] and row["hash"] and row["state"] in QUEUED)
    return str(row["state"] if queued else standing["state"]).partition(";")[0]


def families(study: StudyView) -> list[Family]:
    """All metrics of one study, and those of its server."""
    return [*_run(study), *_silos(study), *_machine(study)]


def _run(study: StudyView) -> list[Family]:
    now, record, state = study.standing, study.recorded, state_of(study.standing)
    about = {"federation": now["federation"], "method": now["method"], "version": version("pomona")}
    waiting, committed = now["waiting"] or {}, moment(study.judged.committed)
    return [
        gauge(f"{PREFIX}_info", "What runs here, in labels; the value says nothing.", 1, **about),
        gauge(f"{PREFIX}_up", "Whether a server process holds the folder.", float(now["pid"] is not None)),
        gauges(f"{PREFIX}_state", "1 for the state of the run.", "state", {s: float(s == state) for s in STATES}),
        gauge(f"{PREFIX}_round", "Rounds that are committed.", now["round"]),
        gauge(f"{PREFIX}_rounds", "Rounds of the whole run.", now["rounds"]),
        gauge(f"{PREFIX}_round_seconds", "Seconds of the last round.", now["seconds"]),
        gauge(f"{PREFIX}_last_round_timestamp_seconds", "When the last round was committed.", committed),
        gauge(f"{PREFIX}_waiting_silos", "Silos whose answer is missing now.", len(waiting.get("missing", ()))),
        gauge(f"{PREFIX}_waiting_since_timestamp_seconds", "Since when answers are awaited.", waiting.get("since")),
        counters(
            f"{PREFIX}_bytes_total", "Bytes of models that were sent and received, all rounds.", "direction",
            {"down": record.down, "up": record.up},
        ),
        counters(
            f"{PREFIX}_restarts_total", "Processes that were lost and started again.", "process",
            {name: study.lost.get(name, 0) for name in ("SuperLink", "ServerApp")},
        ),
        Family(
            f"{PREFIX}_metric", "gauge", "Mean over silos of the last evaluation of each kind.",
            tuple(
                Sample(mean, {"metric": record.metric, "model": model, "when": when, "split": split})
                for (model, when, split), mean in record.means.items()
            ),
        ),
    ]  # fmt: skip


def _silos(study: StudyView) -> list[Family]:
    silos, judged = study.standing["silos"], study.judged
    names = [silo["silo"] for silo in silos]
    counted = {state: float(sum(silo["state"] == state for silo in silos)) for state in SILO_STATES}
    uplinks = {"admitted": judged.admitted, "refused": judged.refused}
    return [
        gauges(f"{PREFIX}_silos", "Silos by their state in the last round.", "state", counted),
        gauges(
            f"{PREFIX}_silo_present", "Whether a silo's model was used in the last round.", "silo",
            {silo["silo"]: float(silo["state"] == "present") for silo in silos},
        ),
        gauges(
            f"{PREFIX}_silo_last_seen_timestamp_seconds", "When a silo last said something signed.", "silo",
            {name: moment(study.seen.get(name, "")) for name in names},
        ),
        gauges(
            f"{PREFIX}_silo_samples", "Training samples that a silo has registered.", "silo",
            {silo["silo"]: silo["samples"] for silo in silos},
        ),
        gauges(
            f"{PREFIX}_silo_epsilon_bound", "The most epsilon that a silo's rounds can have cost.", "silo",
            {silo["silo"]: silo["epsilon"] for silo in silos},
        ),
        Family(
            f"{PREFIX}_uplinks_total", "counter", "Uplinks that were checked.",
            tuple(
                Sample(count[name], {"silo": name, "outcome": outcome})
                for outcome, count in uplinks.items()
                for name in names
            ),
        ),
    ]  # fmt: skip


def _machine(study: StudyView) -> list[Family]:
    now, folder = study.standing, study.folder
    free = shutil.disk_usage(folder if folder.exists() else folder.parent).free
    return [
        gauge(f"{PREFIX}_disk_free_bytes", "Room on the disk of the run.", free),
        gauge(f"{PREFIX}_certificate_expiry_timestamp_seconds", "When the certificate ends.", day(now["certificate"])),
    ]


def day(text: str | None) -> float | None:
    """The start of a day in UTC, as seconds since 1970."""
    return None if text is None else datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()
