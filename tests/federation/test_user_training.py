"""Methods around a user's own training code: the simulator's bits, and refusals by reason."""

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import pomona
from pomona.core.errors import ConfigError, DataError, DivergedError
from pomona.data.memory import from_clients
from pomona.federation.callbacks import NullCallback
from pomona.methods import METHODS
from pomona.objective import objective
from pomona.scenario import Scenario
from pomona.simulation import simulate

LR, ROUNDS, SIZE = 0.1, 3, 8
EXACT = [
    "fedavg", "fedamp", "apple", {"name": "apple", "budget": 1}, {"name": "apple", "core_step": "local"},
    {"name": "fedala", "sample_share": 1.0}, "fedper", "ditto", "fedfomo", "scaffold", "pfedme", "per-fedavg", "fedbabu",
    "mocha", "pgfed", "fednova",
]  # fmt: skip
INSEPARABLE = {
    **dict.fromkeys(("moon", "fedphp", "fed-rod", "fedas", "fedphp+ala", "auto", "perfcl"), "outputs"),
    **dict.fromkeys(("feddbe", "fedproto", "fedtgp", "fedpac", "pfedfda", "gpfl"), "features"),
    **dict.fromkeys(("ffa-lora", "fedsa-lora", "feddpa"), "low-rank"),
    **dict.fromkeys(("ifca", "floco"), "initial models"),
    "fedavg-data": "samples of other clients",
    "partialfed": "divides batches",
    "fenda": "model.bodies",
}  # fmt: skip


def in_order(rows, pass_):
    """Batches as a loader gives them that does not shuffle."""
    for _ in range(pass_.passes.epochs):
        yield from rows.split(pass_.size)


@pytest.fixture
def scenario(monkeypatch):
    """Three clients whose batches come in order, by method."""
    monkeypatch.setattr(objective, "ordinary", in_order)
    draw = np.random.default_rng(0)

    def client(k):
        x = draw.normal(size=(40 + SIZE * k, 6)).astype(np.float32) + k
        return x, (x.sum(1) > 6 * k).astype(int) + (x[:, 0] > k)

    data = from_clients(
        {f"client {k}": client(k) for k in range(3)}, validation_share=0.2, test_share=0.2
    )

    def prepared(method, **settings):
        run = {"rounds": ROUNDS, "lr": LR, "batch_size": SIZE, "local_epochs": 2, "workers": 1}
        run |= {"engine": "torch", "model": {"name": "mlp", "hidden": [7]}, "data": data}
        return Scenario.prepare(pomona.Config(method=method, **(run | settings)))

    return prepared


def loaders_of(scenario):
    """The scenario's samples by client and split, as lists of batches."""
    data = scenario.objective().data

    def batches(rows, size):
        return [data.gather(index) for index in rows.split(size)]

    return {
        name: {s: batches(data.rows[s][i], SIZE if s == "train" else 512) for s in data.rows}
        for i, name in enumerate(scenario.names)
    }


def learned(optimizer, model, batch):
    x, y = batch
    optimizer.zero_grad()
    loss = cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    return loss


def step(model, batch):
    return learned(torch.optim.SGD(model.parameters(), lr=LR), model, batch)


def train(model, loader):
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    losses = [learned(optimizer, model, batch).item() for _ in range(2) for batch in loader]
    return sum(losses) / len(losses)


def test(model, loader):
    with torch.no_grad():
        answers = [(model(x), y) for x, y in loader]
    losses = torch.cat([cross_entropy(o, y, reduction="none") for o, y in answers])
    return losses.mean(), torch.cat([(o.argmax(1) == y).double() for o, y in answers]).mean()


test.__test__ = False


def trained(module, loaders, method, **settings):
    code = {"step": step} if "train" not in settings else {}
    run = {"test": test, "rounds": ROUNDS, "local_epochs": 2}
    return pomona.personalize(module, loaders, method, **(code | run | settings))


CASES = [(method, {"step": step}) for method in EXACT]
CASES += [(method, {"train": train}) for method in EXACT[:10]]


@pytest.mark.parametrize(
    ("method", "code"),
    CASES,
    ids=lambda value: "-".join(map(str, value)) if isinstance(value, dict) else value,
)
@pytest.mark.long
def test_same_bits_as_the_simulator(scenario, method, code):
    prepared = scenario(method)
    expected = simulate(prepared)
    declared = {"lr": LR, "batch_size": SIZE}
    result = trained(prepared.module(), loaders_of(prepared), method, **declared, **code)
    for client, models in expected.models.items():
        assert all(result.models[client][k].equal(t) for k, t in models.items())
    for a, b in zip(expected.evaluations, result.evaluations, strict=True):
        assert (a.key, a.round, a.accuracy) == (b.key, b.round, b.accuracy)


