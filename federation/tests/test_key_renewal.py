"""A silo's key renewal: made, certified, swapped at the server and put into use, in the middle of a
study.
"""

import shutil
import subprocess
from pathlib import Path

import pytest

from command_line import command
from federation_in_process import audited, deployed, equal
from pomona.core.errors import ConfigError, LockedError, ProtocolError
from pomona.record.run_folder import load
from pomona.scenario import Scenario
from pomona.storage.lock import locked
from pomona_federation import certificates, keys
from pomona_federation.agreement import Federation
from pomona_federation.audit_log import Audit, complete_lines
from pomona_federation.installation.key_renewal import certify, make_next_key, use
from pomona_federation.messages.message_bodies import CertifiedKey, Renewal
from pomona_federation.provision.provision import add
from pomona_federation.rehearsal.run import local_federation
from pomona_federation.server.member_registry import MemberRegistry
from pomona_federation.server.registry_admin import admit, dismiss, members, renew_key
from pomona_federation.server.server_app import ServerStatusFile
from pomona_federation.server.superlink_client import pem
from pomona_federation.silo import preflight, state_origin
from test_faults import counted
from test_hostile_server import Server, noise
from test_real_faults import check, finished

pytestmark = pytest.mark.long

EVERYBODYS = {"name": "apple"}  # each gets the rows of all others, in each round


def always_member(*_):
    return "member"


def certified(kits, name):
    """A silo's next key, made and certified; the lead's folder."""
    public, fingerprint = make_next_key(kits / name)
    certified_key = certify(kits, name, public)
    assert certified_key.fingerprint == fingerprint
    return certified_key.folder


def renewed(kits, name):
    """A complete renewal; the silo's kit continues with its next key."""
    folder = certified(kits, name)
    renew_key(kits / "server", name, folder / f"{name}.pub")
    use(kits / name, folder, always_member)


def in_round(world, number, act):
    """Do something once a round is committed."""
    round_ = ServerStatusFile.on_round_end

    def rounds(news, row, evaluations):
        round_(news, row, evaluations)
        if row.round == number:
            act()

    world.patch.setattr(ServerStatusFile, "on_round_end", rounds)


# In a study.


@pytest.mark.parametrize("twice", [False, True])
def test_a_silo_goes_on_with_another_key_and_nobody_is_absent(world, twice):
    """In round 3 others still train with its row of round 2, which the old key signed; afterwards
    with the new key's.

    Flower gives a new key a new node.
    """
    federation = world.federation(EVERYBODYS, run={"rounds": 5})

    def renew():
        for _ in range(1 + twice):
            renewed(federation.kits, "silo-0")
        federation.grid.folders[20] = federation.grid.folders.pop(10)

    in_round(world, 2, renew)
    federation.run()
    assert {r.cohort for r in load(federation.server / "run").rounds} == {(0, 1, 2)}
    assert equal(deployed(federation), world.simulated(federation))
    entry = MemberRegistry(federation.server / "run", Federation.load(federation.toml)).entries[0]
    public = keys.public(federation.kits / "silo-0" / "keys" / "silo.pub")
    assert (entry.key.encode(), len(entry.earlier)) == (public.strip(), 1 + twice)
    assert members(federation.server)["silo-0"] == pem(public.decode())
    for name in ("silo-1", "silo-2"):
        assert keys.public(federation.kits / name / "keys" / "peers" / "silo-0.pub") != public, (
            "its kit stays as it was"
        )
        assert (federation.kits / name / "state" / "renewed.json").exists()


