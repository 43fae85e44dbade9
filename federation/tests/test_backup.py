"""Backups: a restored silo continues bit for bit, an older or copied one is refused, privacy is
never spent twice.
"""

import hashlib
import io
import json
import math
import os
import resource
import shutil
import stat
import sys
import tarfile
import time
import tomllib
from collections import Counter
from pathlib import Path

import pytest
import tomli_w

from command_line import command
from federation_in_process import APPLE, audited, deployed, equal, lost, settings, stopped_after
from pomona.core.errors import ConfigError, LockedError, PomonaWarning, PrivacyError, StorageError
from pomona.data import data_settings
from pomona.privacy.accounting import Event, combined, rate, steps
from pomona.privacy.ledger import Ledger
from pomona.record.run_folder import load
from pomona.scenario import Scenario
from pomona.scenario.description import epsilons
from pomona.storage.lock import locked
from pomona_federation.audit_log import Audit, complete_lines, verify
from pomona_federation.installation import backup as module
from pomona_federation.installation.backup import KEY, MANIFEST, Backup, SavedFile, backup
from pomona_federation.installation.restore import needs_key, restore
from pomona_federation.json_store import read_sealed, write_sealed
from pomona_federation.messages.message_bodies import Task, read
from pomona_federation.messages.message_bus import unpacked
from pomona_federation.provision import kit_files
from pomona_federation.rehearsal.run import local_federation
from pomona_federation.silo.masked_part import PastSums
from pomona_federation.silo.privacy_budget import Claim, Cost, PrivacyBudget, TotalLimit, overview
from pomona_federation.silo.settings import SiloFile
from pomona_federation.supervision.supervisor import environment
from pomona_federation.versions import installed
from representatives import drawn, number

pytestmark = pytest.mark.long

NODE, SILO = 11, "silo-1"
PRIVATE = {
    "noise_multiplier": 2.0,
    "max_grad_norm": 1.0,
    "delta": 0.001,
    "epsilon_budget": 100.0,
    "acknowledge": ["sample-counts", "metrics"],
}


def restored(federation, file, name=SILO, **options):
    """Replace a silo's kit with the content of its backup, and put its data there."""
    kit = federation.kits / name
    data = federation.kits.parent / f"data-of-{name}"
    if (kit / "data").is_dir():
        shutil.copytree(kit / "data", data, dirs_exist_ok=True)
    shutil.rmtree(kit)
    told = restore(file, kit, "silo", **{"spent": Cost(), **options})
    shutil.copytree(data, kit / "data", dirs_exist_ok=True)  # the guide: cp, into its folder
    return told


def cohorts(federation):
    return {row.round: row.cohort for row in load(federation.server / "run").rounds}


def test_a_restored_silo_goes_on_with_equal_bits(world, monkeypatch, tmp_path):
    federation = world.federation()
    stopped_after(federation, monkeypatch, 2)
    kit = federation.kits / SILO
    (kit / "own.py").write_text("x = 1\n")
    (kit / "table.npz").write_bytes(b"data")
    told = backup(kit, tmp_path / "silo-1.tar")
    assert stat.S_IMODE((tmp_path / "silo-1.tar").stat().st_mode) == 0o600
    assert {"own.py", KEY, "silo.toml", "federation.toml", "start.sh"} < told.files.keys()
    left_out = ("data/", "table", "state/cache/", "state/logs/", "state/flwr/")
    assert not [name for name in told.files if name.startswith(left_out)]
    assert restored(federation, tmp_path / "silo-1.tar") == told
    assert stat.S_IMODE((kit / KEY).stat().st_mode) == 0o600
    assert stat.S_IMODE((kit / "start.sh").stat().st_mode) == 0o700
    assert stat.S_IMODE((kit / "keys").stat().st_mode) == 0o700
    federation.run()
    assert equal(deployed(federation), world.simulated(federation))
    audit = kit / "state" / "audit.jsonl"
    assert verify(audit) is None
    assert [line["made"] for line in complete_lines(audit) if line["event"] == "restored"] == [
        told.made
    ]


