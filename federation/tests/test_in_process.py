"""The unchanged Flower apps over an in-process grid, against the simulator: equal models, bit by
bit.
"""

import json
import subprocess
import sys
import tomllib
from dataclasses import replace
from importlib.util import find_spec
from math import inf, nan

import numpy as np
import pytest
import tomli_w

import federation_in_process
from federation_in_process import APPLE, PRIVATE, deployed, equal
from pomona.core.errors import StorageError
from pomona.core.membership import Membership
from pomona.methods import METHODS
from pomona.record.run_folder import load
from pomona.storage.run_status import read_status
from pomona_federation.agreement import Federation
from pomona_federation.audit_log import Audit, complete_lines, verify
from pomona_federation.flower_apps import LONGEST, ending_after, time_for
from pomona_federation.messages.message_bus import unpacked
from pomona_federation.rehearsal.inputs import federation_file, of_study
from pomona_federation.rehearsal.inputs import scenario as rehearsed
from pomona_federation.server.flower_bus import FlowerBus
from pomona_federation.server.handshake import Handshake
from pomona_federation.server.member_registry import MemberRegistry
from pomona_federation.server.server_app import ServerStatusFile
from pomona_federation.silo.settings import SiloFile
from pomona_federation.silo.silo_scenario import own_scenario
from representatives import drawn

pytestmark = pytest.mark.long

FURTHER = [*(name for name in METHODS if name not in ("apple", "fedavg-data")), "fedrep+adam"]
FURTHER += [{**APPLE, "core_step": "local"}, {"name": "pgfed", "mixing": "client", "budget": 1}]


@pytest.mark.parametrize("method", [APPLE, *drawn(FURTHER, 2)], ids=str)
def test_deployed_models_are_those_of_the_simulation(method, world):
    federation = world.federation(method if isinstance(method, dict) else {"name": method})
    federation.run()
    assert equal(deployed(federation), world.simulated(federation))
    assert read_status(federation.server / "run").state == "finished"


@pytest.mark.parametrize("name", drawn(["ffa-lora", "fedsa-lora", "feddpa", "floco"]))
def test_low_rank_changes_and_corners_are_deployed_as_they_are_simulated(name, world):
    train = {"lora": {"rank": 2, "on": ["fc1"]}}
    model = {"name": "mlp", "hidden": [8], "train": train}
    method = {"name": name, **({"region_round": 1} if name == "floco" else {})}
    federation = world.federation(method, run={"model": model})
    federation.run()
    assert equal(deployed(federation), world.simulated(federation))
    assert federation.simulation.model.train.lora.trained == ("B" if name == "ffa-lora" else "both")


def test_a_study_that_names_no_engine_has_pytorchs_whatever_is_installed(world, monkeypatch):
    """The simulation that it equals is one of PyTorch's: see ``settings``."""

    def unnamed(*arguments, **options):
        return federation_file(*arguments, **options).replace('engine = "torch"\n', "")

    monkeypatch.setattr(federation_in_process, "federation_file", unnamed)
    federation = world.federation({"name": "fedavg"})
    assert "engine" not in federation.toml.read_text()
    assert federation.simulation.engine == "torch"
    settings = Federation.load(federation.toml)
    silo = SiloFile.load(federation.kits / federation.names[0] / "silo.toml")
    assert of_study(federation.toml)[0]["engine"] == "torch"
    assert rehearsed(settings, {}).config.engine == "torch"
    assert own_scenario(silo, settings.kit_terms, 0).config.engine == "torch"
    federation.run()
    assert equal(deployed(federation), world.simulated(federation))
    assert load(federation.server / "run").about["engine"] == "torch"


@pytest.mark.skipif(
    find_spec("pomona_native") is None, reason="pomona-native is not installed (make native)"
)
@pytest.mark.parametrize("method", drawn(["fedavg", APPLE]), ids=str)
def test_so_they_are_with_the_native_engine(method, world):
    federation = world.federation(
        method if isinstance(method, dict) else {"name": method},
        run={"engine": "native", "momentum": 0.5},
    )
    federation.run()
    assert equal(deployed(federation), world.simulated(federation))
    assert load(federation.server / "run").about["engine"] == "native"