def test_the_key_before_is_refused_from_the_swap_on(world):
    """The silo has not taken its next key into use: absent until it does, with its state."""
    federation = world.federation(EVERYBODYS, run={"rounds": 5})
    folders = []

    def swap():
        folders.append(certified(federation.kits, "silo-0"))
        renew_key(federation.server, "silo-0", folders[0] / "silo-0.pub")

    in_round(world, 1, swap)
    in_round(world, 3, lambda: use(federation.kits / "silo-0", folders[0], always_member))
    trained = counted(world.patch)
    federation.run()
    cohorts = {r.round: r.cohort for r in load(federation.server / "run").rounds}
    trio, pair = (0, 1, 2), (1, 2)
    assert cohorts == {1: trio, 2: pair, 3: pair, 4: trio, 5: trio}
    assert equal(deployed(federation), world.simulated(federation, {(2, 0), (3, 0)}))
    refused = audited(federation.server / "run", "unused")
    assert {r["silo"] for r in refused} <= {"silo-0", "node 10"}
    assert refused
    assert (4, 0) in trained


def renewals_and_a_newcomer(world, federation):
    """After round 1 a founder renews its key and "late" joins, with silo-2's data; after round 3
    that one renews its own.
    """
    kits, south = federation.kits, federation.kits / "silo-2"
    text = (south / "silo.toml").read_text()

    def join():
        renewed(kits, "silo-0")
        federation.grid.folders[20] = federation.grid.folders.pop(10)
        add(kits, "late")
        shutil.copytree(south / "data", kits / "late" / "data", dirs_exist_ok=True)
        silo_text = text.replace('name = "silo-2"', 'name = "late"', 1)
        (kits / "late" / "silo.toml").write_text(silo_text)
        admit(federation.server, "late", kits / "server" / "keys" / "late.pub")
        federation.grid.folders[30] = kits / "late"

    def renew_late():
        renewed(kits, "late")
        federation.grid.folders[40] = federation.grid.folders.pop(30)

    in_round(world, 1, join)
    in_round(world, 3, renew_late)


def test_a_newcomers_key_is_renewed_and_a_newcomer_meets_a_renewed_silo(world):
    federation = world.federation(EVERYBODYS, run={"rounds": 4}, places=4)
    renewals_and_a_newcomer(world, federation)
    federation.run()
    assert [r.cohort for r in load(federation.server / "run").rounds] == [
        (0, 1, 2),
        *[(0, 1, 2, 3)] * 3,
    ]


# A server that hides a renewal, invents one, or goes back behind one; silo-1 is asked, silo-0's key
# was renewed.


@pytest.fixture
def relay(world):
    """A server that relays single silos' models."""
    return Server(world.federation({"name": "apple"}, run={"rounds": 9}, places=4))


def renewal_of(relay, count=1):
    """The introduction of silo-0's renewed keys, and for each of its keys a function that signs a
    row with it.
    """
    kits = relay.federation.kits
    kit, private_keys = kits / "silo-0", []
    state_origin.mark(kit)  # as if it had been made here
    for _ in range(count + 1):
        private_keys.append((kit / "keys" / "silo.key").read_bytes())
        if len(private_keys) <= count:
            renewed(kits, "silo-0")
    entry = MemberRegistry(kits / "server" / "run", relay.federation_settings).entries[0]
    every = (*entry.earlier, CertifiedKey(key=entry.key, certificate=entry.certificate))

    def signed(key_number, row, number):
        (kit / "keys" / "silo.key").write_bytes(private_keys[key_number])
        return relay.signed("silo-0", row, number)

    return Renewal(silo="silo-0", keys=every), signed


@pytest.fixture
def send(relay):
    """Give silo-1 a row of silo-0's in a round's task."""
    relay.federation_settings = Federation.load(relay.federation.toml)

    def give(number, row, origin, *renewals):
        return relay.ask(
            *relay.cores({0: row}, {0: origin}, number=number, settled=0, renewals=renewals)
        )

    return give


def test_an_earlier_key_holds_for_rows_from_before_and_no_others(relay, send):
    renewal, signed = renewal_of(relay)
    send(2, noise(1), signed(0, noise(1), 1))
    send(3, noise(2), signed(0, noise(2), 2), renewal)  # from before the key was shown
    send(4, noise(2), signed(0, noise(2), 2), renewal)  # silo-0 was absent since
    with pytest.raises(ProtocolError, match="not silo-0's"):
        send(5, noise(3), signed(0, noise(3), 3), renewal)
    send(5, noise(3), signed(1, noise(3), 3), renewal)
    with pytest.raises(ProtocolError, match="older than an earlier one"):
        send(6, noise(2), signed(0, noise(2), 2), renewal)


