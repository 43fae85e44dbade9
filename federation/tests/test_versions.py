"""Two versions in one federation: compatibility, error messages, and upgrades during a study."""

import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from federation_in_process import APPLE, audited, deployed, equal, settings, stopped_after
from pomona.core.errors import CheckpointError, ProtocolError
from pomona.scenario import Scenario
from pomona.storage.run_status import read_status
from pomona_federation import status, versions
from pomona_federation.messages.message_bodies import Hello, Refusal, Task
from pomona_federation.messages.message_bus import Message, packed, unpacked
from pomona_federation.rehearsal.run import local_federation
from pomona_federation.versions import Versions, installed, require_begun, require_understood

pytestmark = pytest.mark.long

SILO = "silo-1"
OLD = Versions(pomona="0.1.0", protocol=3, flower="1.41.0")


@pytest.mark.parametrize(
    ("pomona", "protocol", "flower", "works"),
    [
        ("0.1.0", 3, "1.41.0", True),
        ("0.1.7", 3, "1.41.2", True),
        ("0.1.0rc1", 3, "1.41.0", True),
        ("0.2.0", 3, "1.41.0", False),
        ("1.1.0", 3, "1.41.0", False),
        ("0.10.0", 3, "1.41.0", False),
        ("0.1.0", 4, "1.41.0", False),
        ("0.1.0", 3, "1.42.0", False),
        ("", 3, "1.41.0", False),
    ],
)
def test_who_works_with_whom(pomona, protocol, flower, works):
    newer = Versions(pomona=pomona, protocol=protocol, flower=flower)
    assert OLD.works_with(newer) is works
    assert newer.works_with(OLD) is works


@contextmanager
def with_pomona(monkeypatch, pomona):
    """Simulate another installed version of Pomona."""
    real = versions.version
    with monkeypatch.context() as patch:
        patch.setattr(versions, "version", lambda name: pomona if name == "pomona" else real(name))
        installed.cache_clear()
        yield
    installed.cache_clear()


@pytest.fixture(autouse=True)
def _forgotten():
    yield
    installed.cache_clear()


def test_a_message_says_its_version_and_a_refusal_is_read_whatever_that_is(monkeypatch):
    with with_pomona(monkeypatch, "0.2.0"):
        theirs = installed()
        hello = packed(Message.of(Hello(agreement="a" * 64, run="1", nonce="2")))
        refusal = packed(Message.of(Refusal(silo="north", fault="no")))
    assert unpacked(hello).versions == theirs
    with pytest.raises(ProtocolError, match=r"sender has Pomona 0\.2\.0 .*receiver Pomona 0\.1\.0"):
        unpacked(hello).read(Hello, Task)
    assert unpacked(refusal).read(Hello, Refusal).fault == "no"
    with pytest.raises(ProtocolError, match="does not say its version"):
        require_understood(None)


def test_another_versions_body_is_not_looked_at(monkeypatch):
    with with_pomona(monkeypatch, "0.2.0"):
        message = Message("hello", "what a later version makes of it")
    with pytest.raises(ProtocolError, match="sender has"):
        message.read(Hello, Task)


def upgraded(federation, monkeypatch, node, pomona):
    """Run one silo's apps with another version of Pomona."""
    served = federation.grid._served

    def serve(message):
        if message.metadata.dst_node_id != node:
            return served(message)
        with with_pomona(monkeypatch, pomona):
            return served(message)

    federation.grid._served = serve


def test_a_silo_of_another_line_is_absent_and_both_sides_name_both_versions(world, monkeypatch):
    federation = world.federation(wait=1.0)
    upgraded(federation, monkeypatch, 11, "0.2.0")
    federation.run()
    assert deployed(federation).keys() == {"silo-0", "silo-2"}
    server_status = status.server(federation.server)
    (row,) = [row for row in server_status["silos"] if row["silo"] == SILO]
    assert row["version"] == "0.2.0"
    assert any(f"{SILO} has Pomona 0.2.0" in line for line in server_status["notes"])
    details = [line["detail"] for line in audited(federation.server / "run", "unused")]
    message = f"the sender has {installed()}, the receiver Pomona 0.2.0"
    assert any(message in detail for detail in details)
    with with_pomona(monkeypatch, "0.2.0"):
        silo = status.silo(federation.kits / SILO)
    assert "the server has Pomona 0.1.0" in silo["version_warning"]
    assert silo["server_version"].startswith("Pomona 0.1.0 ")


