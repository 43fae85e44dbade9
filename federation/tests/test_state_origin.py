"""Content of a kit that has no effect: a state made on another machine, decisions without their
audit line.
"""

import json
import os
import shutil
from pathlib import Path

import pytest
from pydantic import BaseModel

from command_line import command
from pomona.core.errors import ConfigError, PomonaError, PrivacyError, QuorumError, StorageError
from pomona.privacy import noise
from pomona.privacy.noise import KeyStore
from pomona.privacy.settings import Privacy
from pomona_federation import audit_log, json_store
from pomona_federation.flower_apps import handled
from pomona_federation.installation.backup import backup
from pomona_federation.installation.restore import restore
from pomona_federation.silo import node_supervisor, noise_stores, state_origin
from pomona_federation.silo.node_supervisor import run_node
from pomona_federation.silo.noise_stores import open_own
from pomona_federation.silo.privacy_budget import Cost, PrivacyBudget
from pomona_federation.silo.settings import SiloFile
from pomona_federation.silo.state_origin import rules
from pomona_federation.silo.study_decisions import FILE, StudyDecisions
from test_consent_policy import entry, lines, ruled, submitted
from test_secure_aggregation import RUN
from test_studies import decided, own_models, proposals
from test_study_preflight import checked

pytestmark = pytest.mark.long


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """Simulates another machine."""

    def move(number="0" * 32):
        path = tmp_path / "machine-id"
        path.write_text(number + "\n")
        monkeypatch.setattr(json_store, "MACHINE", (path,))

    return move


SEEDED = (
    "private/dp/client-00/key",
    "private/dp/client-00/ledger.jsonl",
    "private/budget.json",
    "audit.jsonl",
    "disclosed/x",
)


@pytest.mark.parametrize(
    "name", [*SEEDED, "studies/second-0/study.json", "origin.json", "anything", ".hidden"]
)
def test_a_state_that_comes_with_a_kit_is_refused_by_name_wherever_a_silo_begins(federation, name):
    kit = federation.kits / "silo-0"
    seeded = kit / "state" / name
    seeded.parent.mkdir(parents=True, exist_ok=True)
    seeded.write_text('{"mark": "' + "0" * 64 + '"}')
    lines, _ = checked(kit)
    assert (lines["state"].result, f"state/{name}" in lines["state"].text) == ("failed", True)
    for action in (
        lambda: run_node(kit, pytest.fail),
        lambda: handled(kit, None),
        lambda: proposals(federation, "silo-0"),
    ):
        with pytest.raises(ConfigError, match="not made on this machine"):
            action()
    assert [path.name for path in (kit / "state").rglob("*") if path.is_file()] == [seeded.name]


