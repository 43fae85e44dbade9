"""Server optimizers: the papers' rules by hand and by PyTorch's optimizers, alone and behind
averaging methods.
"""

import math
import re

import pytest
import torch
from torch.testing import assert_close

import pomona
from pomona.config import read_overrides, resolve
from pomona.core.errors import ConfigError
from pomona.methods import METHODS, is_builtin
from pomona.methods import resolve as method_of
from pomona.methods.one_model import fedopt
from pomona.methods.one_model.fedopt import FedAdagrad, FedAdam, FedAvgM, FedYogi
from pomona.testing import conformance
from pomona.testing.task_checks import TASK_CHECKS
from problems import Federation, a_round, quadratics, suited, tiny, trained

AVERAGING = [name for name, settings in METHODS.items() if settings().method().server.averages]
COMPOSED = ["fedrep+adam", "ditto+ala+yogi", "fedprox+adagrad", "fednova+clipped"]
COMPOSED += ["fedrep+krum+momentum", "q-fedavg+geometric"]
STEP = {"lr": 0.2}
RUNS = {check.__name__ for check in TASK_CHECKS}


@pytest.mark.parametrize("name", AVERAGING)
def test_a_step_of_one_without_momentum_leaves_every_method_as_it_is_to_the_bit(name):
    stepped = method_of(f"{name}+momentum")(server_lr=1.0, server_momentum=0.0)
    problem = suited(stepped, quadratics(3, samples=4))
    runs = [trained(settings, problem) for settings in (METHODS[name](), stepped)]
    assert torch.equal(runs[0].server, runs[1].server.model)
    for reply, stepped_reply in zip(runs[0].replies, runs[1].replies, strict=True):
        assert reply.uplink.keys() == stepped_reply.uplink.keys()
        assert all(torch.equal(reply.uplink[k], stepped_reply.uplink[k]) for k in reply.uplink)


def by_hand(name, s, D, m, v):
    """One number's step by the papers, in plain arithmetic: (step, m, v)."""
    if name == "momentum":
        m = s.server_momentum * m + D
        return s.server_lr * m, m, v
    m = s.server_beta1 * m + (1 - s.server_beta1) * D
    if name == "adagrad":
        v = v + D**2
    if name == "yogi":
        v = v - (1 - s.server_beta2) * D**2 * ((v - D**2 > 0) - (v - D**2 < 0))
    if name == "adam":
        v = s.server_beta2 * v + (1 - s.server_beta2) * D**2
    return s.server_lr * m / (math.sqrt(v) + s.server_tau), m, v


