"""A federation in this process: the real kits, the unchanged Flower apps, and a grid without a
network.
"""

import os
import tomllib
from itertools import count
from unittest import mock

import pytest
import tomli_w
from flwr.app import Context, Error, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity
from safetensors.torch import load_file

import pomona
from pomona.config import resolve
from pomona.federation.transport import Inline
from pomona.scenario import Scenario
from pomona_federation.audit_log import complete_lines
from pomona_federation.flower_apps import client_app, server_app
from pomona_federation.provision.provision import provision
from pomona_federation.rehearsal.inputs import data_section, federation_file, write_rows
from pomona_federation.server import flower_bus
from pomona_federation.server.server_app import ServerStatusFile
from pomona_federation.silo.settings import use_kit
from pomona_federation.study import KIT
from pomona_federation.supervision.supervisor import SERVER_KIT

APPLE = {"name": "apple", "budget": 1}
PRIVATE = {
    "noise_multiplier": 1.0,
    "max_grad_norm": 1.0,
    "delta": 1e-3,
    "seed": 1,
    "acknowledge": ["metrics", "sample-counts", "unlimited-epsilon"],
}


def settings(**overrides):
    """A small run on embedded data."""
    tree = {
        "data": {"name": "digits", "train_limit": 300, "test_limit": 100},
        "partition": {"name": "dirichlet", "beta": 1.0, "min_size": 8},
        "model": {"name": "mlp", "hidden": [8]},
        "batch_size": 16,
        "lr": 0.1,
        "rounds": 3,
        "clients": 3,
        "workers": 1,
        "engine": "torch",
        "largest_share": 0.5,  # the default of a federation
    }
    return resolve(tree, overrides)


def simulation_of(scenario, files):
    """The configuration of a simulation on all silos' files, with the same numbers as the
    scenario.
    """
    tree = {
        k: v for k, v in scenario.config.tree().items() if k not in ("data", "partition", "clients")
    }
    return resolve(tree, {"data": data_section(scenario, files), "partition": {"name": "natural"}})


class Federation:
    """Kits in a folder, with each client's rows in its silo; and the same federation as a
    simulation.
    """

    def __init__(self, folder, config, **options):
        scenario = Scenario.prepare(config)
        self.toml = folder / "federation.toml"
        options = {"deadline": 60.0, "wait": 5.0, "quorum": 1, **options}
        self.toml.write_text(federation_file(scenario, "127.0.0.1:28443", **options))
        self.kits = folder / "kits"
        provision(self.toml, self.kits)
        self.names = [s["name"] for s in tomllib.loads(self.toml.read_text())["silo"]]
        files = {
            n: write_rows(scenario, i, self.kits / n / "data") for i, n in enumerate(self.names)
        }
        for name in self.names:
            path = self.kits / name / "silo.toml"
            silo_settings = tomllib.loads(path.read_text()) | {
                "data": data_section(scenario, {name: files[name]})
            }
            path.write_text(tomli_w.dumps(silo_settings))
        self.simulation = simulation_of(scenario, files)
        self.grid = LocalGrid({10 + i: self.kits / n for i, n in enumerate(self.names)})

    @property
    def server(self):
        return self.kits / "server"

    def run(self, study=KIT):
        """Run the ServerApp to the end of a study."""
        run_study(self.grid, self.server, study)


def run_study(grid, kit, study=KIT):
    """Run the ServerApp of a server's kit to the end of a study."""
    with (
        mock.patch.dict(os.environ, {SERVER_KIT: str(kit)}),
        # rounds here are shorter than a second, in which a silo may come or go
        mock.patch.object(flower_bus, "ONLINE_SECONDS", 0.0),
    ):
        server_app(grid, Context(1, 0, {}, RecordDict(), {"study": study}))