def test_a_silo_that_hangs_ends_and_says_where():
    code = (
        "import time\nfrom pomona_federation.flower_apps import ending_after\nwith "
        "ending_after(30): pass\n"
    )
    code += "with ending_after(0.5):\n    time.sleep(600)\n"
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert process.returncode == 1
    assert "Timeout" in process.stderr
    assert 'File "<string>", line 5' in process.stderr


@pytest.mark.parametrize(
    ("ttl", "seconds"),
    [
        (60.0, 90.0),
        (0.0, 30.0),
        (-1e9, 30.0),
        (1e300, LONGEST + 30),
        (inf, 30.0),
        (-inf, 30.0),
        (nan, 30.0),
    ],
)
def test_whatever_time_a_server_states_a_silo_has_some(ttl, seconds):
    with ending_after(limit := time_for(ttl)):
        assert limit == seconds


def three_digits(values):
    """Losses as disclosed by a silo."""
    return tuple(float(f"{v:.3g}") for v in values)


def test_figures_are_those_of_the_simulation_but_rounded(world):
    federation = world.federation()
    federation.run()
    world.simulated(federation)
    ours, simulation = load(federation.server / "run"), load(world.folder / "simulation")
    shares = [
        {key: tuple(round(v, 4) for v in getattr(e, key)) for key in ("accuracy", "value")}
        for e in simulation.evaluations
    ]
    assert ours.evaluations == [
        replace(e, loss=three_digits(e.loss), **rounded)
        for e, rounded in zip(simulation.evaluations, shares, strict=True)
    ]
    assert [r.loss for r in ours.rounds] == [three_digits(r.loss) for r in simulation.rounds]
    assert all(not r.info for r in ours.rounds)  # what silos learn of each other stays with them


def test_a_silo_sends_no_scores_where_none_are_agreed_on(world):
    federation = world.federation(share_scores=False)
    federation.run()
    record = load(federation.server / "run")
    assert record.evaluations == []
    assert all(loss is None for row in record.rounds for loss in row.loss)
    lines = (federation.kits / "silo-0" / "state" / "rounds.jsonl").read_text().splitlines()
    rounds = [json.loads(line) for line in lines]
    assert [bool(r["scores"] and r["loss"]) for r in rounds if r["trained"]] == [True] * 3


BANKED = [{"name": name} for name in ("apple", "auto", "fedfomo", "fedfomo-ma", "mocha")]
BANKED += [{**APPLE, "core_radius": 1.0}, {"name": "pgfed", "mixing": "client"}]
BANKED += [{"name": "fedfomo", "candidates": "everybody", "budget": 1}]
"""Methods whose clients are sent rows of other clients."""


@pytest.mark.parametrize("method", [APPLE, *drawn(BANKED), *drawn(FURTHER)], ids=str)
def test_a_newcomer_joins_and_a_member_leaves(method, world):
    """silo-2 comes with round 2, silo-0 is gone from round 3 on."""
    method = method if isinstance(method, dict) else {"name": method}
    federation = world.federation(method, run={"rounds": 4})
    late = federation.grid.folders.pop(12)
    round_ = ServerStatusFile.on_round_end

    def rounds(news, row, evaluations):
        round_(news, row, evaluations)
        if row.round == 1:
            federation.grid.folders[12] = late
        if row.round == 2:
            MemberRegistry(federation.server / "run", Federation.load(federation.toml)).revoke(
                "silo-0"
            )

    world.patch.setattr(ServerStatusFile, "on_round_end", rounds)
    federation.run()
    expected = world.simulated(federation, membership=Membership(joins={2: 2}, leaves={0: 2}))
    ours = deployed(federation)
    # Whoever has left keeps the model of its last round, as the simulation does.
    assert all(equal({n: ours[n]}, {n: expected[n]}) for n in ("silo-1", "silo-2", "silo-0"))


def test_bf16_halves_the_bytes_of_models(world):
    federation = world.federation()
    federation.run()
    federation_bf16 = type(world)(world.folder / "narrow", world.patch)
    federation_bf16.folder.mkdir()
    narrow = federation_bf16.federation(wire="bf16")
    narrow.run()

    def models(f):
        """Bytes, less the mask of whose core is there: a byte a silo, whatever the wire."""
        enclosed = [data for m in f.grid.sent for data in unpacked(m.content).enclosed.values()]
        return [len(data) for data in enclosed if len(data) > 3]

    assert sum(models(narrow)) * 2 == sum(models(federation)) > 0
    for n, model in deployed(narrow).items():
        for k, t in model.items():
            wide = deployed(federation)[n][k]
            assert not t.equal(wide) or not t.numel()
            assert (t - wide).abs().max() < 0.05  # three rounds of 2^-9 relative