def moments(kit, number, taken, monkeypatch):
    """Count a silo's durable writes in a round, and stop everything at one of them, after a backup.

    Returns the count so far, in a list.
    """
    seen, fsync = [0], os.fsync

    def watched(handle):
        fsync(handle)
        asked = kit / "state" / "asked.json"
        inside = str(Path(f"/proc/self/fd/{handle}").readlink()).startswith(f"{kit}/")
        if (
            not inside
            or not asked.exists()
            or json.loads(asked.read_text())["content"]["training"][0] != number
        ):
            return
        seen[0] += 1
        if taken is not None and seen[0] == taken[0]:
            monkeypatch.setattr(os, "fsync", fsync)
            backup(kit, taken[1])
            raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", watched)
    return seen


@pytest.mark.parametrize(
    "all_", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["one", "all"]
)
def test_a_backup_at_any_write_of_a_round_can_be_gone_on_from(all_, world, monkeypatch, tmp_path):
    """Server and silos end at once, at a silo's write of round 2; the silo is restored from that
    moment.
    """
    federation = world.federation()
    kit, begun = federation.kits / SILO, tmp_path / "begun"
    stopped_after(federation, monkeypatch, 1)
    shutil.copytree(federation.kits, begun, ignore=shutil.ignore_patterns("arrivals"))  # a pipe
    with monkeypatch.context() as patch:
        count = moments(kit, 2, None, patch)
        federation.run()
    expected = world.simulated(federation)
    assert count[0] > 5
    for moment in range(1, count[0] + 1) if all_ else [1 + number("write") % count[0]]:
        shutil.rmtree(federation.kits)
        shutil.copytree(begun, federation.kits)
        file = tmp_path / f"{moment}.tar"
        with monkeypatch.context() as patch:
            moments(kit, 2, (moment, file), patch)
            with pytest.raises(KeyboardInterrupt):
                federation.run()
        restored(federation, file)
        federation.run()
        assert equal(deployed(federation), expected), moment
        assert set(cohorts(federation).values()) == {(0, 1, 2)}, moment


def test_rounds_that_are_removed_while_they_are_read_are_whole_in_the_backup(
    world, monkeypatch, tmp_path
):
    federation = world.federation()
    federation.run()
    kit = federation.kits / SILO
    rounds = {p: p.read_bytes() for p in (kit / "state" / "checkpoints").glob("round-*")}
    size = module._size

    def removing(name, file):
        for path in rounds:
            path.unlink(missing_ok=True)
        return size(name, file)

    monkeypatch.setattr(module, "_size", removing)
    told = backup(kit, tmp_path / "it.tar")
    with tarfile.open(tmp_path / "it.tar") as tar:
        found = {name: tar.extractfile(name).read() for name in told.files if "/round-" in name}
    assert found == {str(p.relative_to(kit)): content for p, content in rounds.items()}
    order = list(told.files)
    ranks = [order.index(f"state/{name}") for name in ("seen.json", "asked.json", "agreement.json")]
    assert ranks == sorted(ranks)
    assert max(order.index(name) for name in found) < min(ranks)


def test_more_rounds_than_files_may_be_open_are_saved(world, tmp_path):
    """As of a search with many trials: those of one folder alone are open at once."""
    federation = world.federation()
    federation.run()
    kit, limit = federation.kits / SILO, resource.getrlimit(resource.RLIMIT_NOFILE)
    rounds = sorted((kit / "state" / "checkpoints").glob("round-*"))
    trials = kit / "state" / "studies" / "second-0123" / "trials"
    in_use = max(int(p.name) for p in Path("/proc/self/fd").iterdir())
    most = in_use + len(rounds) + 10  # the rounds of a folder, the archive, folders being read
    homes = [trials / f"{trial:03d}" / "checkpoints" for trial in range(most)]
    for home in homes:
        shutil.copytree(rounds[0].parent, home)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, limit[1]))
    try:
        told = backup(kit, tmp_path / "it.tar")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)
    expected = {
        str(h.relative_to(kit) / p.name) for h in [*homes, rounds[0].parent] for p in rounds
    }
    assert {name for name in told.files if "/round-" in name} == expected


def test_of_a_file_that_grows_whole_lines_are_taken(world, tmp_path):
    federation = world.federation()
    federation.run()
    kit = federation.kits / SILO
    path = kit / "state" / "rounds.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"round": 4, "sc')
    backup(kit, tmp_path / "it.tar")
    with tarfile.open(tmp_path / "it.tar") as tar:
        assert tar.extractfile("state/rounds.jsonl").read() == whole


