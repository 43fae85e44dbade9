"""Methods inside a plain Flower app: apps as in Flower's documentation, on its simulation engine, and
on a grid that loses and changes messages.
"""

import json
import os
import re
import socket
import subprocess
import sys
import time
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation
from flwr.supercore.task_identity import TaskIdentity
from sklearn.linear_model import LogisticRegression
from torch import nn
from torch.nn.functional import cross_entropy

from pomona import Config
from pomona.core.errors import ConfigError, ProtocolError, QuorumError
from pomona.data.memory import from_clients
from pomona.federation.transport import Inline
from pomona.objective import objective
from pomona.scenario import Scenario
from pomona.simulation import simulate
from pomona_federation.flower import personalize, strategy
from pomona_federation.flower import records as wire

EXAMPLE = Path(__file__).parents[2] / "examples/flower_app"
LR, ROUNDS, SIZE, CLIENTS = 0.1, 3, 8, 3
EXACT = [
    "fedavg",
    "fedamp",
    "apple",
    {"name": "apple", "budget": 1},
    {"name": "fedala", "sample_share": 1.0},
    "fedper",
    "ditto",
]


def in_order(rows, pass_):
    for _ in range(pass_.passes.epochs):
        yield from rows.split(pass_.size)


@pytest.fixture
def scenario(monkeypatch):
    """Three clients whose batches come in order, by method."""
    monkeypatch.setattr(objective, "ordinary", in_order)
    draw = np.random.default_rng(0)
    x = draw.normal(size=(CLIENTS, 40, 6)).astype(np.float32)
    data = from_clients(
        {f"client {k}": (x[k] + k, (x[k].sum(1) > 0).astype(int)) for k in range(CLIENTS)},
        test_share=0.2,
    )

    def prepared(method):
        run = {"rounds": ROUNDS, "lr": LR, "batch_size": SIZE, "workers": 1, "engine": "torch"}
        model = {"name": "mlp", "hidden": [7]}
        return Scenario.prepare(Config(method=method, data=data, model=model, **run))

    return prepared


def train_fn(net, trainloader, epochs, lr, device):
    """As in Flower's quickstart for PyTorch."""
    net.to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=lr)
    net.train()
    running_loss = 0.0
    for _ in range(epochs):
        for x, y in trainloader:
            optimizer.zero_grad()
            loss = cross_entropy(net(x.to(device)), y.to(device))
            loss.backward()
            optimizer.step()
            running_loss += loss.item()
    return running_loss / len(trainloader)


def test_fn(net, testloader, device):
    with torch.no_grad():
        answers = [(net(x), y) for x, y in testloader]
    loss = sum(cross_entropy(o, y, reduction="sum").item() for o, y in answers)
    correct = sum((o.argmax(1) == y).sum().item() for o, y in answers)
    samples = sum(len(y) for _, y in answers)
    return loss / samples, correct / samples


test_fn.__test__ = False


class App:
    """The app of a scenario; ``models`` are the clients' as ``personalize`` leaves them."""

    def __init__(self, scenario):
        self.scenario, self.models, self.client = scenario, {}, ClientApp()
        data = scenario.objective().data

        def loader(i, split):
            size = SIZE if split == "train" else 512
            return [data.gather(index) for index in data.rows[split][i].split(size)]

        @self.client.train()
        def train(msg, context):
            model, i = scenario.module(), context.node_config["partition-id"]
            for parameter in model.parameters():
                parameter.data.zero_()  # a client's own initial values do not count
            fit = partial(train_fn, epochs=1, lr=msg.content["config"]["lr"], device="cpu")
            loaders = {split: loader(i, split) for split in ("train", "test")}
            test = partial(test_fn, device="cpu")
            reply = personalize(msg, context, model, loaders, train=fit, test=test)
            self.models[i] = {k: t.clone() for k, t in model.state_dict().items()}
            return reply

    def started(self, grid, method, **settings):
        model = self.scenario.module()
        chosen = strategy(method, model, **{"min_available_nodes": CLIENTS, **settings})
        arrays, config = ArrayRecord(model.state_dict()), ConfigRecord({"lr": LR})
        return chosen.start(
            grid=grid, initial_arrays=arrays, num_rounds=ROUNDS, train_config=config, timeout=60
        )

    def grid(self, *faults):
        return LocalGrid(self.client, faults)