def test_rows_that_a_silo_holds_are_not_sent_again(world):
    """With one client a round, the cores of the others stand still: only what changed since
    travels.
    """
    federation = world.federation(
        {"name": "apple"}, run={"participation": 0.34, "rounds": 6, "eval_every": 6}
    )
    federation.run()
    assert equal(deployed(federation), world.simulated(federation))
    tasks = [
        (m.metadata.dst_node_id, json.loads((letter := unpacked(m.content)).body), letter)
        for m in federation.grid.sent
    ]
    hashes_held = {}
    for node, body, message in tasks:
        if "downlink" in body:
            hashes = {d for o in body["downlink"].values() for d in o["rows"].values()}
            assert set(message.enclosed) == hashes - hashes_held.get(node, set())
            hashes_held[node] = hashes
    assert any("downlink" in b and not m.enclosed for _, b, m in tasks)


def test_without_keys_on_loopback(world):
    federation = world.federation(insecure=True)
    federation.run()
    assert equal(deployed(federation), world.simulated(federation))


def test_audit_logs_are_whole_and_name_everybody(world):
    federation = world.federation()
    federation.run()
    log = federation.server / "run" / "audit.jsonl"
    assert verify(log) is None
    events = list(complete_lines(log))
    assert {e["silo"] for e in events if e["event"] == "received"} == set(federation.names)
    assert verify(federation.kits / "silo-0" / "state" / "audit.jsonl") is None


def test_no_key_and_no_path_in_what_is_written_or_sent(world):
    federation = world.federation()
    federation.run()
    secrets = [
        line
        for n in federation.names
        for line in (federation.kits / n / "keys" / "silo.key").read_text().splitlines()[1:-1]
    ]
    written = [
        p
        for k in ("server/run", *(f"{n}/state" for n in federation.names))
        for p in (federation.kits / k).rglob("*")
    ]
    contents = [p.read_bytes() for p in written if p.is_file()]
    bodies = [unpacked(m.content).body.encode() for m in federation.grid.sent]
    assert not any(s.encode() in c for s in secrets for c in [*contents, *bodies])
    assert not any(str(world.folder).encode() in body for body in bodies)


def test_state_is_for_its_owner_alone(world):
    federation = world.federation()
    federation.run()
    for folder in ("server/run", "silo-0/state"):
        for path in (federation.kits / folder).rglob("*"):
            assert path.stat().st_mode & 0o077 == 0, path


def edited(path, **keys):
    """Set keys of a silo.toml."""
    path.write_text(tomli_w.dumps(tomllib.loads(path.read_text()) | keys))


def test_privacy_in_silos_is_that_of_the_simulation(world):
    """The same noise by a test's seed; each silo has a ledger of its own, and the server none."""
    federation = world.federation("fedavg", run={"privacy": PRIVATE}, insecure=True)
    federation.run()
    assert equal(deployed(federation), world.simulated(federation))
    for name in federation.names:
        assert list((federation.kits / name / "state" / "private" / "dp").glob("*/ledger.jsonl"))
    assert not list((federation.server / "run").rglob("ledger.jsonl"))


def test_a_silo_takes_no_part_in_what_costs_more_than_it_accepts(world):
    federation = world.federation(
        "fedavg", run={"privacy": {**PRIVATE, "seed": None}}, wait=0.5, quorum=2
    )
    edited(federation.kits / "silo-1" / "silo.toml", accept_epsilon=0.01)
    federation.run()
    assert all(r.cohort == (0, 2) for r in load(federation.server / "run").rounds)
    logged_by_kind(federation, "PRIVACY", "accept_epsilon")


@pytest.mark.parametrize("sums", [{}, {"secure_aggregation": {"max_norm": 20.0, "minimum": 2}}])
def test_a_silo_sends_no_more_than_it_allows(sums, world):
    """With secure aggregation it is out before the sum, which would wait for it."""
    federation = world.federation("fedavg", run=sums, quorum=2)
    edited(federation.kits / "silo-1" / "silo.toml", max_upload_mb=0.001)
    federation.run()
    assert all(r.cohort == (0, 2) for r in load(federation.server / "run").rounds)
    logged_by_kind(federation, "CONFIG", "max_upload_mb")