def test_a_copy_that_has_fallen_behind_is_refused_and_the_other_goes_on(
    world, monkeypatch, tmp_path
):
    """The copy is begun after round 2, which it does not know; the original then takes part
    again.
    """
    federation = world.federation(run={"rounds": 4})
    stopped_after(federation, monkeypatch, 1)
    backup(federation.kits / SILO, tmp_path / "it.tar")
    stopped_after(federation, monkeypatch, 2)
    copy = tmp_path / "copy"
    restore(tmp_path / "it.tar", copy, "silo", Cost())
    federation.grid.folders[NODE] = copy
    stopped_after(federation, monkeypatch, 3)
    reasons = [line["reason"] for line in audited(copy / "state", "refused")]
    assert any("continues from this silo's round 2" in reason for reason in reasons)
    federation.grid.folders[NODE] = federation.kits / SILO
    federation.run()
    assert cohorts(federation) == {1: (0, 1, 2), 2: (0, 1, 2), 3: (0, 2), 4: (0, 1, 2)}
    assert equal(deployed(federation), world.simulated(federation, absent={(3, 1)}))


# Privacy.


def history(kit):
    (path,) = (kit / "state" / "private" / "dp").glob("client-*/ledger.jsonl")
    return Ledger.open(path).history()


def expected(federation, per_round):
    """A history of this many releases of a batch, each in so many rounds, by the numbers of the
    run.
    """
    config = federation.simulation
    n, size = len(Scenario.prepare(config).partition.clients[1].train), config.batch_size
    each = steps(n, size) * config.local_epochs
    return Counter(
        {
            Event(combined([2.0] * k), rate(n, size)): each * rounds
            for k, rounds in per_round.items()
        }
    )


@pytest.mark.parametrize(
    ("until", "per_round"),
    [
        pytest.param(None, {1: 3, 2: 1}, id="unknown"),
        pytest.param(3, {1: 4}, id="as it was", marks=pytest.mark.slow),
        pytest.param(2, {1: 3}, id="none, in the administrator's word", marks=pytest.mark.slow),
    ],
)
def test_what_was_spent_since_a_backup_counts(until, per_round, world, monkeypatch, tmp_path):
    """Of four rounds the silo trains the third for nothing: its answer is lost, and then it is
    restored as of round 2.

    Unknown: rounds 3 and 4 count as released before, so that the batches of round 4 have two
    releases.
    """
    pytest.importorskip("opacus")
    federation = world.federation(
        "fedavg", run={"rounds": 4, "privacy": PRIVATE}, patience=0.0, deadline=2.0
    )
    kit = federation.kits / SILO
    stopped_after(federation, monkeypatch, 2)
    backup(kit, tmp_path / "it.tar")

    def losing(message, reply):
        body = unpacked(message.content)
        third = body.message_type == "task" and read(Task, body.body).number == 3
        return lost(message) if third and message.metadata.dst_node_id == NODE else reply

    federation.grid.faults.append(losing)
    stopped_after(federation, monkeypatch, 3)
    assert cohorts(federation)[3] == (0, 2)
    assert history(kit) == expected(federation, {1: 3})
    federation.grid.faults.clear()
    restored(federation, tmp_path / "it.tar", trained_until=until)
    assert history(kit) == expected(federation, {1: 2})
    federation.run()
    assert cohorts(federation)[4] == (0, 1, 2)
    assert history(kit) == expected(federation, per_round)
    assert not list((kit / "state" / "private" / "dp").glob("restored-*"))


def test_a_restore_that_would_exceed_the_budget_takes_no_part(world, monkeypatch, tmp_path, caplog):
    pytest.importorskip("opacus")
    private = {**PRIVATE, "noise_multiplier": 1.0}
    federation = world.federation("fedavg", run={"rounds": 4, "privacy": private}, quorum=2)
    worst = epsilons(Scenario.prepare(federation.simulation))[1]
    stopped_after(federation, monkeypatch, 1)
    kit = federation.kits / SILO
    own = tomllib.loads((kit / "silo.toml").read_text())
    (kit / "silo.toml").write_text(tomli_w.dumps(own | {"accept_epsilon": worst * 1.001}))
    backup(kit, tmp_path / "it.tar")
    restored(federation, tmp_path / "it.tar")
    federation.run()
    assert {n: cohort for n, cohort in cohorts(federation).items() if n > 1} == {
        2: (0, 2),
        3: (0, 2),
        4: (0, 2),
    }
    assert "PRIVACY; the silo's log" in (federation.server / "run" / "audit.jsonl").read_text()
    assert "another release would exceed" in caplog.text


