"""``/metrics`` and ``/health``: the format's grammar, the numbers of a real run, and access
control.
"""

import json
import re
import shutil
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from prometheus_client import CONTENT_TYPE_LATEST
from prometheus_client.parser import text_string_to_metric_families

import monitored
from command_line import command
from monitored import HOSTILE, copied, running
from pomona.core.errors import LockedError
from pomona.storage.lock import locked
from pomona_federation import certificates, status
from pomona_federation.audit_log import Audit, complete_lines
from pomona_federation.json_store import write_json
from pomona_federation.monitoring import metrics
from pomona_federation.monitoring.metrics import HELP, listening, metrics_app, of_server, of_silo
from pomona_federation.monitoring.watched_server import AuditedServer, moment
from pomona_federation.server.consents import CONSENTS, ConsentsFile, SignedDecision
from pomona_federation.server.registry_admin import dismiss
from pomona_federation.supervision.process_logs import Followed
from pomona_federation.supervision.status_files import LIVE, NODE, LiveStatus, NodeStatus
from pomona_federation.unused_uplinks import UnusedUplink
from test_preflight import kit

pytestmark = pytest.mark.long

EXAMPLES = Path(__file__).parents[2] / "examples" / "monitoring"


def samples_in(text):
    """Values by name and labels; each name and labels once."""
    rows = [s for family in text_string_to_metric_families(text) for s in family.samples]
    samples = {(s.name, frozenset(s.labels.items())): s.value for s in rows}
    assert len(samples) == len(rows)
    return samples


def get(samples, name, **labels):
    """The value of the single sample with these labels."""
    (value,) = [
        v for (n, pairs), v in samples.items() if n == name and frozenset(labels.items()) <= pairs
    ]
    return value


def reply(report, path="/metrics", base="http://127.0.0.1:9464", **headers):
    return monitored.app_response(metrics_app(report), path, base, **headers)


def test_a_servers_metrics_are_those_of_its_files(ran):
    answer = reply(of_server(ran / "server"))
    assert (answer.status_code, answer.headers["content-type"]) == (200, CONTENT_TYPE_LATEST)
    samples = samples_in(answer.text)
    text = (ran / "server" / "run" / "events.jsonl").read_text()
    events = [json.loads(line) for line in text.splitlines()]
    audit = list(complete_lines(ran / "server" / "run" / "audit.jsonl"))
    assert get(samples, "pomona_server_round") == get(samples, "pomona_server_rounds") == 3
    assert get(samples, "pomona_server_state", state="finished") == 1
    assert get(samples, "pomona_server_up") == 0
    assert get(samples, "pomona_server_uplinks_total", silo="silo-1", outcome="admission") == 1
    assert get(samples, "pomona_server_uplinks_total", silo="silo-1", outcome="admitted") == 2
    (committed,) = [e["time"] for e in audit if e["event"] == "round"][-1:]
    commit_time = datetime.fromisoformat(committed).timestamp()
    last_round = get(samples, "pomona_server_last_round_timestamp_seconds")
    assert last_round == pytest.approx(commit_time, abs=1e-3)
    received = [e["time"] for e in audit if e["event"] == "received" and e["silo"] == "silo-0"][-1]
    seen = get(samples, "pomona_server_silo_last_seen_timestamp_seconds", silo="silo-0")
    assert seen == pytest.approx(datetime.fromisoformat(received).timestamp(), abs=1e-3)
    last = [e for e in events if e["event"] == "evaluation" and e["split"] == "test"][-1]
    mean = sum(last["value"]) / len(last["value"])
    score = get(samples, "pomona_server_metric", split="test", metric="accuracy")
    assert score == pytest.approx(mean)
    expiry = certificates.expires(ran / "server" / "certs" / "server.crt")
    assert expiry
    day = get(samples, "pomona_server_certificate_expiry_timestamp_seconds")
    assert 0 <= expiry.timestamp() - day < 86400


def test_for_whom_a_run_waits_and_what_was_restarted(ran, tmp_path):
    server = copied(ran / "server", tmp_path / "server")
    with Audit(server / "run" / "audit.jsonl") as audit:
        audit.write("lost", process="SuperLink", round=2, failures=1)
    with running(server, {"silo-1": "is not connected"}):
        samples = samples_in(reply(of_server(server)).text)
    assert get(samples, "pomona_server_up") == get(samples, "pomona_server_waiting_silos") == 1
    assert get(samples, "pomona_server_state", state="running") == 1
    assert get(samples, "pomona_server_restarts_total", process="SuperLink") == 1
    assert get(samples, "pomona_server_restarts_total", process="ServerApp") == 0