def test_a_folder_that_cannot_be_listed_is_refused_although_files_in_it_can_be_opened(federation):
    kit = federation.kits / "silo-0"
    seeded = kit / "state" / "private" / "dp"
    seeded.mkdir(parents=True, exist_ok=True)
    (seeded / "key").write_bytes(bytes(32))
    seeded.parent.chmod(0o311)
    child = os.fork()
    if not child:  # another account where this one is root's, who may list all folders
        try:
            os.chdir(kit)
            if not os.getuid():
                for path in (Path(), *Path().rglob("*")):
                    os.chown(path, 65534, 65534)
                os.setuid(65534)
            state_origin.ensure_origin(Path())
        except ConfigError as fault:
            os._exit(0 if "state/private" in str(fault) else 1)
        except BaseException:
            os._exit(2)
        os._exit(3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    seeded.parent.chmod(0o700)


def test_a_state_is_no_link_to_another(federation, tmp_path):
    kit = federation.kits / "silo-0"
    shutil.rmtree(kit / "state", ignore_errors=True)
    (tmp_path / "far").mkdir()
    (kit / "state").symlink_to(tmp_path / "far")
    with pytest.raises(ConfigError, match="is a link; move the whole kit"):
        state_origin.ensure_origin(kit)


def test_a_silo_killed_while_it_marks_its_state_goes_on(federation, tmp_path):
    shutil.copytree(federation.kits / "silo-0", tmp_path / "kit")
    (tmp_path / "kit/state").mkdir(exist_ok=True)
    (tmp_path / "kit/state/.origin").write_text('{"mark": "cut')
    assert state_origin.ensure_origin(tmp_path / "kit") == state_origin.origin(tmp_path / "kit")


def test_what_a_silo_has_made_it_knows_again_also_in_another_folder(federation, tmp_path):
    kit = federation.kits / "silo-0"
    assert checked(kit)[0]["state"].text == "empty: this silo has not worked yet"
    federation.run()
    assert checked(kit)[0]["state"].text == "made on this machine"
    shutil.copytree(kit, tmp_path / "moved")
    assert state_origin.ensure_origin(tmp_path / "moved") == state_origin.ensure_origin(kit)


def test_a_state_from_another_machine_comes_by_a_backup(federation, tmp_path, elsewhere):
    """And by no mark that somebody who does not know the machine's id can make."""
    kit = federation.kits / "silo-0"
    federation.run()
    elsewhere()
    with pytest.raises(ConfigError, match="pomona silo restore"):
        state_origin.ensure_origin(kit)
    archived = backup(kit, tmp_path / "kit.tar")
    assert "state/origin.json" not in archived.files
    restore(tmp_path / "kit.tar", tmp_path / "new", "silo", Cost(0.0))
    assert state_origin.origin(tmp_path / "new")
    elsewhere("1" * 32)
    with pytest.raises(ConfigError, match="not made on this machine"):
        state_origin.ensure_origin(tmp_path / "new")


@pytest.mark.parametrize("number", ["", "uninitialized", "0" * 31, "0" * 64])
def test_a_machine_without_an_id_is_a_line(federation, elsewhere, number):
    elsewhere(number)
    with pytest.raises(StorageError, match=r"machine-id is missing: .* mount the machine's"):
        state_origin.ensure_origin(federation.kits / "silo-0")


# Decisions and their lines


def crafted(federation, silo="silo-0", **changes):
    """Edit a study's file by hand."""
    studies = StudyDecisions(federation.kits / silo)
    path = studies.folder(studies.lookup("second")) / FILE
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return entry(federation, silo=silo)


def test_an_acceptance_without_its_audit_line_waits_and_nothing_runs(federation):
    submitted(federation, decide=0.0)
    proposals(federation, "silo-0")
    decision = crafted(
        federation, status="accepted", by="Dr. North", when="2026-01-01 00:00:00Z", sent=True
    )
    assert (decision.status, decision.by) == ("pending", "")
    assert decision.why == (
        "study.json says accepted by Dr. North, without its line in the audit log: decide on "
        "it here"
    )
    assert StudyDecisions(federation.kits / "silo-0").unsent() == []
    with pytest.raises(QuorumError):
        federation.run("second")
    assert "waits for this silo's administrator" in lines(federation, "refused")[-1]["reason"]
    assert own_models(federation, "second") == {}
    decided(federation, "silo-0", "second")
    assert entry(federation).status == "accepted"


@pytest.mark.parametrize(
    "changes",
    [
        {"by": "policy.toml"},
        {"why": "fits"},
        {"terms": None},
        {"terms": {"members": 1}},
        {"status": "declined"},
    ],
)
def test_a_decision_is_the_one_that_the_log_has_in_all_its_parts(federation, changes):
    """Also the terms: an acceptance by rule does not become a person's, which is held to
    nothing.
    """
    submitted(federation)
    ruled(federation, members=2, hours="20:00-06:00")
    proposals(federation, "silo-0")
    assert entry(federation).status == "accepted"
    if changes != {"by": "policy.toml"}:
        assert crafted(federation, **changes).status == "pending"
        return
    assert crafted(federation, **changes).status == "accepted"  # as it was


def test_the_last_line_on_a_study_counts_and_only_where_it_follows_in_the_chain(federation):
    submitted(federation)
    proposals(federation, "silo-0")
    decided(federation, "silo-0", "second")
    log = federation.kits / "silo-0/state/audit.jsonl"
    content = log.read_bytes()
    decided(federation, "silo-0", "second", accepted=False)
    assert crafted(federation, status="accepted").status == "pending"
    log.write_bytes(content)
    assert entry(federation).status == "accepted"
    *earlier, last = content.splitlines(keepends=True)
    log.write_bytes(b"".join(earlier[:-1]) + last)
    assert audit_log.verify(log) is not None
    assert entry(federation).status == "pending"
    log.unlink()
    assert entry(federation).status == "pending"


# Which rules hold


def rule_lines(kit):
    return [line for line in checked(kit)[0].values() if line.check == "rules"]


def test_check_and_start_say_which_rules_hold_and_that_a_policy_came_with_the_kit(
    federation, monkeypatch
):
    kit = federation.kits / "silo-0"
    silo = SiloFile.load(kit / "silo.toml")

    def texts():
        return [(line.text, line.foreign) for line in rules(kit, silo, state_origin.origin(kit))]

    unbounded = ("silo.toml bounds neither privacy loss nor traffic", False)
    assert texts() == [("there is no policy.toml: a person accepts each study", False), unbounded]
    digest = ruled(federation, methods=["fedavg"])
    [(text, foreign), _] = texts()
    assert foreign
    assert text.startswith(f"policy.toml (SHA-256 {digest[:16]}; unless someone here wrote it ")
    assert text.endswith('accepts studies by itself: kinds = ["train"], methods = ["fedavg"]')
    assert checked(kit)[0]["rules"].result in {"warning", "ok"}
    state_origin.ensure_origin(kit)
    assert texts()[0] == (text, True)  # it stays what it was when the silo first started
    ruled(federation, methods=["apple"])
    (later, foreign), _ = texts()
    assert foreign  # a kit that is unpacked over the folder brings one, too
    assert (
        "not that of the silo's first start; unless somebody here wrote it, a kit that was unpacked"
        in later
    )
    path = kit / "silo.toml"
    path.write_text("accept_epsilon = 3.0\ncode = ['mine:run']\n" + path.read_text())
    silo = SiloFile.load(path)
    assert texts()[1] == ('silo.toml: accept_epsilon = 3.0, code = ["mine:run"]', False)
    messages = []
    monkeypatch.setattr(
        node_supervisor.node, "command", lambda *_: (_ for _ in ()).throw(ConfigError("end"))
    )
    with pytest.raises(ConfigError, match="end"):
        run_node(kit, messages.append)
    assert [line.partition("Z ")[2] for line in messages[1:]] == [
        "warning: " * strange + text for text, strange in texts()
    ]
    ruled(federation, kinds=[])
    with pytest.raises(ConfigError, match=r"policy\.toml"):
        texts()


def test_check_warns_of_rules_that_came_with_the_kit(federation, capsys):
    ruled(federation)
    command("silo", "check", "--folder", federation.kits / "silo-0")
    output = capsys.readouterr().out
    assert "warning  rules" in output
    assert "it came with the kit" in " ".join(output.split())


# A kit that is unpacked over a silo's folder


def test_a_log_and_a_decision_from_another_machine_wait_under_a_valid_mark(
    federation, tmp_path, monkeypatch
):
    """A whole chain of lines is made without the machine's id; its seals are not."""
    submitted(federation)
    proposals(federation, "silo-0")
    kit = federation.kits / "silo-0"
    with monkeypatch.context() as patch:
        patch.setattr(json_store, "MACHINE", (written(tmp_path / "theirs", "1" * 32),))
        state_origin.mark(kit)
        decided(federation, "silo-0", "second")
        assert entry(federation).status == "accepted"
    state_origin.mark(kit)
    assert audit_log.verify(kit / "state/audit.jsonl") is None
    assert entry(federation).status == "pending"
    assert StudyDecisions(kit, foreign=True).lookup("second").status == "accepted"
    StudyDecisions(kit).reseal()
    assert entry(federation).status == "accepted"


def test_a_budget_from_another_machine_is_refused(federation, tmp_path, monkeypatch):
    kit = federation.kits / "silo-0"
    state_origin.ensure_origin(kit)
    with monkeypatch.context() as patch:
        patch.setattr(json_store, "MACHINE", (written(tmp_path / "theirs", "1" * 32),))
        PrivacyBudget(kit).enter_unknown("0" * 16, Cost(1.0))
        assert PrivacyBudget(kit).unknown.epsilon == 1.0
    with pytest.raises(StorageError, match=r"budget\.json was not written by this silo on this"):
        _ = PrivacyBudget(kit).unknown
    json_store.reseal_files(kit / "state")
    assert PrivacyBudget(kit).unknown.epsilon == 1.0


def test_a_kit_that_is_unpacked_over_a_running_silos_folder_decides_nothing(
    federation, tmp_path, monkeypatch
):
    """Its maker knows all that the server offers, and brings all of ``state/`` but the mark, made
    on their machine.
    """
    submitted(federation)
    kit, saved = federation.kits / "silo-0", tmp_path / "own"
    state = kit / "state"
    stores = Stores(state / "private" / "dp")

    def worked(epsilon):
        proposals(federation, "silo-0")
        PrivacyBudget(kit).enter_unknown("0" * 16, Cost(epsilon))
        open_own(stores.folder, stores, 0)

    worked(2.0)
    state.rename(saved)
    with monkeypatch.context() as patch:
        patch.setattr(json_store, "MACHINE", (written(tmp_path / "id", "1" * 32),))
        worked(1e-6)
        decided(federation, "silo-0", "second")
        assert entry(federation).status == "accepted"
    (state / state_origin.FILE).unlink()
    shutil.copytree(state, saved, dirs_exist_ok=True)
    shutil.rmtree(state)
    saved.rename(state)
    assert state_origin.ensure_origin(kit), "the mark still holds"
    assert entry(federation).status == "pending"
    for counted in (lambda: PrivacyBudget(kit).unknown, lambda: open_own(stores.folder, stores, 0)):
        with pytest.raises(PomonaError, match=r"not (written by this silo|made) on this machine"):
            counted()


def replaced_by_an_empty_one(path):
    path.write_text("{}")


def replaced_by_another_machines(path):
    tree = json.loads(path.read_text())
    path.write_text(json.dumps(tree | {"seal": "0" * 64}))


def replaced_by_a_link_to_nothing(path):
    path.unlink()
    path.symlink_to("nothing")


def replaced_by_this_silos_of_another_study(path):
    content = json_store.read_sealed(BaseModelOfAny, path)
    other = path.parent / "studies/other/state-of" / path.name
    other.parent.mkdir(parents=True, exist_ok=True)
    json_store.write_sealed(other, content)
    other.replace(path)


class BaseModelOfAny(BaseModel, extra="allow"):
    """Whatever a file has."""


@pytest.mark.parametrize(
    "replace",
    [
        replaced_by_an_empty_one,
        replaced_by_another_machines,
        replaced_by_a_link_to_nothing,
        replaced_by_this_silos_of_another_study,
    ],
)
def test_what_a_silo_was_asked_summed_and_agreed_to_is_not_replaced_by_a_kit(
    world, replace, tmp_path
):
    """With another ``sums.json`` a silo would sum a change again, over other silos; to restore a
    backup of that would seal it.
    """
    federation = world.federation("fedavg", **RUN)
    federation.run()
    kit = federation.kits / "silo-0"
    files = [p for p in (kit / "state").rglob("*.json") if p.stem in state_origin.SEALED]
    assert {p.name for p in files} == {
        f"{name}.json" for name in ("agreement", "asked", "budget", "seen", "sums")
    }
    for path in files:
        original = path.read_bytes()
        replace(path)
        line = checked(kit)[0]["state"]
        assert (line.result, path.name in line.text) == ("failed", True)
        assert "a kit that was unpacked over this folder" in line.text
        for action in (
            lambda: run_node(kit, pytest.fail),
            lambda: backup(kit, tmp_path / "kit.tar"),
            lambda path=path: json_store.read_sealed(BaseModelOfAny, path),
        ):
            with pytest.raises(StorageError, match=path.name):
                action()
        path.unlink()
        path.write_bytes(original)
    (kit / "state/checkpoints").rename(tmp_path / "elsewhere")
    (kit / "state/checkpoints").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StorageError, match="state/checkpoints is a link"):
        run_node(kit, pytest.fail)
    (kit / "state/checkpoints").unlink()
    (tmp_path / "elsewhere").rename(kit / "state/checkpoints")
    (kit / "state/.cache/hub").mkdir(parents=True)  # as of Hugging Face in a service
    (kit / "state/.cache/hub/weights").symlink_to("blob")
    assert checked(kit)[0]["state"].result == "ok"
    assert backup(kit, tmp_path / "kit.tar").files