def test_several_steps_on_a_batch_need_step(scenario):
    prepared = scenario("fedavg")
    with pytest.raises(ConfigError, match="several steps on a batch"):
        trained(prepared.module(), loaders_of(prepared), "pfedme", lr=LR, train=train)


@pytest.mark.long
@pytest.mark.parametrize("method", METHODS)
def test_every_method_runs_or_says_why_not(scenario, method):
    prepared = scenario("fedavg")
    settings = {"lr": LR, "batch_size": SIZE, "rounds": 1}
    if method in INSEPARABLE:
        with pytest.raises(ConfigError, match=INSEPARABLE[method]) as fault:
            trained(prepared.module(), loaders_of(prepared), method, **settings)
        assert method in str(fault.value)
    else:
        result = trained(prepared.module(), loaders_of(prepared), method, **settings)
        assert len(result.models) == 3


@pytest.mark.parametrize("method", ["scaffold", "apfl", "fednova", "q-fedavg", "pfedme", "pgfed"])
def test_equations_with_a_rate_need_it(scenario, method):
    prepared = scenario("fedavg")
    with pytest.raises(ConfigError, match=r"optimizer: lr=0.1|your (lr|batch_size)"):
        trained(prepared.module(), loaders_of(prepared), method)


def test_settings_that_are_not_those_of_the_optimizer(scenario):
    prepared = scenario("fedavg")
    with pytest.raises(ConfigError, match=r"lr=0\.1"):
        trained(prepared.module(), loaders_of(prepared), "apfl", lr=0.2)


def test_momentum_of_relationships_is_that_of_the_optimizer(scenario):
    prepared = scenario("fedavg")

    def heavy(model, batch):
        return learned(torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9), model, batch)

    with pytest.raises(ConfigError, match=r"momentum=0\.9"):
        trained(prepared.module(), loaders_of(prepared), "apple", step=heavy)


@pytest.mark.long
@pytest.mark.parametrize("rule", [torch.optim.Adam, torch.optim.RMSprop, torch.optim.Adagrad])
def test_any_optimizer_whose_state_begins_anew_with_each_pass(scenario, rule):
    """One optimizer for all clients gives what one for each pass gives."""
    prepared = scenario("fedavg")
    module, loaders = prepared.module(), loaders_of(prepared)
    shared = rule(module.parameters(), lr=0.01)

    def train_pass(model, loader):
        optimizer = rule(model.parameters(), lr=0.01)
        for _ in range(2):
            for batch in loader:
                learned(optimizer, model, batch)

    a = trained(module, loaders, "ditto", step=lambda m, batch: learned(shared, m, batch))
    b = trained(module, loaders, "ditto", train=train_pass)
    assert all(a.models[i][k].equal(t) for i in b.models for k, t in b.models[i].items())
    assert a.rounds[0].loss != b.rounds[0].loss == (None,) * 3


def test_a_pull_needs_a_step_of_torch(scenario):
    prepared = scenario("fedavg")

    def by_hand(model, batch):
        x, y = batch
        loss = cross_entropy(model(x), y)
        for p, g in zip(
            model.parameters(), torch.autograd.grad(loss, [*model.parameters()]), strict=True
        ):
            p.data -= LR * g
        return loss

    module, loaders = prepared.module(), loaders_of(prepared)
    models = [trained(module, loaders, "fedavg", step=s).models[0] for s in (step, by_hand)]
    assert all(models[0][k].allclose(models[1][k]) for k in models[0])
    with pytest.raises(ConfigError, match=r"took 0 steps of an optimizer of torch\.optim"):
        trained(module, loaders, "ditto", step=by_hand)


def test_the_users_model_is_as_before(scenario):
    prepared = scenario("fedavg")
    module = prepared.module()
    state_before = {k: t.clone() for k, t in module.state_dict().items()}
    trained(module, loaders_of(prepared), "apple")
    assert all(state_before[k].equal(t) for k, t in module.state_dict().items())