def test_each_of_several_keys_has_its_rounds(relay, send):
    renewal, signed = renewal_of(relay, 2)
    first = renewal.model_copy(update={"keys": renewal.keys[:2]})
    # the second key holds from round 2 on, the third from 4
    send(2, noise(1), signed(0, noise(1), 1), first)
    send(4, noise(2), signed(1, noise(2), 2), renewal)
    for key_number, number in ((0, 2), (0, 3), (1, 4), (0, 4)):
        with pytest.raises(ProtocolError, match="not silo-0's"):
            send(5, noise(9), signed(key_number, noise(9), number), renewal)
    send(5, noise(3), signed(1, noise(3), 3), renewal)
    send(6, noise(5), signed(2, noise(5), 5), renewal)


def test_a_renewal_without_the_authoritys_word_or_backwards_is_refused(relay, send):
    renewal, signed = renewal_of(relay)
    old, new = renewal.keys
    foreign = certificates.authority("rehearsal")
    cert = keys.certify(foreign, "rehearsal", "silo-0", new.key.encode(), 1).decode().strip()
    alike = keys.certify(
        keys.Pair(
            *((relay.federation.kits / "authority" / n).read_bytes() for n in ("ca.key", "ca.crt"))
        ),
        "rehearsal",
        "silo-0",
        new.key.encode(),
        0,
    )
    for pair in (
        (old, new.model_copy(update={"certificate": cert})),
        (old, new.model_copy(update={"certificate": ""})),
        (old.model_copy(update={"certificate": ""}), new),
        (new, old),
        (old, old),
        (old, new.model_copy(update={"certificate": alike.decode().strip()})),
    ):
        forged = Renewal(silo="silo-0", keys=pair)
        with pytest.raises(ProtocolError, match=r"certificates of its keys|is older than the one"):
            send(2, noise(1), signed(1, noise(1), 1), forged)
    with pytest.raises(ProtocolError, match="certificates of its keys"):
        send(2, noise(1), signed(1, noise(1), 1), renewal.model_copy(update={"silo": "silo-2"}))
    send(2, noise(1), signed(1, noise(1), 1), renewal)


def test_what_was_shown_once_is_not_hidden_again(relay, send):
    """Not in this study, nor in another one, in which nothing was seen of anybody yet."""
    renewal, signed = renewal_of(relay, 2)
    first = renewal.model_copy(update={"keys": renewal.keys[:2]})
    send(2, noise(1), signed(2, noise(1), 1), renewal)
    for _ in range(2):
        with pytest.raises(ProtocolError, match="no longer shown"):
            send(3, noise(2), signed(0, noise(2), 2))
        with pytest.raises(ProtocolError, match="is older than"):
            send(3, noise(2), signed(1, noise(2), 2), first)
        (relay.kit() / "state" / "seen.json").unlink(missing_ok=True)
    send(3, noise(2), signed(2, noise(2), 2), renewal)


# The commands.


@pytest.fixture
def kits(world):
    return world.federation().kits