def logged_by_kind(federation, kind, setting):
    """silo-1's own log has the setting by which it refused, and the server only the kind."""
    audit_log = (federation.server / "run" / "audit.jsonl").read_text()
    assert f"{kind}; the silo's log has the rest" in audit_log
    assert setting not in audit_log
    assert setting in (federation.kits / "silo-1" / "state" / "logs" / "app.log").read_text()


@pytest.mark.parametrize("method", ["fedavg", "apfl"])
def test_a_federation_stops_early_where_its_simulation_does(method, world):
    stop = {"patience": 1, "min_gain": 1.0}
    federation = world.federation(
        {"name": method}, run={"rounds": 6, "stop": stop, "metric": "accuracy"}
    )
    federation.run()
    assert equal(deployed(federation), world.simulated(federation))
    ours, simulation = load(federation.server / "run"), load(world.folder / "simulation")
    assert len(ours.rounds) == len(simulation.rounds) == (3 if method == "fedavg" else 2)
    assert ours.summary["stopped"].startswith(f"stopped after round {len(ours.rounds)}: ")
    assert read_status(federation.server / "run").state == "finished"


@pytest.mark.parametrize("method", ["fedavg", "apfl"])
def test_a_silo_keeps_its_own_best_model_as_a_simulated_client_does(method, world):
    run = {"rounds": 4, "keep": "own_best", "metric": "accuracy", "lr": 2.0}
    federation = world.federation({"name": method}, run=run)
    federation.run()
    assert equal(deployed(federation), world.simulated(federation))


def test_rounds_without_training_count_for_a_silos_own_best_model(world):
    """A received model of a round in which the silo only evaluates may be the best so far."""
    run = {"clients": 5, "model": "logistic", "rounds": 3, "lr": 0.02, "participation": 0.6}
    federation = world.federation("fedavg-ft", run={**run, "keep": "own_best"})
    federation.run()
    evaluated = federation.kits / "silo-2" / "state" / "checkpoints" / "evaluated"
    assert len(list(evaluated.iterdir())) == 3  # it never trains
    assert equal(deployed(federation), world.simulated(federation))


def test_survival_models_are_those_of_the_simulation(world):
    """Times to an event, with the ends of their intervals from the agreement."""
    draw = np.random.Generator(np.random.Philox(3))
    x = draw.normal(size=(150, 3))
    y = np.column_stack([draw.exponential(90 * np.exp(-x[:, 0])) + 0.1, draw.integers(0, 2, 150)])
    np.savez(world.folder / "times.npz", x=x.astype("float32"), y=y)
    data = {
        "name": "arrays",
        "path": world.folder / "times.npz",
        "targets": "survival",
        "intervals": 4,
    }
    federation = world.federation(
        {"name": "fedrep"}, run={"data": data, "partition": {"name": "iid"}}
    )
    task = tomllib.loads(federation.toml.read_text())["task"]
    assert len(task["time_edges"]) == task["outputs"] == 4
    federation.run()
    assert equal(deployed(federation), world.simulated(federation))


def test_a_node_that_is_known_is_not_asked_again_after_a_restart(world):
    """But for one that is away. Flower numbers nodes up to 2^64."""
    federation = world.federation()
    grid, settings = federation.grid, Federation.load(federation.toml)
    grid.folders = {2**64 - 1 - i: folder for i, folder in enumerate(grid.folders.values())}
    run = federation.server / "run"
    run.mkdir(exist_ok=True)

    def shaken():
        with Audit(run / "audit.jsonl") as audit:
            handshake = Handshake(
                settings.kit_terms, "ab", MemberRegistry(run, settings), FlowerBus(grid), audit
            )
            messages_before = len(grid.sent)
            handshake.send_hellos()
            for ticket, got in handshake.bus.fetch(handshake.tickets).items():
                handshake.receive(ticket, got)
            assert handshake.turned_away == {}
        return handshake.nodes, len(grid.sent) - messages_before

    nodes = {i: 2**64 - 1 - i for i in range(3)}
    assert shaken() == (nodes, 3)
    assert shaken() == (nodes, 0)
    grid.gone = {nodes[0]}
    assert shaken() == ({1: nodes[1], 2: nodes[2]}, 0)
    (run / "nodes.json").write_text('{"nodes": {"0": "x"}}')
    with pytest.raises(StorageError, match="silos are asked again"):
        shaken()