@pytest.mark.parametrize("enough", drawn([True, False]))
def test_a_backup_from_before_the_first_private_run_does_not_roll_the_budget_back(
    enough, world, tmp_path, caplog
):
    """The same run twice, the server's begun anew, on one silo's rows: it costs twice, or does not
    take place.
    """
    pytest.importorskip("opacus")
    federation = world.federation("fedavg", run={"rounds": 2, "privacy": PRIVATE}, quorum=2)
    kit = federation.kits / SILO
    for name in federation.names:
        backup(federation.kits / name, tmp_path / f"{name}.tar")
    federation.run()
    (once,) = PrivacyBudget(kit).reservations
    with pytest.raises(
        ConfigError, match=r"cannot know how much privacy .*: give --spent"
    ) as refused:
        restore(tmp_path / f"{SILO}.tar", tmp_path / "other", "silo")
    assert "it knows of no private run" in refused.value.text()
    assert not (tmp_path / "other").exists()
    most = once.epsilon * (2.01 if enough else 1.99)
    # a silo's state knows the run that it worked for, and refuses another
    for name in federation.names:
        restored(federation, tmp_path / f"{name}.tar", name, spent=once.cost)
    own = tomllib.loads((kit / "silo.toml").read_text())
    (kit / "silo.toml").write_text(tomli_w.dumps(own | {"accept_epsilon": most}))
    shutil.rmtree(federation.server / "run")
    federation.run()
    assert set(cohorts(federation).values()) == {(0, 1, 2) if enough else (0, 2)}
    total = PrivacyBudget(kit).total(SiloFile.load(kit / "silo.toml").data)
    assert total.epsilon == pytest.approx(once.epsilon * (2 if enough else 1))
    assert total.delta == pytest.approx(once.delta * (2 if enough else 1))
    if not enough:
        refusals = [line["reason"] for line in audited(kit / "state", "refused")]
        assert refusals[0].startswith("PRIVACY")
        assert "that a restored backup did not know" in caplog.text
    backup(kit, tmp_path / "late.tar")
    with pytest.raises(ConfigError) as refused:
        restore(tmp_path / "late.tar", tmp_path / "other", "silo")
    assert f"study unknown, before a restore: epsilon {once.epsilon:.3g}" in refused.value.text()


def test_what_nobody_knows_is_without_bound_and_no_private_run_takes_place(kit, tmp_path):
    backup(kit, tmp_path / "it.tar")
    restore(tmp_path / "it.tar", tmp_path / "new", "silo", Cost(math.inf))
    budget, data = PrivacyBudget(tmp_path / "new"), data_settings(name="digits")
    assert budget.total(data).epsilon == math.inf
    with pytest.raises(PrivacyError, match="accept_epsilon_total"):
        budget.reserve(Claim("one", "0" * 64, "ab", lambda: Cost(0.1, 0.0)), data, TotalLimit(1e6))
    (row,) = overview(tmp_path / "new")
    assert row["study"] == "unknown, before a restore"
    assert row["epsilon_at_most"] is None


# Files from outside.


BROUGHT = {
    "evil.py",
    "state/x/evil.so",
    "app/pomona_app/client_app.py",
    "start.sh",
    "silo.toml",
    "policy.toml",
    "state/studies/one/trials/000/study.json",
}


def test_all_that_runs_or_decides_in_a_backup_is_named(kit, tmp_path, capfd):
    unnamed = kit_files.app() | {"state/rounds.jsonl": b""}
    files = unnamed | dict.fromkeys(BROUGHT, b"")
    crafted = of_files(tmp_path / "it.tar", files)
    with pytest.warns(PomonaWarning, match="runs or decides") as heard:
        restore(crafted, tmp_path / "new", "silo", Cost())
    assert set(str(heard[0].message).partition("kit: ")[2].split(", ")) == BROUGHT
    command("silo", "restore", str(crafted), "--folder", str(tmp_path / "kit"), "--spent", "0")
    noted = [line for line in capfd.readouterr().err.splitlines() if line.startswith("note: ")]
    assert len(noted) == len(BROUGHT)
    assert any(f"{tmp_path / 'kit' / 'evil.py'} runs or decides" in line for line in noted)