def test_files_that_grow_are_read_on_and_those_rewritten_anew(ran, tmp_path):
    server = copied(ran / "server", tmp_path / "server")
    path = server / "run" / "audit.jsonl"
    content = path.read_bytes()
    lines = content.splitlines(keepends=True)
    (_, second, third) = [
        k for k, line in enumerate(lines) if b'"admitted", "silo": "silo-0"' in line
    ]
    report = of_server(server)

    def admitted():
        samples = samples_in(reply(report).text)
        return get(samples, "pomona_server_uplinks_total", silo="silo-0", outcome="admitted")

    path.write_bytes(b"".join(lines[:third]) + lines[third][:-20])  # a line that is being written
    assert admitted() == 2
    path.write_bytes(content)
    assert admitted() == 3
    path.write_bytes(b"".join(lines[:second]))  # a restored file that is shorter
    assert admitted() == 1


INCOMPLETE = b'{"event": "round"}\n', b'{"event": "start", "clients": 7}\n'
DAMAGED = (b"", b"\xff\n", b"[]\n", b"{" * 10**5 + b"\n", *INCOMPLETE)


@pytest.mark.parametrize("content", DAMAGED)
@pytest.mark.parametrize(
    "name", ["events.jsonl", "audit.jsonl", "live.json", "status.json", "roster.json"]
)
def test_a_damaged_file_is_left_out_or_said_in_one_line(name, content, ran, tmp_path):
    server = copied(ran / "server", tmp_path / "server")
    (server / "run" / name).write_bytes(content)
    answer = reply(of_server(server))
    if name.endswith("jsonl"):
        assert answer.status_code == 200
    elif answer.status_code != 200:  # unknown keys alone are no damage
        assert (answer.status_code, answer.text.count("\n")) == (503, 1)
        assert reply(of_server(server), "/health").status_code == 503


def test_health_is_200_only_where_all_is_well(ran, tmp_path):
    server = copied(ran / "server", tmp_path / "server")
    report = of_server(server)
    answer = reply(report, "/health")
    assert (answer.status_code, answer.json()["healthy"]) == (200, True)
    with running(server, {}):
        assert reply(report, "/health").status_code == 200
    killed = reply(report, "/health")
    assert (killed.status_code, killed.json()["states"]) == (503, {"kit": "killed"})


@pytest.mark.parametrize("completed", [True, False])
@pytest.mark.parametrize("state", ["proposed", "queued", "running", "failed", "finished"])
def test_a_study_that_is_not_over_needs_a_server(state, completed):
    log = AuditedServer(completed=completed)
    views = [SimpleNamespace(status={"state": state, "pid": pid}, server=log) for pid in (None, 1)]
    assert [*map(metrics.healthy, views)] == [state == "finished" and completed, state != "failed"]
    assert [*map(metrics.completed, views)] == [completed and state in {"finished", "failed"}] * 2


def test_a_server_that_died_with_nothing_to_run_is_not_well(ran, tmp_path):
    server = copied(ran / "server", tmp_path / "server")
    for event, health in (("started", 503), ("stopped", 200), ("started", 503)):
        with Audit(server / "run" / "audit.jsonl") as audit:
            audit.write(event, code=0)
        assert reply(of_server(server), "/health").status_code == health
        samples = samples_in(reply(of_server(server)).text)
        assert get(samples, "pomona_server_completed") == (health == 200)


def test_no_alert_waits_for_a_silo_that_is_not_to_take_part(ran, tmp_path):
    server = copied(ran / "server", tmp_path / "server")
    dismiss(server, "silo-0")
    refusal = SignedDecision(accepted=False, signature="00", time=0.0)
    write_json(server / "run" / CONSENTS, ConsentsFile(silos={"silo-1": refusal}))
    undrawn = UnusedUplink(silo="silo-2", round=3, reason="not-drawn")
    write_json(server / "run" / LIVE, LiveStatus(round=3, unused={"silo-2": undrawn}))
    states = [silo["state"] for silo in status.server(server)["silos"]]
    assert states == ["revoked", "declined", "not drawn"]
    samples = samples_in(reply(of_server(server)).text)
    names = {name.removeprefix("pomona_server_silo_") for name, _ in samples}
    assert not names & {"present", "last_seen_timestamp_seconds"}
    assert {dict(pairs).get("silo") for _, pairs in samples} == {None, "silo-1", "silo-2"}


def test_a_silos_metrics(tmp_path):
    folder, _ = kit(tmp_path)
    with locked(folder / "state"):
        write_json(folder / "state" / "node" / NODE, NodeStatus(state="connected"))
        samples = samples_in(reply(of_silo(folder)).text)
        assert reply(of_silo(folder), "/health").status_code == 200
    assert get(samples, "pomona_silo_up") == 1
    assert get(samples, "pomona_silo_state", state="connected") == 1
    assert reply(of_silo(folder), "/health").status_code == 503  # killed