class LocalGrid(Grid):
    """Calls the ClientApp with each node's own context; ``faults`` change a message or its reply."""

    def __init__(self, app, faults):
        TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
        self.app, self.faults, self._ids = app, faults, count(1)
        # nodes are in another order than their parts of the data
        self.contexts = {
            900 - i: Context(1, 900 - i, {"partition-id": i}, RecordDict(), {})
            for i in range(CLIENTS)
        }

    run = property(lambda self: None)

    def set_run(self, run): ...

    def create_message(self, *_, **__): ...

    def push_messages(self, messages): ...

    def pull_messages(self, message_ids): ...

    def get_node_ids(self):
        return list(self.contexts)

    def send_and_receive(self, messages, *, timeout=None):
        return [reply for m in messages if (reply := self.served(m)) is not None]

    def served(self, message):
        message.metadata.__dict__["_message_id"] = str(next(self._ids))
        node = message.metadata.dst_node_id
        TaskIdentity.node_id = node
        try:
            reply = self.app(message, self.contexts[node])
        except ProtocolError as fault:
            reply = Message(Error(2, str(fault)), reply_to=message)
        for fault in self.faults:
            reply = fault(self, body(message), node, reply) if reply is not None else None
        return reply


def body(message):
    """What a message says, {} for the greeting."""
    record = message.content.config_records.get(wire.KEY)
    return json.loads(record[wire.BODY]) if record is not None else {}


def equal(models, expected):
    return all(models[i][k].equal(t) for i in expected for k, t in expected[i].items())


@pytest.mark.long
@pytest.mark.parametrize("method", EXACT, ids=str)
def test_same_bits_as_the_simulator(scenario, method):
    prepared = scenario(method)
    expected, app = simulate(prepared), App(prepared)
    result = app.started(app.grid(), method)
    assert equal(app.models, expected.models)
    key = tuple(prepared.config.method.method().card.headline)
    ours, theirs = result.personal.curve(*key), expected.curve(*key)
    assert [e.accuracy for e in ours] == [e.accuracy for e in theirs]
    means = result.evaluate_metrics_clientapp[ROUNDS]
    assert means["accuracy"] == pytest.approx(theirs[-1].mean)
    assert result.train_metrics_clientapp[1]["train_loss"] > 0
    is_global = method in ("fedavg", "ditto") or "fedala" in str(method)
    assert bool(result.arrays) == is_global


@pytest.mark.long
@pytest.mark.parametrize("method", ["fedamp", "apple", "ditto"])
def test_an_answer_that_is_lost_leaves_the_state_before_it(scenario, method, monkeypatch):
    prepared = scenario(method)

    def lost(grid, task, node, reply):
        return None if (task.get("number"), node, task.get("trains")) == (2, 899, True) else reply

    app = App(prepared)
    app.started(app.grid(lost), method, min_train_nodes=2)
    visit = Inline.visit

    def absent(transport, order, rows):
        replies = visit(transport, order, rows)
        return [
            r for r in replies if not order.trains or (order.round.number, r.reply.client) != (2, 1)
        ]

    monkeypatch.setattr(Inline, "visit", absent)
    assert equal(app.models, simulate(prepared).models)


class InlineBackend:
    """The engine's workers without Ray."""

    num_workers = 1

    def __init__(self, _):
        pass

    def build(self, app_fn):
        self.app = app_fn()

    def is_worker_idle(self):
        return True

    def terminate(self): ...

    def process_message(self, message, context):
        # of this process, which is the server's too, as nothing else is sent meanwhile
        server, TaskIdentity.node_id = TaskIdentity.node_id, context.node_id
        try:
            return self.app(message, context), context
        finally:
            TaskIdentity.node_id = server


@pytest.mark.long
def test_on_flowers_simulation_engine(scenario, monkeypatch):
    pytest.importorskip("ray")  # without it Flower's engine ends the process
    module = "flwr.server.superlink.fleet.vce.backend.raybackend"
    monkeypatch.setitem(sys.modules, module, SimpleNamespace(RayBackend=InlineBackend))
    prepared, results = scenario("fedamp"), []
    app, server = App(prepared), ServerApp()

    @server.main()
    def main(grid, context):
        results.append(app.started(grid, "fedamp"))

    run_simulation(server, app.client, num_supernodes=CLIENTS)
    assert equal(app.models, simulate(prepared).models)
    assert results[0].personal.about["clients"] == ["client 0", "client 1", "client 2"]


