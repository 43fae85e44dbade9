"""Metrics of a server and of a silo for Prometheus, and whether all is well there.

Times are seconds since 1970; an age is ``time() - value``.
"""

import math
import socket
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, get_args

from prometheus_client.core import Metric

from pomona.cli.output import echo_stderr
from pomona.core.errors import LockedError, PomonaError
from pomona_federation import status
from pomona_federation.agreement import Federation
from pomona_federation.monitoring.watched_server import StudyView, WatchedServer, moment
from pomona_federation.server.submissions import FINAL_STATES
from pomona_federation.silo import history
from pomona_federation.silo.settings import SiloFile
from pomona_federation.silo.study_decisions import StudyDecisions
from pomona_federation.study import KIT, Study
from pomona_federation.unused_uplinks import ADMITTED, Stage

HEALTHY_STUDY = {"starting", "running", "finished", "proposed", "queued", "declined", "aborted"}
HEALTHY_NODE = {"starting", "connected"}
RUNNING_NODE = {"starting", "connected", "waiting", "restarting"}
HELP = {
    "pomona_server_up": "Whether a server process holds the folder.",
    "pomona_server_completed": "Whether no server is needed: it ended as all studies were over.",
    "pomona_server_state": "1 for the state of the study.",
    "pomona_server_round": "Rounds that are committed.",
    "pomona_server_rounds": "Rounds of the whole study.",
    "pomona_server_last_round_timestamp_seconds": "When the last round was committed.",
    "pomona_server_waiting_silos": "Silos whose answer is missing now.",
    "pomona_server_restarts_total": "Processes that were lost and started again.",
    "pomona_server_metric": "Mean over silos of the last evaluation of each model and stage.",
    "pomona_server_certificate_expiry_timestamp_seconds": "When the certificate ends.",
    "pomona_server_silo_present": "Whether a silo's model was used in the last round.",
    "pomona_server_silo_connected": "Whether a silo's node is connected.",
    "pomona_server_silo_last_seen_timestamp_seconds": "When a silo last sent a signed message.",
    "pomona_server_uplinks_total": "Uplinks that were used, or not, by the stage of the reason.",
    "pomona_silo_up": "Whether a silo process holds the folder.",
    "pomona_silo_state": "1 for the state of the node.",
    "pomona_silo_studies": "Studies that the server has offered, by decision.",
    "pomona_silo_round": "The round of the last visit.",
    "pomona_silo_rounds": "Rounds of the whole study.",
    "pomona_silo_last_visit_timestamp_seconds": "When the last task was done.",
    "pomona_silo_epsilon_spent": "What a study has cost, by its ledger.",
    "pomona_silo_epsilon_accepted": "Limit of silo.toml for one study.",
    "pomona_silo_authority_expiry_timestamp_seconds": "When the authority's certificate ends.",
}
Sample = tuple[str, float | None, dict[str, str]]  # name, value if it is known, labels


class Report(NamedTuple):
    """A snapshot: all metrics, and the states that determine health, by what they describe."""

    metrics: list[Metric]
    states: dict[str, str]
    healthy: bool

    def collect(self) -> list[Metric]:
        """The metrics, for ``prometheus_client``."""
        return self.metrics


def of_server(kit: Path) -> Callable[[], Report]:
    """A function that reports on a server's kit.

    Raises ConfigError for a folder that is not a kit.
    """
    server = WatchedServer(kit)

    def report() -> Report:
        views = {str(view.status["study"] or ""): view for view in server.studies()}
        states = {name: _state(view) for name, view in views.items()}
        samples = (s for name, view in views.items() for s in _study_samples(name, view))
        return Report(_families(samples), states, all(map(healthy, views.values())))

    return report


def of_silo(kit: Path) -> Callable[[], Report]:
    """A function that reports on a silo's kit.

    Raises ConfigError for a folder that is not a kit.
    """
    Federation.read(kit / "federation.toml")

    def report() -> Report:
        row = status.silo(kit)
        states = {row["federation"]: str(row["state"])}
        return Report(_families(_silo_samples(kit, row)), states, row["state"] in HEALTHY_NODE)

    return report