def test_the_last_number_may_change_in_the_middle_of_a_study(world, monkeypatch):
    """Server and one silo are upgraded after round 1; the models are those of an undisturbed
    run.
    """
    federation = world.federation()
    stopped_after(federation, monkeypatch, 1)
    with with_pomona(monkeypatch, "0.1.5"):
        federation.run()
    upgraded(federation, monkeypatch, 11, "0.1.9")
    assert equal(deployed(federation), world.simulated(federation))
    assert {row["version"] for row in status.server(federation.server)["silos"]} == {"0.1.5"}
    assert not status.silo(federation.kits / SILO)["version_warning"]


def test_a_study_is_finished_by_the_line_that_it_was_begun_with(world, monkeypatch):
    federation = world.federation(wait=1.0)
    stopped_after(federation, monkeypatch, 1)
    with (
        with_pomona(monkeypatch, "0.2.0"),
        pytest.raises(CheckpointError, match=r"run was begun by Pomona 0\.1\.0"),
    ):
        federation.run()
    assert read_status(federation.server / "run").code == CheckpointError.code
    federation.run()
    assert equal(deployed(federation), world.simulated(federation))


def test_a_silo_that_began_with_another_line_says_so(world, monkeypatch):
    """The server is begun anew with the new line; the silo still is in a study of the old one."""
    federation = world.federation(wait=1.0, quorum=2)
    with with_pomona(monkeypatch, "0.0.9"):
        stopped_after(federation, monkeypatch, 1)
    for path in (federation.server / "run").glob("*.json"):
        path.unlink()
    (federation.kits / "silo-0" / "state" / "agreement.json").unlink()
    with pytest.raises(Exception, match="silos answered"):
        federation.run()
    audit = (federation.kits / SILO / "state" / "audit.jsonl").read_text()
    assert "this silo's part in the study was begun by Pomona 0.0.9" in audit


def test_versions_that_are_noted_at_once_are_all_kept(tmp_path):
    names = [f"silo-{k}" for k in range(32)]
    with ThreadPoolExecutor(len(names)) as threads:
        list(threads.map(lambda name: versions.note(tmp_path, name, OLD), names))
    assert versions.noted(tmp_path) == dict.fromkeys(names, OLD)


def test_nothing_has_been_begun_where_nothing_says_so():
    require_begun(None, "the run")


@pytest.mark.slow
def test_two_versions_as_real_processes(tmp_path, monkeypatch):
    """One of three silos finds another release installed: it takes no part, and both sides name
    both versions.
    """
    package = tmp_path / "other" / "pomona-0.2.0.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: pomona\nVersion: 0.2.0\n")
    options = {"deadline": 240.0, "wait": 45.0, "patience": 60.0, "quorum": 2}
    scenario = Scenario.prepare(settings(method=APPLE, rounds=2))
    with local_federation(scenario, tmp_path / "local", **options) as local:
        for owner in ("server", "silo-0", "silo-2"):
            local.start(owner)
        with monkeypatch.context() as patch:
            patch.setattr(sys, "path", [str(package.parent), *sys.path])
            local.start(SILO)
        assert local.wait(lambda s: s.state in {"finished", "failed"}).state == "finished"
        server_status = status.server(local.server)
    (row,) = [row for row in server_status["silos"] if row["silo"] == SILO]
    assert (row["state"], row["version"]) == ("absent", "0.2.0")
    assert any(f"{SILO} has Pomona 0.2.0" in line for line in server_status["notes"])
    with with_pomona(monkeypatch, "0.2.0"):
        assert "the server has Pomona 0.1.0" in status.silo(local.silo(SILO))["version_warning"]
