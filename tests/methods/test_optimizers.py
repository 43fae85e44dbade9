"""Local steps equal PyTorch's, row by row; methods defined for SGD alone refuse other
optimizers.
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

import pomona
from pomona.core.errors import ConfigError
from pomona.core.training_settings import OPTIMIZERS, Adam
from pomona.methods import METHODS, base
from pomona.methods.personal_regularisation.separate import Separate
from pomona.objective.training import LocalTraining
from pomona.testing.problems import uneven
from problems import Federation, Quadratics, a_round, quadratics

RATE = 0.05


def pytorchs(name, parameter, momentum, decay, betas, eps):
    """PyTorch's optimizer with that name."""
    match name:
        case "sgd":
            return torch.optim.SGD([parameter], lr=RATE, momentum=momentum, weight_decay=decay)
        case "adam":
            return torch.optim.Adam([parameter], lr=RATE, betas=betas, eps=eps, weight_decay=decay)
    return torch.optim.AdamW([parameter], lr=RATE, betas=betas, eps=eps, weight_decay=decay)


@settings(max_examples=40)
@given(
    name=st.sampled_from(["sgd", "adam", "adamw"]),
    momentum=st.sampled_from([0.0, 0.9]),
    decay=st.sampled_from([0.0, 0.1]),
    betas=st.tuples(st.sampled_from([0.0, 0.5, 0.9]), st.sampled_from([0.0, 0.9, 0.999])),
    eps=st.sampled_from([1e-8, 1e-3]),
    norm=st.sampled_from([None, 0.1, 1.0, 100.0]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    steps=st.lists(st.integers(0, 6), min_size=1, max_size=4),
    seed=st.integers(0, 99),
)
def test_each_row_takes_the_steps_of_pytorch(
    name, momentum, decay, betas, eps, norm, dtype, steps, seed
):
    """Rows with unequal numbers of steps, the active ones a prefix, beside one torch optimizer a
    row.
    """
    momentum = momentum if name == "sgd" else 0.0
    steps = sorted(steps, reverse=True)
    generator = torch.Generator().manual_seed(seed)
    W = torch.randn(len(steps), 5, generator=generator, dtype=dtype)
    gradients = 3 * torch.randn(max(steps), len(steps), 5, generator=generator, dtype=dtype)
    moments = {} if name == "sgd" else {"beta1": betas[0], "beta2": betas[1], "eps": eps}
    optimizer = OPTIMIZERS[name](name=name, max_grad_norm=norm, **moments)
    round_ = a_round(lr=RATE, momentum=momentum, weight_decay=decay, optimizer=optimizer)

    expected = []
    for row, count in enumerate(steps):
        parameter = torch.nn.Parameter(W[row].clone())
        theirs = pytorchs(name, parameter, momentum, decay, betas, eps)
        for g in gradients[:count, row]:
            parameter.grad = g.clone()
            if norm is not None:
                torch.nn.utils.clip_grad_norm_([parameter], norm)
            theirs.step()
        expected.append(parameter.detach())

    moments, copies = base.optimizer_state(W, round_), gradients.clone()
    for step, G in enumerate(gradients):
        a = sum(count > step for count in steps)
        base.optimizer_step(W[:a], G[:a], moments[:a], round_)
    assert_close(W, torch.stack(expected), atol=1e-6, rtol=1e-6)
    assert torch.equal(gradients, copies)  # a method may still want them


@pytest.mark.parametrize("name", ["adam", "adamw"])
def test_a_round_is_pytorchs_and_moments_start_anew(name):
    """Two rounds of three steps on one number, against an optimizer made anew for each."""
    problem = Quadratics(torch.tensor([[3.0]], dtype=torch.float64), [[0]])
    run = Federation(Separate().method(), problem)
    parameter = torch.nn.Parameter(run.initial())
    for number in (1, 2):
        run.round(
            a_round(
                number, epochs=3, lr=RATE, weight_decay=0.1, optimizer=OPTIMIZERS[name](name=name)
            )
        )
        theirs = pytorchs(name, parameter, 0.0, 0.1, (0.9, 0.999), 1e-8)
        for _ in range(3):
            theirs.zero_grad()
            ((parameter - 3) ** 2 / 2).sum().backward()
            theirs.step()
    assert_close(run.state(0)[0], parameter.detach())


def test_a_part_of_a_row_trains_as_if_it_were_all_there_is():
    """FedRep's slices: the norm that clips, and the moments, are the part's own."""
    problem = uneven(4, 2)
    round_ = a_round(
        batch_size=1, optimizer=Adam(name="adamw", max_grad_norm=0.5), weight_decay=0.1
    )
    training = LocalTraining(
        problem, (0, 1), Federation(Separate().method(), problem).roster, round_
    )
    W = torch.randn(2, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    columns, initial = slice(1, 3), W.clone()
    narrow = Quadratics(problem.targets[:, columns].contiguous(), problem.rows)
    expected = base.sgd(
        LocalTraining(narrow, (0, 1), training.roster, round_), W[:, columns].clone(), round_
    )
    base.sgd(training, W, round_, 1, columns=columns)
    assert_close(W[:, columns], expected)
    assert torch.equal(W[:, :1], initial[:, :1])
    assert torch.equal(W[:, 3:], initial[:, 3:])


def test_apples_relationships_take_plain_steps_whatever_the_optimizer():
    """One step: p moves by -dr_lr times the slope, as with sgd; the core by lr in each number, as
    Adam's first step.
    """
    changes = {}
    for name in ("sgd", "adam"):
        run = Federation(METHODS["apple"](dr_lr=0.01).method(), quadratics(2, samples=1))
        core, dr = run.state(0).core[0].clone(), run.state(0).dr[0].clone()
        run.round(a_round(lr=0.1, optimizer=OPTIMIZERS[name](name=name)))
        changes[name] = run.state(0).core[0] - core, run.state(0).dr[0] - dr
    assert torch.equal(changes["sgd"][1], changes["adam"][1])
    assert changes["sgd"][1].abs().min() > 0
    assert_close(
        changes["adam"][0].abs(), torch.full((5,), 0.1, dtype=torch.float64), atol=1e-6, rtol=0
    )


def tiny(method, **settings):
    return pomona.Config(
        method=method,
        data={"name": "digits", "train_limit": 60},
        clients=2,
        rounds=1,
        **{"lr": 0.1, **settings},
    )


@pytest.mark.parametrize(
    ("method", "settings", "message"),
    [
        (
            "fedavg",
            {"optimizer": {"name": "adamw"}, "momentum": 0.9},
            "momentum = 0.9: adamw .*set momentum=0",
        ),
        (
            "scaffold",
            {"optimizer": {"name": "adam"}},
            "optimizer.name = 'adam': .*scaffold.*optimizer.name=sgd",
        ),
        (
            "scaffold",
            {"optimizer": {"max_grad_norm": 1}},
            "max_grad_norm = 1.0: .*scaffold.*remove it",
        ),
        (
            "pfedme",
            {"optimizer": {"name": "adamw"}},
            "optimizer.name = 'adamw': .*pfedme.*optimizer.name=sgd",
        ),
    ],
)
def test_steps_that_do_not_go_together_are_refused_in_one_line(method, settings, message, tmp_path):
    with pytest.raises(ConfigError, match=message) as caught:
        pomona.run(tiny(method, **settings), tmp_path / "r")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "r").exists()


def test_a_run_trains_with_adamw():
    results = {
        name: pomona.run(tiny("fedavg", lr=0.003, batch_size=8, optimizer={"name": name}))
        for name in ("sgd", "adamw")
    }
    losses = {name: result.rounds[0].loss for name, result in results.items()}
    assert losses["sgd"] != losses["adamw"]
    assert results["adamw"].config["optimizer"]["name"] == "adamw"