def changed(name, array):
    """One client's answers of round 2 have another array."""

    def fault(grid, task, node, reply):
        if task.get("number") == 2 and task["trains"] and node == 899:
            reply.content[wire.ARRAYS] = ArrayRecord({name: array})
        return reply

    return fault


def npy(shape, dtype="float32", content=b""):
    """An array whose header says another shape than its bytes have."""
    header = str({"descr": np.dtype(dtype).str, "fortran_order": False, "shape": shape}).encode()
    header = header.ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + content


WIDTH = 6 * 7 + 7 + 7 * 2 + 2
CRAFTED = {
    "another shape": Array(np.zeros(3, np.float32)),
    "another dtype": Array(np.zeros(WIDTH)),
    "not finite": Array(np.full(WIDTH, np.nan, np.float32)),
    "a huge header": Array(
        "float32", (WIDTH,), "numpy.ndarray", npy((10**12,), content=bytes(4 * WIDTH))
    ),
    "an object": Array("object", (1,), "numpy.ndarray", npy((1,), "O", bytes(4 * WIDTH))),
    "no array": Array("float32", (WIDTH,), "pickle", bytes(4 * WIDTH + 100)),
    "too long": Array("float32", (WIDTH,), "numpy.ndarray", bytes(10**6)),
    "far away": Array(np.full(WIDTH, 1e30, np.float32)),
}


@pytest.mark.parametrize("array", CRAFTED.values(), ids=CRAFTED.keys())
def test_a_client_that_sends_other_arrays_counts_as_absent(scenario, array):
    app = App(scenario("fedavg"))
    result = app.started(app.grid(changed("model", array)), "fedavg")
    rounds = result.personal.rounds
    assert [row.cohort for row in rounds] == [(0, 1, 2), (0, 2), (0, 1, 2)]
    assert "client 1" in rounds[1].refused[0]


def otherwise(number=None, /, **changes):
    """Node 899 changes its answers of a round, or its introduction."""

    def fault(grid, task, node, reply):
        if task.get("number") == number and task.get("trains", True) and node == 899:
            record = json.loads(reply.content[wire.KEY][wire.BODY]) | changes
            reply.content[wire.KEY] = ConfigRecord({wire.BODY: json.dumps(record)})
        return reply

    return fault


SCORE = {"model": "local", "when": "trained", "split": "test", "samples": 1}


@pytest.mark.parametrize(
    ("answer", "phrase"),
    [
        ({"samples": 10**9}, "samples"),
        ({"number": 1}, "round 1"),
        ({"scores": [SCORE] * 2}, "not asked"),
        ({"scores": [SCORE | {"model": "other"}]}, "not asked"),
        ({"scores": [SCORE | {"samples": 10**9}]}, "at most"),
        ({"extra": 1}, "extra"),
        ({"loss": "much"}, "loss"),
        ({"fault": "no such optimizer", "refused": True}, "no such optimizer"),
    ],
)
def test_a_client_that_answers_otherwise_counts_as_absent(scenario, answer, phrase):
    app = App(scenario("fedavg"))
    run = app.started(app.grid(otherwise(2, **answer)), "fedavg").personal
    assert [row.cohort for row in run.rounds] == [(0, 1, 2), (0, 2), (0, 1, 2)]
    assert any("client 1" in note.text and phrase in note.text for note in run.notes)
    assert not any(e.model == "other" for e in run.evaluations)


@pytest.mark.parametrize(
    ("change", "phrase"),
    [
        ({"model": {}}, "its model: "),
        ({"samples": {"train": -1}}, "samples"),
        ({"samples": {"train": 0}}, "no training samples"),
        ({"\n": 1}, ": "),
    ],
)
def test_a_client_that_introduces_itself_otherwise_takes_no_part(scenario, change, phrase, caplog):
    app = App(scenario("fedavg"))
    run = app.started(app.grid(otherwise(**change)), "fedavg", min_available_nodes=2).personal
    assert run.about["clients"] == ["client 0", "client 2"]
    (line,) = [r.getMessage() for r in caplog.records if "node 899 takes no part" in r.getMessage()]
    assert phrase in line
    assert line.isprintable()