def test_the_commands_say_whom_to_send_what(kits, capsys):
    north = kits / "silo-0"
    key_before = (north / "keys" / "silo.key").read_bytes()
    assert command("silo", "renew-key", "--folder", str(north)) == 0
    fingerprint = keys.fingerprint((north / "keys" / "next.pub").read_bytes())
    output = capsys.readouterr().out
    assert fingerprint in output
    assert "pomona deploy renew-key" in output
    public = str(north / "keys" / "next.pub")
    assert command("deploy", "renew-key", "silo-0", "--key", public, "--out", str(kits)) == 0
    output = capsys.readouterr().out
    assert fingerprint in output
    assert "pomona server renew-key silo-0" in output
    folder = kits / "renewed" / "silo-0" / "1"
    assert {p.name for p in folder.iterdir()} == {"silo-0.pub", "silo-0.cert", "silo.crt"}
    arguments = (
        "server",
        "renew-key",
        "silo-0",
        "--key",
        str(folder / "silo-0.pub"),
        "--folder",
        str(kits / "server"),
    )
    assert command(*arguments) == 0
    assert fingerprint in capsys.readouterr().out
    assert command(*arguments) == ConfigError.code
    assert "not newer than the key that silo-0 has" in capsys.readouterr().err
    assert command("silo", "use-key", str(folder), "--folder", str(north)) == ProtocolError.code, (
        "no server is up"
    )
    assert "Nothing was changed" in capsys.readouterr().err
    assert (north / "keys" / "silo.key").read_bytes() == key_before
    assert use(north, folder, always_member) == fingerprint
    assert (north / "keys" / "silo.key").read_bytes() != key_before
    assert not (north / "keys" / "next.key").exists()
    lines = {line.check: line for line in preflight.run(north)[0]}
    assert lines["key"].result == "ok"
    assert (north / "keys" / "silo.key").stat().st_mode & 0o077 == 0
    assert [r["key"] for r in audited(north / "state", "renewed")] == [fingerprint]
    state_origin.ensure_origin(north)  # the state is the silo's own, which never started


def test_a_fingerprint_is_the_one_of_ssh_keygen(kits):
    if not shutil.which("ssh-keygen"):
        pytest.skip("ssh-keygen is not installed")
    path = kits / "silo-0" / "keys" / "silo.pub"
    output = subprocess.run(
        ["ssh-keygen", "-l", "-f", str(path)], capture_output=True, text=True, check=True
    ).stdout
    assert output.split()[1] == keys.fingerprint(path.read_bytes())