def test_a_backup_of_the_other_role_is_refused(kit, tmp_path):
    for folder, role, other in ((kit, "silo", "server"), (kit.parent / "server", "server", "silo")):
        backup(folder, tmp_path / f"{role}.tar")
        with pytest.raises(ConfigError, match=f"backup of a {role}; use `pomona {role} restore`"):
            restore(tmp_path / f"{role}.tar", tmp_path / "new", other, Cost())
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    "name",
    [
        "numpy/__init__.py",
        "x/evil.so",
        "data/evil.py",
        "wheels/evil.whl",
        "state/origin.json",
        "ledger.jsonl",
    ],
)
def test_what_no_backup_takes_is_in_none(name, kit, tmp_path):
    with pytest.raises(ConfigError, match=f"'{name}', which backups leave out"):
        restore(of_files(tmp_path / "it.tar", {name: b""}), tmp_path / "new", "silo", Cost())
    assert not (tmp_path / "new").exists()


@pytest.fixture
def kit(tmp_path):
    """A small kit that was never started."""
    from agreement_file import agreement
    from pomona_federation.provision.provision import provision

    (tmp_path / "federation.toml").write_text(agreement(8443))
    provision(tmp_path / "federation.toml", tmp_path / "kits")
    return tmp_path / "kits" / "north"


def test_a_backup_without_the_key_says_that_it_is_needed(kit, tmp_path):
    (tmp_path / "link").symlink_to(kit)  # a kit may lie on a larger disk
    told = backup(tmp_path / "link", tmp_path / "it.tar", without_key=True)
    secret = (kit / KEY).read_bytes()
    assert secret not in (tmp_path / "it.tar").read_bytes()
    restore(tmp_path / "it.tar", tmp_path / "new", "silo", Cost())
    assert needs_key(tmp_path / "new", told)
    (tmp_path / "new" / KEY).write_bytes(secret)
    assert not needs_key(tmp_path / "new", told)


def test_a_backup_has_every_study_and_its_first_weights_whatever_it_is_called(kit, tmp_path):
    server, studies = kit.parent / "server", ("cache", "catalogs", "ecg-logs")
    own = {f"weights/{'0' * 64}.safetensors"} | {f"run/studies/{n}/study.json" for n in studies}
    left_out = {f"run/studies/{name}/logs/server.log" for name in studies}
    for name in own | left_out:
        (server / name).parent.mkdir(parents=True, exist_ok=True)
        (server / name).write_text("{}")
    os.mkfifo(server / "run/arrivals")
    told = backup(server, tmp_path / "it.tar")
    assert own == {n for n in told.files if n.startswith(("weights/", "run/"))}
    assert restore(tmp_path / "it.tar", tmp_path / "new", "server") == told


@pytest.mark.parametrize("link", [os.link, os.symlink])
def test_a_link_in_place_of_a_file_is_named_and_no_backup_is_made(link, kit, tmp_path):
    for name in (KEY, "silo.toml"):
        (kit / name).rename(tmp_path / "elsewhere")
        link(tmp_path / "elsewhere", kit / name)
        with pytest.raises(StorageError, match=f"{name}: a link, .* put a copy in its place"):
            backup(kit, tmp_path / "it.tar")
        (kit / name).unlink()
        (tmp_path / "elsewhere").rename(kit / name)
    assert not list(tmp_path.glob("*it.tar*"))
    backup(kit, tmp_path / "it.tar")


@pytest.mark.parametrize("linked", [False, True])
def test_what_is_noted_first_while_a_backup_is_written_is_in_it(linked, kit, monkeypatch, tmp_path):
    Audit(kit / "state/audit.jsonl").close()
    reserved, size = Cost(0.5, 1e-5), module._size
    claim = Claim("one", "0" * 64, "ab", lambda: reserved)

    def reserving(name, file):
        budget = kit / "state/private/budget.json"
        if not budget.exists():
            PrivacyBudget(kit).reserve(claim, data_settings(name="digits"), TotalLimit())
            for note in ("sums.json", "disclosed/ab.json"):
                write_sealed(kit / "state" / note, PastSums())
            if linked:
                budget.rename(tmp_path / "elsewhere")
                budget.symlink_to(tmp_path / "elsewhere")
        return size(name, file)

    monkeypatch.setattr(module, "_size", reserving)
    if linked:
        with pytest.raises(StorageError, match="it is a symbolic link"):
            backup(kit, tmp_path / "it.tar")
        return
    notes = [f"state/{note}" for note in ("private/budget.json", "sums.json", "disclosed/ab.json")]
    assert list(backup(kit, tmp_path / "it.tar").files)[-3:] == notes  # read after all others
    restore(tmp_path / "it.tar", tmp_path / "new", "silo", Cost())
    assert [r.cost for r in PrivacyBudget(tmp_path / "new").reservations] == [reserved]
    assert all(read_sealed(PastSums, tmp_path / "new" / note) for note in notes[1:])