def _families(samples: Iterable[Sample]) -> list[Metric]:
    """Samples of known values, by name."""
    metrics: dict[str, Metric] = {}
    for name, value, labels in samples:
        if value is not None:
            is_counter = name.endswith("_total")
            family = Metric(
                name.removesuffix("_total"), HELP[name], "counter" if is_counter else "gauge"
            )
            metrics.setdefault(name, family).add_sample(name, labels, value)
    return list(metrics.values())


def _state(view: StudyView) -> str:
    """The state of a study without the hint after it."""
    return str(view.status["state"]).partition(";")[0]


def completed(view: StudyView) -> bool:
    """Whether a study is over, and the server has ended because all were."""
    return _state(view) in FINAL_STATES and view.server.completed


def healthy(view: StudyView) -> bool:
    """Whether all is well with a study; it needs a server until it is completed."""
    return _state(view) in HEALTHY_STUDY and (view.status["pid"] is not None or completed(view))


def _study_samples(study: str, view: StudyView) -> Iterator[Sample]:
    row, audited, labels = view.status, view.audited, {"study": study}
    waiting = row["waiting"] or {}
    numbers: dict[str, float | None] = {
        "up": row["pid"] is not None,
        "completed": completed(view),
        "round": row["round"],
        "rounds": row["rounds"],
        "last_round_timestamp_seconds": moment(audited.committed),
        "waiting_silos": len(waiting.get("missing", ())),
        "certificate_expiry_timestamp_seconds": moment(row["certificate"] or ""),
    }
    for name, number in numbers.items():
        yield f"pomona_server_{name}", number, labels
    yield "pomona_server_state", 1, {**labels, "state": _state(view)}
    for process in ("SuperLink", "ServerApp"):
        count = view.server.lost.get(process, 0)
        yield "pomona_server_restarts_total", count, {**labels, "process": process}
    for (model, stage, split), mean in view.recorded.means.items():
        key = {"metric": view.recorded.metric, "model": model, "when": stage, "split": split}
        yield "pomona_server_metric", mean, {**labels, **key}
    for silo in row["silos"]:
        if silo["state"] != "revoked":  # no alert waits for it
            yield from _member_samples(view, silo, labels)


def _member_samples(
    view: StudyView, silo: dict[str, Any], labels: dict[str, str]
) -> Iterator[Sample]:
    name, of_silo = silo["silo"], {**labels, "silo": silo["silo"]}
    yield "pomona_server_silo_connected", silo["connected"], of_silo
    if silo["state"] not in {"declined", "not drawn"}:  # then it was not to take part
        last = moment(view.server.last_messages.get(name, ""))
        yield "pomona_server_silo_present", silo["state"] == "present", of_silo
        yield "pomona_server_silo_last_seen_timestamp_seconds", last, of_silo
    for outcome in (ADMITTED, *get_args(Stage)):  # from 0 on: an increase is an alert
        count = view.audited.uplinks[name, outcome]
        yield "pomona_server_uplinks_total", count, {**of_silo, "outcome": outcome}


def _silo_samples(kit: Path, row: dict[str, Any]) -> Iterator[Sample]:
    yield "pomona_silo_up", row["state"] in RUNNING_NODE, {}
    yield "pomona_silo_state", 1, {"state": str(row["state"])}
    yield "pomona_silo_epsilon_accepted", SiloFile.load(kit / "silo.toml").accept_epsilon, {}
    authority = moment(row["authority"] or "")
    yield "pomona_silo_authority_expiry_timestamp_seconds", authority, {}
    decisions = Counter(study["decision"] for study in row["studies"])
    for decision in ("pending", "accepted", "declined"):
        yield "pomona_silo_studies", decisions[decision], {"decision": decision}
    largest_epsilons: dict[str, float] = {}
    for cost in row["privacy"]:  # a study can have several reservations
        epsilon = math.inf if cost["spent"] is None else cost["spent"]  # None: without noise
        largest_epsilons[cost["study"]] = max(epsilon, largest_epsilons.get(cost["study"], 0.0))
    for title, epsilon in largest_epsilons.items():
        yield "pomona_silo_epsilon_spent", epsilon, {"study": title}
    for name, folders, study in _studies(kit):
        yield from _visit_samples(name, folders, study)