def test_a_rate_changes_between_rounds_but_not_between_clients(scenario):
    prepared = scenario("fedavg")
    module, loaders = prepared.module(), loaders_of(prepared)
    optimizer = torch.optim.SGD(module.parameters(), lr=LR)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)

    def scheduled(model, batch):
        loss = learned(optimizer, model, batch)
        schedule.step()
        return loss

    class Halved(NullCallback):
        def on_round_end(self, row, evaluations):
            optimizer.param_groups[0]["lr"] /= 2

    fixed = partial(learned, optimizer)
    pomona.personalize(module, loaders, "fedavg", fixed, rounds=2, callback=Halved())
    with pytest.raises(ConfigError, match=r"one client at the rates \[0\.025\] and the next at"):
        pomona.personalize(module, loaders, "fedavg", scheduled, rounds=1)


class Unusual(nn.Module):
    """A frozen layer, one with the weight of another, a scale without axes, a buffer that is not in
    the state dict, one with two names, and extra state.
    """

    def __init__(self):
        super().__init__()
        self.frozen, self.first, self.second = (nn.Linear(6, 6, bias=False) for _ in range(3))
        self.frozen.requires_grad_(False)
        self.second.weight = self.first.weight
        self.scale, self.last = nn.Parameter(torch.tensor(1.0)), nn.Linear(6, 3)
        self.register_buffer("cache", torch.ones(6), persistent=False)
        self.register_buffer("count", torch.tensor(0))
        self.register_buffer("again", self.count)

    get_extra_state = set_extra_state = lambda self, *_: 1

    def forward(self, x):
        self.count += len(x)
        return self.scale * self.last(self.second(self.first(self.frozen(x)).tanh()) * self.cache)


def test_models_are_whole_state_dicts(scenario):
    torch.manual_seed(0)
    model, plain = Unusual(), Unusual()
    plain.load_state_dict(model.state_dict())
    loaders = loaders_of(scenario("separate"))
    result = pomona.personalize(model, loaders, "separate", step, rounds=1)
    for batch in loaders["client 0"]["train"]:
        step(plain, batch)
    model.load_state_dict(result.models[0])
    for name, tensor in plain.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], tensor)


@pytest.mark.parametrize("layer", [nn.LazyLinear, partial(nn.Linear, 2, dtype=torch.complex64)])
def test_complex_parameters_and_those_without_a_shape_are_refused(layer):
    with pytest.raises(ConfigError, match=r"weight (is torch.complex64, and rows|has no shape)"):
        pomona.personalize(layer(2), {"A": [(torch.ones(1, 2), torch.zeros(1))]}, "fedavg", step)


def test_batch_statistics_stay_with_each_client():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    loaders = {
        name: [(torch.randn(8, 3) + shift, torch.arange(8) % 2) for _ in range(2)]
        for name, shift in (("A", 0.0), ("B", 9.0))
    }
    with pytest.warns(pomona.PomonaWarning, match="stay with each client"):
        result = pomona.personalize(model, loaders, "fedala", step, rounds=2)
    a, b = (result.models[i]["1.running_mean"] for i in range(2))
    assert not a.allclose(b)
    assert int(result.models[0]["1.num_batches_tracked"]) == 4  # two rounds of two batches


def test_a_function_that_fails_says_so_itself(scenario):
    prepared = scenario("fedavg")

    def fails(model, loader):
        for _ in loader:
            raise ZeroDivisionError("in the user's code")

    with pytest.raises(ZeroDivisionError, match="in the user's code"):
        trained(prepared.module(), loaders_of(prepared), "fedavg", train=fails)


def test_a_loss_that_is_not_finite_ends_the_run(scenario):
    prepared = scenario("fedavg")

    def diverges(model, batch):
        return step(model, batch) * torch.nan

    with pytest.raises(DivergedError, match="loss is nan"):
        trained(prepared.module(), loaders_of(prepared), "fedavg", step=diverges)