def test_a_client_that_reports_many_samples_weighs_half_at_most(scenario):
    app = App(scenario("fedavg"))
    boasts = otherwise(samples={"train": 10**12})
    result = app.started(app.grid(boasts), "fedavg")
    assert any("largest_share" in note.text for note in result.personal.notes)
    # what it trains on is not what it reports
    assert [row.cohort for row in result.personal.rounds] == [(0, 2)] * ROUNDS


def test_more_than_half_of_a_round_must_answer(scenario):
    app = App(scenario("fedavg"))

    def lost(grid, task, node, reply):
        return reply if not task or node == 900 else None

    with pytest.raises(QuorumError, match="2 are needed"):
        app.started(app.grid(lost), "fedavg")


def reply_of(app, **changes):
    """A client's reply to a task of the first round of two clients, with changes."""
    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
    model = app.scenario.module()
    task = {
        "settings": {"method": {"name": "apple"}, "rounds": 2},
        "number": 1,
        "client": 0,
        "sizes": [32, 32],
        "trains": True,
        "watched": [],
        "keep": False,
        "best": -1,
        "committed": 0,
        "downlink": {"cores": [0, 1]},
    }
    rows = {"cores.1": Array(np.zeros(WIDTH, np.float32))} | changes.pop("arrays", {})
    content = RecordDict(
        {
            "config": ConfigRecord({"lr": LR}),
            wire.KEY: ConfigRecord({wire.BODY: json.dumps(task | changes)}),
            wire.ARRAYS: ArrayRecord(rows),
            wire.INITIAL: ArrayRecord(model.state_dict()),
        }
    )
    message = Message(content, dst_node_id=1, message_type="train")
    message.metadata.__dict__["_message_id"] = "1"
    context = Context(1, 1, {"partition-id": 0}, RecordDict(), {})
    return json.loads(app.client(message, context).content[wire.KEY][wire.BODY])


@pytest.mark.parametrize(
    ("changes", "phrase"),
    [
        ({}, ""),
        ({"settings": {"method": {"name": "os:system"}, "rounds": 2}}, "not installed here"),
        ({"settings": {"method": {"name": "apple"}, "rounds": 2, "data": "digits"}}, "data"),
        ({"settings": {"method": {"name": "apple"}, "rounds": 0}}, "rounds"),
        ({"client": 2}, "does not have"),
        ({"number": 9}, "does not have"),
        ({"committed": 1}, "does not have its state"),
        ({"downlink": {"cores": [0, 7]}}, "does not have"),
        ({"downlink": {}}, "cores"),
        ({"arrays": {"cores.1": Array(np.zeros(3, np.float32))}}, "cores.1"),
        ({"arrays": {"cores.1": Array(np.full(WIDTH, np.inf, np.float32))}}, "not finite"),
        ({"arrays": {"other": Array(np.zeros(3, np.float32))}}, "other"),
    ],
)
def test_a_server_that_asks_otherwise_gets_a_reason(scenario, changes, phrase):
    answer = reply_of(App(scenario("fedavg")), **changes)
    assert phrase in answer["fault"]
    assert bool(answer["fault"]) == bool(phrase)


@pytest.mark.parametrize("changes", [{"best": -2}, {"sizes": []}, {"other": 1}, {"number": "a"}])
def test_a_task_of_another_form_is_not_read(scenario, changes):
    with pytest.raises(ProtocolError, match=next(iter(changes))):
        reply_of(App(scenario("fedavg")), **changes)


def test_a_node_that_lost_its_state_is_named(scenario):
    def restarted(grid, task, node, reply):
        if task.get("number") == 1 and node == 899:
            grid.contexts[node].state.clear()
        return reply

    app = App(scenario("fedamp"))
    result = app.started(app.grid(restarted), "fedamp")
    assert [row.cohort for row in result.personal.rounds] == [(0, 1, 2), (0, 2), (0, 2)]
    assert any("restarted" in note.text for note in result.personal.notes)


def test_a_second_strategy_in_the_same_app_starts_anew(scenario):
    prepared = scenario("ditto")
    app = App(prepared)
    grid = app.grid()
    app.started(grid, "apple")
    app.started(grid, "ditto")
    assert equal(app.models, simulate(prepared).models)