def _studies(kit: Path) -> Iterator[tuple[str, Sequence[Path], Study]]:
    """For each study that a silo takes part in: its name, the folders of its rounds, and itself."""
    federation, decisions = Federation.read(kit / "federation.toml"), StudyDecisions(kit)
    if federation.study:
        yield KIT, [kit / "state"], federation.study
    for study in decisions.all:
        if study.status == "accepted":
            yield study.study.name, decisions.folders(study), study.study


def _visit_samples(name: str, folders: Sequence[Path], study: Study) -> Iterator[Sample]:
    visited = [(folder, visits) for folder in folders if (visits := history.read(folder)[0])]
    labels = {"study": name}
    yield "pomona_silo_rounds", study.rounds, labels
    if visited:
        folder, visits = visited[-1]
        yield "pomona_silo_round", visits[-1].round, labels
        last = (folder / history.FILE).stat().st_mtime
        yield "pomona_silo_last_visit_timestamp_seconds", last, labels


# host names that a browser on this machine, or a tunnel, may use
LOCAL = ["127.0.0.1", "localhost"]
MAX_CONNECTIONS = 32


def listening(port: int) -> socket.socket:
    """A socket on loopback; port 0 picks a free port. Raises LockedError for a port in use."""
    try:
        return socket.create_server(("127.0.0.1", port))
    except OSError as fault:
        raise LockedError(
            f"127.0.0.1:{port}: {fault.strerror}; stop the process that listens there, or give "
            "another --port"
        ) from None


def serve(app: Any, port: int) -> None:
    """Serve an application on a loopback port (0 for any free one) until a signal.

    Raises LockedError.
    """
    import uvicorn

    with listening(port) as listener:
        settings = uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=MAX_CONNECTIONS,
            timeout_keep_alive=5,
            timeout_graceful_shutdown=2,
            lifespan="off",
        )
        echo_stderr(f"http://127.0.0.1:{listener.getsockname()[1]}/metrics and /health")
        uvicorn.Server(settings).run(sockets=[listener])


def metrics_app(report: Callable[[], Report]) -> Any:
    """Build the ASGI application, for GET and HEAD only.

    A request whose Host header names another machine is refused: a page elsewhere could let its own
    name point here. An unreadable file gives a one-line 503, which Prometheus shows as a target
    that is down. ``/health`` answers 200 or 503, with the states as JSON.
    """
    from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.middleware.trustedhost import TrustedHostMiddleware
    from starlette.requests import Request
    from starlette.responses import JSONResponse, PlainTextResponse, Response
    from starlette.routing import Route

    def metrics(_: Request) -> Response:
        try:
            return Response(generate_latest(report()), media_type=CONTENT_TYPE_LATEST)
        except PomonaError as fault:
            return PlainTextResponse(f"{fault.line()}\n", 503)

    def health(_: Request) -> Response:
        try:
            snapshot = report()
        except PomonaError as fault:
            return JSONResponse({"healthy": False, "error": fault.line()}, 503)
        return JSONResponse(
            {"healthy": snapshot.healthy, "states": snapshot.states},
            200 if snapshot.healthy else 503,
        )

    hosts = Middleware(TrustedHostMiddleware, allowed_hosts=LOCAL, www_redirect=False)
    routes = [Route("/metrics", metrics), Route("/health", health)]
    app = Starlette(routes=routes, middleware=[hosts])
    # a redirect would go to whatever the Host header contains after a colon
    app.router.redirect_slashes = False
    return app