@pytest.mark.parametrize("method", ["fedavg", "apple"])
def test_an_optimizer_of_another_model_is_refused(scenario, method):
    prepared = scenario("fedavg")
    other_module = prepared.module()
    optimizer = torch.optim.SGD(other_module.parameters(), lr=LR)

    def fits(model, loader):
        for x, y in loader:
            cross_entropy(model(x), y).backward()
            optimizer.step()

    with pytest.raises(ConfigError, match=r"steps another one|0 steps .* for the model"):
        trained(prepared.module(), loaders_of(prepared), method, train=fits)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (0.5, "loss alone"),
        ((0.5, 93.2), "no accuracy can be"),
        ({"loss": 0.5}, "loss alone"),
        ({"accuracy": 0.5}, "no loss"),
        (None, "no loss"),
        ((0.5, 0.9, 40), "3 values"),
        ({"loss": 0.5, "top1": 0.4, "top3": 0.8}, "top1, top3; name the one"),
        ({"loss": 0.5, "f1": 0.4}, "returns f1;.* metric 'accuracy'"),
        ({"loss": 0.5, "balanced_accuracy": 0.4}, "returns balanced_accuracy;"),
        ((0.5, {"inaccuracy": 0.4}), "returns inaccuracy;"),
        ((0.5, {"val_balanced_accuracy": 0.4}), "returns val_balanced_accuracy;"),
        ((0.5, {"top5_acc": 0.9}), "returns top5_acc;"),
        ("high", "type str as its loss"),
        ((0.5, np.zeros(2)), "type ndarray as its metric"),
    ],
)
def test_a_test_that_returns_something_else(scenario, answer, message):
    prepared = scenario("fedavg")
    with pytest.raises(ConfigError, match=message):
        trained(prepared.module(), loaders_of(prepared), "fedavg", test=lambda model, _: answer)


@pytest.mark.parametrize("name", ["accuracy", "acc", "my_acc", "valAccuracy", "val/ACC", "metric"])
def test_a_lone_figure_counts_by_its_name(scenario, name):
    prepared = scenario("fedavg")
    code = {"test": lambda *_: {"loss": 0.5, name: 0.75}}
    result = trained(prepared.module(), loaders_of(prepared), "fedavg", **code)
    assert result.curve("global", "received")[-1].value == (0.75,) * 3


def test_other_metrics_by_name(scenario):
    prepared = scenario("fedavg")
    module, loaders = prepared.module(), loaders_of(prepared)
    answer = {"test_loss": 0.5, "auc": 0.75}
    result = trained(module, loaders, "fedavg", test=lambda *_: answer, metric="auroc")
    assert result.curve("global", "received")[-1].value == (0.75,) * 3
    answer = (0.5, {"f1": 0.25, "accuracy": 0.5, "AUC": 0.75, "samples": 8})
    result = trained(module, loaders, "fedavg", test=lambda *_: answer, metric="auroc")
    assert result.curve("global", "received")[-1].value == (0.75,) * 3
    result = trained(module, loaders, "fedavg", test=lambda *_: answer)
    assert result.curve("global", "received")[-1].value == (0.5,) * 3
    answer = (0.5, torch.nan)  # as of samples of one class
    result = trained(module, loaders, "fedavg", test=lambda *_: answer, metric="auroc")
    assert result.curve("global", "received")[-1].value == (None,) * 3
    result = trained(module, loaders, "fedavg", test=lambda *_: 0.5, metric="loss")
    assert result.curve("global", "received")[-1].value == (0.5,) * 3


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"privacy": {"noise_multiplier": 1}}, "privacy"),
        ({"augment": ["flip"]}, "own code"),
        ({"train": train, "step": step}, "one of step"),
        ({"method": "aple"}, "did you mean"),
        ({"rouds": 2}, "rounds"),
        ({"loaders": {}}, "no clients"),
        ({"loaders": {"A": {"test": []}}}, "train"),
        ({"loaders": {"A": []}}, "no samples"),
        ({"loaders": {"A": iter([])}}, "no length"),
    ],
)
def test_wrong_arguments_are_named(changed, message):
    arguments = {"loaders": {"A": [(torch.ones(2, 3), torch.zeros(2).long())]}, "step": step}
    arguments = {"method": "fedavg"} | arguments | changed
    with pytest.raises((ConfigError, DataError), match=message):
        pomona.personalize(nn.Linear(3, 2), **arguments)


@pytest.mark.long
def test_convolutions_have_the_same_bits_however_a_loader_lays_out_images(monkeypatch):
    monkeypatch.setattr(objective, "ordinary", in_order)
    data = {"name": "digits", "train_limit": 120, "test_limit": 40}
    run = {"rounds": 2, "lr": LR, "batch_size": SIZE, "workers": 1, "engine": "torch", "clients": 2}
    prepared = Scenario.prepare(pomona.Config(method="apple", data=data, model="small", **run))
    expected = simulate(prepared)
    loaders = {
        name: [(x.contiguous(), y) for x, y in splits["train"]]
        for name, splits in loaders_of(prepared).items()
    }
    result = pomona.personalize(prepared.module(), loaders, "apple", step, rounds=2)
    for client, models in expected.models.items():
        assert all(result.models[client][k].equal(t) for k, t in models.items())