def test_epsilon_is_the_silos_account(world):
    pytest.importorskip("opacus")
    names = ["unlimited-epsilon", "sample-counts", "metrics"]
    privacy = {"noise_multiplier": 1.0, "max_grad_norm": 1.0, "delta": 1e-5, "acknowledge": names}
    federation = world.federation(
        method="fedavg", run={"privacy": privacy, "rounds": 2}, share_scores=False
    )
    silo = federation.kits / "silo-0"
    path = silo / "silo.toml"
    path.write_text(f"accept_epsilon = 1e6\n{path.read_text()}")
    federation.run()
    from pomona.privacy.noise import KeyStore
    from pomona_federation.agreement import Federation

    settings = Federation.load(federation.server / "federation.toml").kit_terms.config.privacy
    samples = samples_in(reply(of_silo(silo)).text)
    epsilon = KeyStore.open(silo / "state" / "private" / "dp", 0, settings).epsilon()
    assert get(samples, "pomona_silo_epsilon_spent") == pytest.approx(epsilon)
    assert get(samples, "pomona_silo_epsilon_accepted") == 1e6


def test_uplinks_are_counted_by_study_and_stage(tmp_path):
    with Audit(tmp_path / "audit.jsonl") as audit:
        south = UnusedUplink(silo="south", round=1, reason="signature")
        audit.write("unused", **south.fields)
        audit.write("start", study="second")
        audit.write("admitted", silo="north", round=1, norms={"core": 2.0}, limits={"core": None})
        stranger = UnusedUplink(silo="node 7", round=0, reason="not-a-member")
        for _ in range(3):  # its node is asked again
            audit.write("unused", **stranger.fields)
        audit.write("lost", process=[HOSTILE])
    server = Followed(tmp_path / "audit.jsonl", AuditedServer).read_new()
    kit_study, second = server.studies["kit"], server.studies["second"]
    assert kit_study.uplinks == {("south", "answer"): 1}
    assert second.uplinks == {("north", "admitted"): 1, ("node 7", "connection"): 1}


def test_a_look_writes_nothing_and_takes_no_lock(ran, tmp_path):
    server = copied(ran / "server", tmp_path / "server")

    def files():
        return {p: (p.stat().st_mtime_ns, p.stat().st_size) for p in server.rglob("*")}

    files_before = files()
    assert reply(of_server(server)).status_code == 200
    assert files() == files_before


def test_a_page_elsewhere_cannot_ask_under_a_name_of_its_own(ran):
    report = of_server(ran / "server")
    assert reply(report, base="http://rebound.example:9464").status_code == 400
    assert reply(report, base="http://localhost:9999").status_code == 200  # a tunnel
    assert monitored.app_response(metrics_app(report), "/metrics", method="POST").status_code == 405
    assert reply(report, "/").status_code == 404


def test_only_loopback_is_listened_on_and_a_port_that_is_taken_is_one_line(tmp_path, capsys):
    with listening(0) as listener:
        host, port = listener.getsockname()
        assert host == "127.0.0.1"
        with pytest.raises(LockedError, match="another --port"):
            listening(port)
    assert command("server", "metrics", "--folder", str(tmp_path)) == 2
    assert capsys.readouterr().err.count("\n") == 1


# The examples.


def expressions():
    """All queries in the examples."""
    rules = yaml.safe_load((EXAMPLES / "alerts.yml").read_text())
    queries = [rule["expr"] for group in rules["groups"] for rule in group["rules"]]
    board = json.loads((EXAMPLES / "grafana.json").read_text())
    return queries + [
        target["expr"] for panel in board["panels"] for target in panel.get("targets", ())
    ]


def test_the_examples_use_every_metric_and_no_other():
    assert set(re.findall(r"pomona_(?:server|silo)_\w+", " ".join(expressions()))) == set(HELP)


def test_the_rules_pass_prometheus_own_check():
    tool = shutil.which("promtool")
    if not tool:
        pytest.skip("needs promtool")
    for subject, name in (("rules", "alerts.yml"), ("config", "prometheus.yml")):
        process = subprocess.run(
            [tool, "check", subject, EXAMPLES / name], capture_output=True, text=True, check=False
        )
        assert process.returncode == 0, process.stdout + process.stderr


def test_a_day_is_one_in_utc():
    assert moment("2026-11-23") == datetime(2026, 11, 23, tzinfo=UTC).timestamp()
    assert moment("") is None