@pytest.mark.parametrize("name", ["fraction_evaluate", "evaluate_metrics_aggr_fn"])
def test_an_argument_of_flowers_strategies_is_refused_by_name(name):
    with pytest.raises(ConfigError, match=f"{name}: leave it out.*test of personalize"):
        strategy("fedavg", nn.Linear(6, 2), **{name: 1.0})


def test_the_log_has_each_round_and_who_is_absent(scenario, caplog):
    caplog.set_level("INFO", "flwr")

    def leaves(grid, task, node, reply):
        if task.get("number") == 1 and node == 899:
            del grid.contexts[node]
        return reply

    app = App(scenario("fedavg"))
    app.started(app.grid(leaves), "fedavg")
    assert re.search(r"round 1, clients 3: train_loss 0\.\d+, accuracy 0\.\d+ \(test", caplog.text)
    assert "round 2: not connected: client 1;" in caplog.text
    assert re.search(r"means over clients; round 3: {'accuracy': 0\.\d+", caplog.text)


def test_a_client_without_personalize_is_named(scenario, caplog):
    app = App(scenario("fedavg"))
    client = ClientApp()

    @client.train()
    def train(msg, context):
        raise ProtocolError("in the user's code")

    with pytest.raises(QuorumError, match=r"call personalize\(...\) in @app.train"):
        app.started(LocalGrid(client, ()), "fedavg")
    assert "node 899 has no answer" in caplog.text
    assert "in the user's code" in caplog.text


def test_the_result_has_tied_weights_under_both_names_and_no_batchnorm_statistics(caplog):
    def network():
        first, second = nn.Linear(4, 4), nn.Linear(4, 4)
        second.weight = first.weight
        return nn.Sequential(first, second, nn.BatchNorm1d(4))

    app, model = ClientApp(), network()

    @app.train()
    def train(msg, context):
        x, y = torch.randn(8, 4), torch.zeros(8).long()
        fit = partial(train_fn, epochs=1, lr=LR, device="cpu")
        return personalize(msg, context, network(), [(x, y)], train=fit)

    grid, arrays = LocalGrid(app, ()), ArrayRecord(model.state_dict())
    grid.contexts[899].node_config["partition-id"] = 0
    result = strategy("fedavg", model).start(grid, arrays, num_rounds=1)
    assert "the same partition-id" in caplog.text
    assert result.arrays["2.running_mean"].numpy().tolist() == [0.0] * 4
    assert "initial arrays' 2.num_batches_tracked, 2.running_mean" in caplog.text
    first, second = (result.arrays[f"{i}.weight"].numpy() for i in range(2))
    np.testing.assert_array_equal(first, second)
    assert not np.array_equal(first, arrays["0.weight"].numpy())


@pytest.mark.parametrize(
    ("method", "phrase"),
    [
        ("moon", "outputs"),
        ("fedavg-data", "samples of other clients"),
        ("ifca", "initial models"),
        ("auto", "epochs"),
        ("scaffold", "your lr"),
        ("aple", "apple"),
    ],
)
def test_a_method_that_cannot_be_had_is_refused_by_name(scenario, method, phrase):
    app = App(scenario("fedavg"))
    with pytest.raises(ConfigError, match=phrase):
        app.started(app.grid(), method)


@pytest.mark.parametrize(
    ("tensors", "phrase"),
    [
        ({"fc1.weight": torch.zeros(5, 6)}, r"fc1.weight'.*\(7, 6\).* there and \(5, 6\)"),
        ({"fc1.weight": torch.zeros(7, 6).double()}, "fc1.weight'.*float32 there.*float64"),
        ({"fc3.bias": torch.zeros(2)}, r"fc3.bias' is missing there and \(2,\)"),
        ({"fc2.bias": None}, r"fc2.bias' is \(2,\).* there and missing"),
    ],
)
def test_a_model_of_another_form_is_named_with_its_tensor(scenario, tensors, phrase, caplog):
    app = App(scenario("fedavg"))
    values = app.scenario.module().state_dict() | tensors
    server = nn.Module()
    server.state_dict = lambda: {name: t for name, t in values.items() if t is not None}
    server.load_state_dict = lambda _: None
    with pytest.raises(QuorumError, match="0 clients can take part"):
        strategy("fedavg", server).start(
            app.grid(), ArrayRecord(), train_config=ConfigRecord({"lr": LR})
        )
    assert re.search(f"node 898 takes no part: .*{phrase}", caplog.text)