def test_nothing_is_written_over(kit, tmp_path):
    backup(kit, tmp_path / "it.tar")
    before = (tmp_path / "it.tar").read_bytes()
    with pytest.raises(StorageError, match="already exists"):
        backup(kit, tmp_path / "it.tar")
    with pytest.raises(StorageError, match="is not empty"):
        restore(tmp_path / "it.tar", kit, "silo", Cost())
    assert (tmp_path / "it.tar").read_bytes() == before
    (tmp_path / "empty").mkdir()
    restore(tmp_path / "it.tar", tmp_path / "empty", "silo", Cost())


def tar(path, *members):
    """A tar file of (TarInfo, content)."""
    with tarfile.open(path, "w") as file:
        for info, content in members:
            info.size = len(content)
            file.addfile(info, io.BytesIO(content))
    return path


def member(name, kind=tarfile.REGTYPE, link=""):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


def of_files(path, files):
    """A silo's backup with these files and correct hashes."""
    known = {
        name: SavedFile(size=len(text), sha256=hashlib.sha256(text).hexdigest())
        for name, text in files.items()
    }
    about = {
        "role": "silo",
        "federation": "f",
        "made": "now",
        "key": False,
        "versions": installed(),
        "files": known,
    }
    told = Backup(**about).model_dump_json().encode()
    return tar(
        path, *((member(name), text) for name, text in files.items()), (member(MANIFEST), told)
    )


def members(path):
    """Members of a backup."""
    with tarfile.open(path) as file:
        return [(info, file.extractfile(info).read()) for info in file]


WRONG = {
    "absolute": lambda good: [(member("/tmp/x"), b""), *good],
    "above": lambda good: [(member("state/../../x"), b""), *good],
    "backslash": lambda good: [(member("state\\x"), b""), *good],
    "not normal": lambda good: [(member("state//x"), b""), *good],
    "link": lambda good: [(member("state/x", tarfile.SYMTYPE, "/etc/passwd"), b""), *good],
    "hard link": lambda good: [(member("state/x", tarfile.LNKTYPE, "silo.toml"), b""), *good],
    "device": lambda good: [(member("state/x", tarfile.CHRTYPE), b""), *good],
    "pipe": lambda good: [(member("state/x", tarfile.FIFOTYPE), b""), *good],
    "folder": lambda good: [(member("state/x", tarfile.DIRTYPE), b""), *good],
    "one more": lambda good: [(member("state/x"), b"1"), *good],
    "one less": lambda good: good[1:],
    "twice": lambda good: [good[0], *good],
    "a folder as file": lambda good: [(member("state/x/y"), b""), (member("state/x"), b""), *good],
    "a file as folder": lambda good: [*good[:-1], (member(f"{good[0][0].name}/x"), b""), good[-1]],
    "changed": lambda good: [(good[0][0], good[0][1] + b" "), *good[1:]],
    "no manifest": lambda good: good[:-1],
    "two manifests": lambda good: [*good, good[-1]],
    "another manifest": lambda good: [*good[:-1], (member(MANIFEST), b"{}")],
    "deep": lambda good: [*good[:-1], (member(MANIFEST), b"[" * 10**5)],
}