@pytest.mark.parametrize(("cls", "op"), [(Audit, "write"), (Path, "unlink"), (Path, "replace")])
def test_a_renewal_that_is_killed_at_its_end_goes_on_and_is_in_the_log(kits, monkeypatch, cls, op):
    north = kits / "silo-0"
    public, fingerprint = make_next_key(north)
    folder = certify(kits, "silo-0", public).folder
    renew_key(kits / "server", "silo-0", folder / "silo-0.pub")
    original = getattr(cls, op)

    def killed(target, *arguments, **options):
        if cls is Audit or target.name.startswith("next."):
            raise KeyboardInterrupt
        return original(target, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(cls, op, killed)
        with pytest.raises(KeyboardInterrupt):
            use(north, folder, always_member)
    assert use(north, folder, always_member) == fingerprint
    audit = north / "state" / "audit.jsonl"
    assert {r["key"] for r in complete_lines(audit) if r["event"] == "renewed"} == {fingerprint}
    renewed(kits, "silo-0")
    assert keys.fingerprint(keys.public(north / "keys" / "silo.pub")) != fingerprint


def test_a_next_key_whose_public_half_was_not_written_is_gone_on_with(kits, monkeypatch):
    north = kits / "silo-0"
    replace = keys.replace

    def killed(path, content):
        if path.suffix == ".pub":
            raise KeyboardInterrupt
        replace(path, content)

    with monkeypatch.context() as patch:
        patch.setattr(keys, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            make_next_key(north)
    private_key = (north / "keys" / "next.key").read_bytes()
    public, fingerprint = make_next_key(north)
    assert (north / "keys" / "next.key").read_bytes() == private_key
    assert fingerprint == keys.fingerprint(
        keys.line(keys.private_key(public.with_suffix(".key")).public_key())
    )


def test_what_cannot_be_renewed_is_said(kits, tmp_path):
    public, _ = make_next_key(kits / "silo-0")
    with pytest.raises(ConfigError, match="already exists"):
        make_next_key(kits / "silo-0")
    with pytest.raises(ConfigError, match="no kit of a silo 'nobody'"):
        certify(kits, "nobody", public)
    with pytest.raises(ConfigError, match="has or had"):
        certify(kits, "silo-0", kits / "silo-1" / "keys" / "silo.pub")
    folder = certify(kits, "silo-0", public).folder
    with pytest.raises(ConfigError, match="has or had"):
        certify(kits, "silo-1", public)
    with pytest.raises(ConfigError, match="the same key"):
        add(kits, "late", public)
    for name in ("silo-1", "nobody"):
        with pytest.raises((ConfigError, ProtocolError), match=r"certified|no silo"):
            renew_key(kits / "server", name, folder / "silo-0.pub")
    dismiss(kits / "server", "silo-0")
    with pytest.raises(ConfigError, match="is revoked"):
        renew_key(kits / "server", "silo-0", folder / "silo-0.pub")


def test_a_key_is_taken_into_use_whole_or_not_at_all(kits, monkeypatch):
    north = kits / "silo-0"
    with pytest.raises(ConfigError, match=r"next\.key is missing"):
        use(north, kits, always_member)
    folder = certified(kits, "silo-0")
    files_before = {p: p.read_bytes() for p in north.rglob("*") if p.is_file()}
    for answer in ("unknown", "revoked", "unsaid"):
        with pytest.raises(ProtocolError, match=rf"\({answer}\).*server renew-key silo-0"):
            use(north, folder, lambda *_, word=answer: word)
    with pytest.raises(ConfigError, match=r"silo-0\.cert cannot be read"):
        use(north, kits / "renewed", always_member)
    with locked(north / "state"), pytest.raises(LockedError):
        use(north, folder, always_member)
    (kits / "mixed").mkdir()
    shutil.copytree(folder, kits / "mixed", dirs_exist_ok=True)
    shutil.copy(kits / "silo-1" / "certs" / "silo.crt", kits / "mixed" / "silo.crt")
    with pytest.raises(ConfigError, match="is not a certificate of"):
        use(north, kits / "mixed", always_member)
    files_after = {p: p.read_bytes() for p in north.rglob("*") if p.is_file() and p.name != ".lock"}
    assert {p: c for p, c in files_after.items() if "state" not in p.parts} == files_before
    # Killed after each file that is replaced: called again, it goes on to the same end.
    replace = keys.replace
    for count in range(4):
        left = [count]

        def stops(path, content, left=left):
            if not left[0]:
                raise KeyboardInterrupt
            left[0] -= 1
            replace(path, content)

        monkeypatch.setattr(keys, "replace", stops)
        with pytest.raises(KeyboardInterrupt):
            use(north, folder, always_member)
    monkeypatch.setattr(keys, "replace", replace)
    use(north, folder, always_member)
    assert next(line for line in preflight.run(north)[0] if line.check == "key").result == "ok"


@pytest.mark.slow
def test_a_running_federation_with_mutual_tls_renews_a_key(tmp_path, monkeypatch):
    """With real processes: the silo's old node is refused, the next key connects, others take its
    rows.
    """
    from federation_in_process import settings

    config = settings(method={"name": "apple", "budget": 1}, rounds=5)
    options = {"deadline": 240.0, "wait": 240.0, "patience": 200.0, "quorum": 2, "mutual_tls": True}
    with local_federation(Scenario.prepare(config), tmp_path / "local", **options) as local:
        for owner in ("server", *local.names):
            local.start(owner)
        local.wait(lambda status: status.round >= 1)
        kits, name = local.folder / "kits", local.names[0]
        folder = certified(kits, name)
        with pytest.raises(LockedError):
            use(kits / name, folder)
        local.process(name).terminate()
        local.process(name).wait(20)
        with pytest.raises(ProtocolError, match="unknown"):
            use(kits / name, folder)
        renew_key(kits / "server", name, folder / f"{name}.pub")
        use(kits / name, folder)
        local.start(name)
        status = local.wait(finished, 600)
        assert (status.state, status.round) == ("finished", 5)
        cohorts = check(local, monkeypatch, complete=False)
    assert cohorts[5] == (0, 1, 2)