def test_tensors_in_another_order_are_another_form():
    layout = wire.layout_of(nn.Linear(6, 2))
    assert wire.difference(layout, layout) == ""
    assert "order" in wire.difference(dict(reversed(layout.items())), layout)


def test_a_fault_has_the_name_of_its_client_once(scenario):
    diverges = otherwise(2, fault="client 1, round 2, step 3: the loss is nan; lower lr")
    app = App(scenario("fedavg"))
    rounds = app.started(app.grid(diverges), "fedavg").personal.rounds
    assert rounds[1].refused[0] == "client 1, round 2, step 3: the loss is nan; lower lr"


def test_the_loss_of_pomonas_server_is_said_once(scenario, caplog):
    app = App(scenario("fedavg"))
    app.started(app.grid(), "fedavg")
    (line,) = [r.getMessage() for r in caplog.records if "no resuming" in r.getMessage()]
    assert re.search("consent.*signatures.*ledger", line)


def scikit_app(method):
    """Flower's app for scikit-learn: the parameters of a logistic regression as a linear layer."""
    draw, app = np.random.default_rng(1), ClientApp()
    X = draw.normal(size=(CLIENTS, 30, 4))
    y = (X.sum(2) > 0).astype(int)
    fits = []

    def fit(layer, loader):
        ((samples, labels),) = loader
        model = LogisticRegression(max_iter=1, warm_start=True, C=1.0)
        model.classes_ = np.array([0, 1])
        model.coef_ = layer.weight.detach().double().numpy().copy()
        model.intercept_ = layer.bias.detach().double().numpy().copy()
        with np.errstate(all="ignore"):
            model.fit(samples, labels)
        with torch.no_grad():
            layer.weight.copy_(torch.from_numpy(model.coef_))
            layer.bias.copy_(torch.from_numpy(model.intercept_))
        fits.append(model)

    @app.train()
    def train(msg, context):
        i = context.node_config["partition-id"]
        return personalize(msg, context, nn.Linear(4, 1), [(X[i], y[i])], train=fit)

    layer = nn.Linear(4, 1)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    result = strategy(method, layer).start(
        LocalGrid(app, ()), ArrayRecord(layer.state_dict()), num_rounds=1
    )
    return result, fits


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_scikit_learn_trains_where_no_gradient_is_changed():
    result, fits = scikit_app("fedavg")
    mean = np.mean([model.coef_ for model in fits], 0)
    np.testing.assert_allclose(result.arrays["weight"].numpy(), mean, rtol=1e-6)
    with pytest.raises(ConfigError, match="client 0: ditto changes the gradient of each step"):
        scikit_app("ditto")


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def wait_for(port, seconds=120):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with socket.socket() as client:
            if client.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.5)
    pytest.fail("SuperLink does not listen")


@pytest.mark.slow
def test_the_example_over_a_superlink_with_two_supernodes(tmp_path):
    port = free_port()
    tools = Path(sys.executable).parent
    (tmp_path / "config.toml").write_text(
        f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "127.0.0.1:{port}"\n'
        "insecure = true\n"
    )
    environment = os.environ | {
        "FLWR_HOME": str(tmp_path),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}",  # SuperLink starts others by name
    }
    processes = []

    def launch(name, *arguments):
        command = [tools / name, "--insecure", "--host", "127.0.0.1", *arguments]
        with (tmp_path / f"{name}.log").open("a") as log:
            processes.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))

    try:
        launch("flower-superlink", "--port", str(port), "--disable-runtime-dependency-installation")
        wait_for(port)
        for i in range(2):
            node = f"partition-id={i} num-partitions=2"
            link, port_ = f"127.0.0.1:{port}", str(free_port())
            launch("flower-supernode", "--superlink", link, "--port", port_, "--node-config", node)
        command = [tools / "flwr", "run", EXAMPLE, "here", "--stream"]
        command += ["--run-config", "num-server-rounds=2 method='apple'"]
        run = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=900, check=False
        )
    finally:
        for process in processes:
            process.terminate()
            process.wait(60)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "no consent to a study" in run.stdout
    assert len(re.findall(r"'round': 2,.*'model': 'personal', 'when': 'trained'", run.stdout)) == 2
