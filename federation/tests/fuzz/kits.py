"""Files of a server's and of a silo's kit, read by the commands and processes that use them."""

import shutil
from functools import partial

from edits import JSON, LINES, TOML, Valid, inputs
from receiving import Mailbox
from targets import TARGETS, Target, command, file, target

from pomona_federation.audit_log import Audit
from pomona_federation.json_store import reseal_files
from pomona_federation.messages.message_bodies import Task, read
from pomona_federation.server.registry_admin import admit, dismiss, members
from pomona_federation.server.server_app import coordinate
from pomona_federation.silo.client_app import ClientApp
from pomona_federation.silo.silo_in_study import Silo

# A server's kit.


def shown_by_server(folder):
    command("server", "status", "--folder", folder)
    command("server", "audit", "--folder", folder)
    command("server", "audit", "--verify", "--folder", folder)


def run_by_server(folder):
    """Run a server that no silo contacts, until it gives up."""
    coordinate(folder, Deaf(None), pause=0.0)


class Deaf(Mailbox):
    """A message bus without nodes."""

    def online(self):
        return frozenset()


def changed_by_server(folder):
    members(folder)
    dismiss(folder, "silo-1")


SERVER = {
    "run/roster.json": JSON, "run/live.json": JSON, "run/waiting.json": JSON, "run/status.json": JSON, "run/audit.jsonl": LINES,
    "federation.toml": TOML, "certs/server.crt": None,
}  # fmt: skip
RUNNING = {
    "run/run.json": JSON, "run/events.jsonl": LINES, "run/config.toml": TOML, "run/roster.json": JSON,
    "run/audit.jsonl": LINES, "run/checkpoints/*2-*": None, "federation.toml": TOML,
}  # fmt: skip


def of_server(prefix, path, format_, act, world):
    return file(
        world,
        world.federation.server,
        f"{prefix}-{path.replace('/', '-').strip('*')}",
        path,
        format_,
        act,
    )


TARGETS += [
    Target(
        f"{path} of a server, shown",
        13,
        partial(of_server, "shown", path, format_, shown_by_server),
    )
    for path, format_ in SERVER.items()
]
TARGETS += [
    Target(
        f"{path} of a server, gone on with",
        5,
        partial(of_server, "gone-on", path, format_, run_by_server),
    )
    for path, format_ in RUNNING.items()
]
TARGETS += [
    Target("roster.json of a server, changed", 20, partial(of_server, "changed", "run/roster.json", JSON, changed_by_server))
]  # fmt: skip


@target("key of a newcomer, admitted by a server", 5)
def newcomer(world):
    anew = world.copy(world.federation.server, "admits")
    valid = b"".join((anew() / "keys" / f"silo-0.{end}").read_bytes() for end in ("pub", "cert"))

    def act(data):
        folder = anew()
        key, _, certificate = data.partition(b"\n")
        (folder / "late.pub").write_bytes(key)
        (folder / "late.cert").write_bytes(certificate)
        admit(folder, "late", folder / "late.pub")

    return inputs(Valid(valid)), act


# A silo's kit.

STATE = {
    "state/agreement.json": JSON, "state/asked.json": JSON, "state/seen.json": JSON, "state/rounds.jsonl": LINES,
    "state/audit.jsonl": LINES, "state/checkpoints/*1-*": None,
}  # fmt: skip
KIT = {
    "silo.toml": TOML, "federation.toml": TOML, "keys/silo.key": None, "keys/peers/silo-0.pub": None, "certs/ca.crt": None,
}  # fmt: skip


def of_silo(path, format_, exact, world):
    """A kit with one damaged file, asked for the second round."""
    request = world.exchanges["second"].request
    task, right = read(Task, request.body), world.exchanges["second"].answer.enclosed["uplink"]
    kit = world.folder / f"kit-{path.replace('/', '-').strip('*')}"
    shutil.copytree(world.kit, kit)
    shutil.rmtree(kit / "state")
    shutil.copytree(world.exchanges["first"].state, kit / "state")

    def act(folder):
        reseal_files(folder / "state")
        answer, uplink = ClientApp(Silo(folder)).answer(task, request.enclosed)
        assert not exact or uplink == right or answer.missing

    return file(world, kit, f"silo-{path.replace('/', '-').strip('*')}", path, format_, act)


TARGETS += [
    Target(f"{path} of a silo that is asked", 10, partial(of_silo, path, format_, exact))
    for files, exact in ((STATE, True), (KIT, False))
    for path, format_ in files.items()
]


def inspected_kit(world, path, format_):
    """A kit with one damaged file, inspected by its owner."""
    kit = world.folder / f"looked-at-{path.replace('/', '-')}"
    shutil.copytree(world.kit, kit)
    command("silo", "report", "--folder", kit)  # trains alone, once
    (kit / "state" / "node" / "node.json").write_text(
        '{"state": "connected", "since": "2026-01-01", "restarts": 1}'
    )

    def act(folder):
        command("silo", "status", "--folder", folder)
        command("silo", "report", "--folder", folder)

    return file(world, kit, f"looks-{path.replace('/', '-')}", path, format_, act)


INSPECTED = {
    "state/rounds.jsonl": LINES, "state/node/node.json": JSON, "state/node/alone.json": JSON, "silo.toml": TOML,
    "federation.toml": TOML,
}  # fmt: skip
TARGETS += [
    Target(
        f"{path} of a silo, shown",
        13,
        lambda world, path=path, format_=format_: inspected_kit(world, path, format_),
    )
    for path, format_ in INSPECTED.items()
]


@target("audit.jsonl, written on", 5)
def audit(world):
    def act(folder):
        with Audit(folder / "audit.jsonl") as log:
            log.write("note", text="on")

    return file(world, world.federation.server / "run", "audit", "audit.jsonl", LINES, act)