class LocalGrid(Grid):
    """Calls the ClientApp for each message.

    ``faults`` may change or duplicate a reply, or give the reason for a missing one; ``gone`` are
    nodes without a network.
    """

    def __init__(self, folders):
        # as Flower sets in an app's process
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = (1, 1, 1)
        self.folders, self.faults, self.sent, self.gone = dict(folders), [], [], set()
        self._ids, self._replies = count(1), {}

    def set_run(self, run):
        """Accept a single run."""

    @property
    def run(self):
        """Unused by Pomona's apps."""
        pytest.fail("Pomona called an unused method of Flower's grid")

    def create_message(self, content, message_type, dst_node_id, group_id, ttl=None):
        """Unused by Pomona's apps."""
        pytest.fail("Pomona called an unused method of Flower's grid")

    def get_node_ids(self):
        """The connected nodes."""
        return [node for node in self.folders if node not in self.gone]

    def push_messages(self, messages):
        """Answer each message at once."""
        tickets = []
        for message in messages:
            ticket = str(next(self._ids))
            message.metadata.__dict__["_message_id"] = ticket
            self.sent.append(message)
            self._replies[ticket] = self._served(message)
            tickets.append(ticket)
        return tickets

    def _served(self, message):
        node = message.metadata.dst_node_id
        use_kit(self.folders[node])  # one silo a process, but here
        reply = client_app(message, Context(1, node, {}, RecordDict(), {}))
        for fault in self.faults:
            reply = fault(message, reply)
        return reply

    def pull_messages(self, message_ids):
        """The available answers."""
        replies = [self._replies.pop(i, None) for i in message_ids]
        return [
            r
            for reply in replies
            for r in (reply if isinstance(reply, list) else [reply])
            if r is not None
        ]

    def send_and_receive(self, messages, *, timeout=None):
        """Unused by Pomona's apps."""
        pytest.fail("Pomona called an unused method of Flower's grid")


def lost(message, code=5):
    """Flower's error reply for a node that is gone."""
    return Message(Error(code, "gone"), reply_to=message)


class World:
    """A federation and its simulation in one test's folder."""

    def __init__(self, folder, monkeypatch):
        self.folder, self.patch = folder, monkeypatch

    def federation(self, method=APPLE, run=(), **options):
        """A federation of three silos, before its first round."""
        return Federation(self.folder, settings(method=method, **dict(run)), **options)

    def simulated(self, federation, absent=(), membership=None):
        """The simulation's personal models, with clients absent in rounds as in {(round, client),
        ...}.
        """
        visit = Inline.visit

        def visits(transport, request, downlink):
            replies = visit(transport, request, downlink)
            return [
                r
                for r in replies
                if not request.trains or (request.round.number, r.reply.client) not in absent
            ]

        config = federation.simulation
        if membership:
            config = config.model_copy(update={"membership": membership})
        with self.patch.context() as patch:
            patch.setattr(Inline, "visit", visits)
            folder = self.folder / "simulation"
            pomona.run(config, folder)
        return loaded(
            {
                n: folder / "models" / f"client-{i:02d}.safetensors"
                for i, n in enumerate(federation.names)
            }
        )


def deployed(federation):
    """The silos' personal models."""
    return loaded(
        {
            n: federation.kits / n / "state" / "models" / "personal.safetensors"
            for n in federation.names
        }
    )


def audited(folder, event):
    """The lines of an event in a folder's audit log."""
    return [line for line in complete_lines(folder / "audit.jsonl") if line["event"] == event]


def loaded(paths):
    """Models by name, without silos that never took part."""
    return {n: load_file(path) for n, path in paths.items() if path.exists()}


def equal(expected, actual):
    """Whether models are equal bit by bit."""
    return expected.keys() == actual.keys() and all(
        expected[n].keys() == actual[n].keys()
        and all(expected[n][k].equal(actual[n][k]) for k in expected[n])
        for n in expected
    )


def stopped_after(federation, monkeypatch, number):
    """Run a federation until a round is committed."""
    round_ = ServerStatusFile.on_round_end

    def stop(news, row, evaluations):
        round_(news, row, evaluations)
        if row.round == number:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ServerStatusFile, "on_round_end", stop)
        with pytest.raises(KeyboardInterrupt):
            federation.run()