def test_a_folder_that_a_working_silo_removes_meanwhile_fails_no_check(federation, monkeypatch):
    kit = federation.kits / "silo-0"
    state_origin.ensure_origin(kit)
    (kit / "state" / "gone").mkdir()
    scandir = os.scandir

    def without_it(path):
        return scandir(f"{path}-removed" if Path(path).name == "gone" else path)

    monkeypatch.setattr(os, "scandir", without_it)
    assert checked(kit)[0]["state"].text == "made on this machine"


def test_a_file_of_a_folder_that_another_account_closed_is_named(tmp_path, monkeypatch):
    def refused(*_, **__):
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", refused)
        patch.setattr(os, "open", refused)
        with pytest.raises(StorageError, match=r"budget\.json cannot be read \(Permission denied"):
            json_store.read_sealed(BaseModelOfAny, tmp_path / "state/private/budget.json")


class Stores:
    """A silo's key stores as opened by each task."""

    def __init__(self, folder):
        self.folder = folder

    def key_store(self, client):
        return KeyStore.open(
            self.folder, client, Privacy(noise_multiplier=1.0, max_grad_norm=1.0, delta=1e-5)
        )


def test_a_noise_key_that_is_unpacked_over_a_silos_own_is_refused(tmp_path):
    ours, theirs = tmp_path / "own", tmp_path / "theirs"
    for _ in range(2):
        open_own(ours, Stores(ours), 0)
    assert (ours / "client-00/seal").stat().st_mode & 0o077 == 0
    Stores(theirs).key_store(0)
    shutil.copytree(theirs, ours, dirs_exist_ok=True)
    with pytest.raises(PrivacyError, match="key was not made on this machine"):
        open_own(ours, Stores(ours), 0)
    with pytest.raises(PrivacyError, match="key was not made on this machine"):
        open_own(theirs, Stores(theirs), 0)


@pytest.mark.parametrize("written_until", ["nothing", "ledger", "key"])
def test_a_kill_before_the_key_is_sealed_locks_nobody_out(tmp_path, monkeypatch, written_until):
    stores = Stores(tmp_path)
    with monkeypatch.context() as killed:
        if written_until == "key":
            killed.setattr(noise_stores, "_seal", interrupted)
        elif written_until == "ledger":
            killed.setattr(noise, "publish", interrupted)
        else:
            killed.setattr(stores, "key_store", interrupted)
        with pytest.raises(KeyboardInterrupt):
            open_own(tmp_path, stores, 0)
    open_own(tmp_path, stores, 0)
    assert (tmp_path / "client-00/seal").read_text() == noise_stores._seal(tmp_path / "client-00")


def interrupted(*_):
    raise KeyboardInterrupt


def written(path, text):
    path.write_text(text)
    return path