@pytest.mark.parametrize("name", fedopt.OPTIMIZERS)
@pytest.mark.parametrize("size", [0, 1, 5])
def test_each_rule_by_hand(name, size):
    """Five updates of changing size and sign, so that Yogi's v falls and rises."""
    settings_type, rule = fedopt.OPTIMIZERS[name]
    s = settings_type(server_lr=0.7)
    tau = getattr(s, "server_tau", 0.0)
    D = torch.randn(5, size, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    D[2] *= 100
    moments = fedopt.Moments(torch.zeros_like(D[0]), torch.full_like(D[0], tau**2))
    expected = [(0.0, 0.0, tau**2)] * size
    for update in D:
        step, moments = rule(s, update, moments)
        expected = [
            by_hand(name, s, float(d), m, v) for d, (_, m, v) in zip(update, expected, strict=True)
        ]
        assert_close(step, torch.tensor([e[0] for e in expected], dtype=torch.float64))


def descent(build):
    """PyTorch's optimizer on the pooled loss, from the federation's initial model."""
    problem = quadratics(3, samples=4)
    w = torch.nn.Parameter(Federation(FedAvgM().method(), problem).initial())
    optimizer = build([w])
    for _ in range(6):
        optimizer.zero_grad()
        (((w - problem.targets) ** 2).sum(1).mean() / 2).backward()
        optimizer.step()
    return w.detach()


def test_one_full_batch_step_a_round_is_pytorchs_optimizer_on_the_pooled_loss():
    """Clients of equal size take one step of lr from w: mean - w = -lr gradient of the pooled
    loss.
    """
    problem = quadratics(3, samples=4)
    settings = FedAvgM(server_lr=0.5, server_momentum=0.8)
    momentum = trained(settings, problem, 6, **STEP).server.model
    assert_close(momentum, descent(lambda w: torch.optim.SGD(w, lr=0.5 * STEP["lr"], momentum=0.8)))
    settings = FedAdagrad(server_lr=0.3, server_tau=1e-2 * STEP["lr"])
    adagrad = trained(settings, problem, 6, **STEP).server.model
    assert_close(
        adagrad,
        descent(lambda w: torch.optim.Adagrad(w, lr=0.3, initial_accumulator_value=1e-4, eps=1e-2)),
    )


def test_yogi_and_adam_differ_only_once_v_is_there():
    """From v = 0 both make v the same share of D^2; from a large v Yogi takes off no more than that
    share.
    """
    s, square = FedYogi(), torch.tensor([4.0, 0.25])
    assert torch.equal(
        fedopt.yogi(s, torch.zeros(2), square), fedopt.adam(s, torch.zeros(2), square)
    )
    assert_close(fedopt.yogi(s, torch.full((2,), 100.0), square), 100 - 0.01 * square)
    assert_close(fedopt.adam(s, torch.full((2,), 100.0), square), 99 + 0.01 * square)


def test_a_federation_that_has_converged_stays():
    """At the optimum D = 0, and once momentum has run out no rule moves the model."""
    problem = quadratics(3, samples=4)
    for settings_type in (FedAvgM, FedAdam, FedYogi, FedAdagrad):
        run = Federation(settings_type().method(), problem)
        best = problem.targets.mean(0)
        run.server = fedopt.Stepped(best.clone(), run.server.moments)
        run.round(a_round(1, **STEP))
        assert_close(run.server.model, best)


def test_the_clients_of_a_composition_keep_what_is_theirs():
    """fedrep+adam steps with the shared layers alone: m and v have their size, the heads are
    FedRep's.
    """
    problem = quadratics(3, samples=4)
    plain = trained(METHODS["fedrep"](), problem, 1)
    stepped = trained(method_of("fedrep+adam")(), problem, 1)
    assert stepped.server.moments.first.shape == stepped.server.model.shape == (4,)
    assert all(torch.equal(plain.state(i).kept, stepped.state(i).kept) for i in range(3))
    assert not torch.equal(plain.server, stepped.server.model)


def test_newcomers_start_from_the_stepped_model():
    run = Federation(FedAdam().method(), quadratics(3, samples=4), members=(0, 1))
    run.round(a_round(1, **STEP))
    moments = run.server.moments
    run.only(0, 1, 2)
    assert torch.equal(run.server.moments.first, moments.first)
    assert torch.equal(
        run.method.server.add_clients(run.server, (2,), run.roster)[1], run.server.model
    )


def test_the_page_names_all_methods_that_take_no_optimizer():
    mentioned = set(
        re.findall(r"[\w-]+", fedopt.__doc__.partition("Of the others")[2].partition("\n\n")[0])
    )
    titles = {
        name: make_settings().method().card.presentation.title
        for name, make_settings in METHODS.items()
    }
    listed = mentioned & set(titles.values())
    assert not listed & {titles[name] for name in AVERAGING}
    for name in set(titles) - {*AVERAGING, "fedavgm", "fedadagrad", "fedyogi", "fedadam"}:
        assert any(title in titles[name] for title in listed), f"{titles[name]} is not listed"


def test_names_with_an_optimizer_behind_them_are_made_once():
    assert method_of("fedrep+adam") is method_of("fedrep+adam")
    assert is_builtin("fedrep+adam")
    assert not is_builtin("fedrep+lion")
    assert not is_builtin("fedrep+adam+adam")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("scaffold+adam", "the server of scaffold keeps something else"),
        ("fedadam+momentum", "the server of fedadam keeps something else"),
        ("apple+yogi", "the server of apple keeps something else"),
        ("pgfed+adam", "the server of pgfed keeps something else"),
        ("fedrep+sgd", "fedrep"),
        ("+adam", "adam"),
        ("", "unknown method"),
    ],
)
def test_what_cannot_be_composed_is_refused(name, message):
    with pytest.raises(ConfigError, match=message.replace("+", r"\+")):
        method_of(name)
    with pytest.raises(ConfigError):
        resolve({"method": name})


def test_a_composition_is_set_like_any_method():
    config = resolve(
        {"method": "fedrep+adam"}, read_overrides(["method.server_lr=0.03", "method.head_epochs=2"])
    )
    assert (config.method.server_lr, config.method.head_epochs) == (0.03, 2)
    assert resolve(config.tree()) == config
    with pytest.raises(ConfigError, match="server_lr"):
        resolve({"method": {"name": "fedrep+adam", "server_rl": 1.0}})


def test_a_run_of_a_composition_repeats_in_two_processes():
    a, b = (pomona.run(tiny("fedrep+median+adam", workers=workers)) for workers in (1, 2))
    assert a.evaluations == b.evaluations


@pytest.mark.long
@pytest.mark.parametrize(
    "check",
    [
        pytest.param(c, id=f"{name}: {c}", marks=[pytest.mark.slow] if str(c) in RUNS else [])
        for name in COMPOSED
        for c in conformance(method_of(name)())
    ],
)
def test_compositions_conform(check):
    check()