@pytest.mark.parametrize("name", ["state/ledger.jsonl", "keys/ledger.jsonl"])
def test_a_file_named_like_a_ledger_has_nothing_written_outside_the_kit(name, kit, tmp_path):
    (tmp_path / "place").mkdir()
    crafted = of_files(tmp_path / "bad.tar", {name: b""})
    restore(crafted, tmp_path / "place" / "new", "silo", Cost())
    assert [path.name for path in (tmp_path / "place").iterdir()] == ["new"]
    assert not list(tmp_path.rglob("restored-*"))


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_a_crafted_backup_is_refused_and_leaves_nothing(wrong, kit, tmp_path):
    backup(kit, tmp_path / "good.tar")
    (tmp_path / "place").mkdir()
    bad = tar(tmp_path / "bad.tar", *wrong(members(tmp_path / "good.tar")))
    with pytest.raises(ConfigError, match="is not a complete backup"):
        restore(bad, tmp_path / "place" / "new", "silo", Cost())
    assert not list((tmp_path / "place").iterdir())


def test_what_is_no_tar_or_cut_short_is_refused(kit, tmp_path):
    backup(kit, tmp_path / "good.tar")
    whole = (tmp_path / "good.tar").read_bytes()
    bad, heading = tmp_path / "bad.tar", tarfile.TarInfo.create_pax_global_header({"path": "x"})
    for content in (
        b"",
        b"text",
        os.urandom(2000),
        whole[:1000],
        whole[: len(whole) // 2],
        whole[:512] * 3,
        heading * 1000 + whole,
    ):
        bad.write_bytes(content)
        with pytest.raises(ConfigError, match="is not a complete backup"):
            restore(bad, tmp_path / "new", "silo", Cost())
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match="a pipe"):
        restore(tmp_path / "pipe", tmp_path / "new", "silo", Cost())
    assert not (tmp_path / "new").exists()


def test_a_size_that_is_not_there_takes_no_memory(kit, tmp_path):
    backup(kit, tmp_path / "good.tar")
    bad = tmp_path / "bad.tar"
    huge = member("state/x")
    huge.size = 2**40
    bad.write_bytes(huge.tobuf() + (tmp_path / "good.tar").read_bytes())
    with pytest.raises(ConfigError, match="not a plain file of a kit, or too large"):
        restore(bad, tmp_path / "new", "silo", Cost())


# The server, and real processes.


def test_a_restored_server_goes_on_with_equal_bits(world, monkeypatch, tmp_path):
    federation = world.federation()
    stopped_after(federation, monkeypatch, 2)
    with locked(federation.server / "run"), pytest.raises(LockedError):
        backup(federation.server, tmp_path / "server.tar")
    backup(federation.server, tmp_path / "server.tar")
    shutil.rmtree(federation.server)
    restore(tmp_path / "server.tar", federation.server, "server")
    federation.run()
    assert equal(deployed(federation), world.simulated(federation))


@pytest.mark.slow
def test_a_copy_at_the_same_time_is_refused_by_the_real_superlink(tmp_path):
    """A backup of a silo that is running is started beside it: it stays outside, and the silo
    notices nothing.
    """
    import subprocess

    scenario = Scenario.prepare(settings(method=APPLE, rounds=400))
    with local_federation(
        scenario, tmp_path / "local", deadline=240.0, wait=240.0, quorum=3
    ) as local:
        for who in ("server", *local.names):
            local.start(who)
        local.wait(lambda s: s.round >= 1)
        copy = tmp_path / "copy"
        backup(local.silo(SILO), tmp_path / "it.tar")
        restore(tmp_path / "it.tar", copy, "silo", Cost())
        shutil.copytree(local.silo(SILO) / "data", copy / "data", dirs_exist_ok=True)
        words = [sys.executable, "-m", "pomona", "silo", "start", "--folder", str(copy)]
        env = environment(tmp_path) | {"PYTHONPATH": os.pathsep.join(sys.path)}
        with (tmp_path / "copy.log").open("wb") as log:
            process = subprocess.Popen(words, stdout=log, stderr=log, env=env)
        refusals = copy / "state" / "logs" / "node.log"
        try:
            limit = time.monotonic() + 120
            while not (refusals.exists() and refusals.read_text().count("attempt failed") > 2):
                assert time.monotonic() < limit, (tmp_path / "copy.log").read_text()
                time.sleep(0.5)
            at = local.status.round
            local.wait(lambda s: s.round >= at + 2 or s.state != "running")
        finally:
            process.terminate()
            process.wait(30)
        assert local.status.state == "running"
        assert not (copy / "state" / "logs" / "app.log").exists(), "the copy was given a message"
        assert all(row.cohort == (0, 1, 2) for row in load(local.server / "run").rounds)
