"""FedAMP and HeurFedAMP against their equations."""

import json
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError
from scipy.optimize import minimize
from torch.testing import assert_close

from pomona.methods.mixtures.fedamp import (
    SHAPES,
    FedAMP,
    HeurFedAMP,
    convex_weights,
    cosine_shares,
    coupling_warning,
    distances,
    slope,
    step,
)
from pomona.methods.personal_regularisation.separate import Separate
from problems import Federation, a_round, quadratics, trained

ROUGH = {"epochs": 3, "batch_size": 1, "momentum": 0.9, "lr": 0.05}


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def downlink(run, round_=None):
    return run.downlink(round_ or a_round())


def clouds(run):
    rows = downlink(run)["cloud"]
    return rows.bank[rows.index]


def attention(function, t):
    """A(t) of definition 1, as the papers print it; l = 0.3, a = 3.7, g = 4, sigma = 2."""
    knee, a, g = 0.3, 3.7, 4.0
    if function == "exponential":
        return 1 - math.exp(-t / 2)
    if function == "scad":
        middle = (2 * a * knee * t - t * t - knee * knee) / (2 * (a - 1))
        return knee * t if t <= knee else middle if t <= a * knee else (a + 1) * knee**2 / 2
    return knee * t - t * t / (2 * g) if t <= g * knee else g * knee**2 / 2


def with_attention(function, **settings):
    shape = {"sigma": 2.0, "scad_lambda": 0.3, "scad_a": 3.7, "mcp_lambda": 0.3, "mcp_gamma": 4.0}
    shape = {key: value for key, value in shape.items() if key.startswith(SHAPES[function])}
    return FedAMP(attention=function, **shape, **settings)


@pytest.mark.parametrize("function", ["exponential", "scad", "mcp"])
@given(t=st.floats(1e-3, 5))
def test_the_slope_is_the_derivative_of_the_attention_function(function, t):
    h = 1e-6
    difference = (attention(function, t + h) - attention(function, t - h)) / (2 * h)
    got = slope(with_attention(function), torch.tensor([t], dtype=torch.float64))
    assert float(got) == pytest.approx(difference, abs=1e-5)


def test_cloud_models_by_hand():
    """Models 0 and 2, t = 4, alpha = .5, sigma = 2: xi = .25 e^-2, and u = (2 xi, 2 - 2 xi); exact:
    twice the weight.
    """
    for gradient, factor in (("printed", 1), ("exact", 2)):
        run = Federation(
            FedAMP(alpha=0.5, sigma=2.0, gradient=gradient).method(), quadratics(2, d=1)
        )
        run.server = torch.tensor([[0.0], [2.0]], dtype=torch.float64)
        xi = factor * 0.25 * math.exp(-2)
        assert_close(clouds(run), torch.tensor([[2 * xi], [2 - 2 * xi]], dtype=torch.float64))
        assert_close(downlink(run)["coupling"].bank, torch.full((2, 1), xi, dtype=torch.float64))


def test_a_local_step_by_hand():
    """lr .1, lambda / alpha = 3 / 1.5 = 2, cloud u: w1 = w - .1 (w - a + 2 (w - u)), from w or from
    u.
    """
    problem = quadratics(2, samples=1, d=3)
    for choice in ("own", "cloud"):
        run = Federation(FedAMP(lambda_=3.0, alpha=1.5, sigma=4.0, start=choice).method(), problem)
        run.server = random(2, 3)
        for i in range(2):
            run.set_state(i, run.server[i : i + 1].clone())
        models, u = run.server.clone(), clouds(run)
        run.round(a_round(lr=0.1))
        w = models if choice == "own" else u
        assert_close(run.server, w - 0.1 * (w - problem.targets + 2 * (w - u)))
        assert_close(run.model(1, "personal", "trained"), run.server[1])


@pytest.mark.long
@pytest.mark.parametrize("name", ["exponential", "scad", "mcp"])
@pytest.mark.parametrize(("gradient", "share"), [("exact", 1.0), ("printed", 0.5)])
def test_it_converges_to_a_minimiser_of_equation_1(name, gradient, share):
    """G(W) = sum_i F_i(w_i) + share lambda sum_{i<j} A, minimised numerically from where FedAMP
    ends; share 1 when exact.

    At a minimiser G cannot be lowered, so the numerical one is the same point; weak coupling
    (lambda A'' small against the quadratics' 1) keeps G convex.
    """
    problem, lam, N = quadratics(3, samples=1, d=2, seed=4), 0.3, 3
    problem.targets.mul_(0.4)
    settings = with_attention(name, lambda_=lam, alpha=0.2, gradient=gradient, start="cloud")
    run = trained(settings, problem, 60, epochs=20, lr=0.3)
    assert float(downlink(run)["coupling"].bank.max()) < 1

    def objective(flat):
        W = torch.from_numpy(flat).view(N, 2)
        fit = sum(float(problem.losses(W[i], i, "train").mean()) for i in range(N))
        pairs = sum(
            attention(name, float(((W[i] - W[j]) ** 2).sum())) for i in range(N) for j in range(i)
        )
        return fit + share * lam * pairs

    best = minimize(
        objective, problem.targets.flatten().numpy(), method="BFGS", options={"gtol": 1e-8}
    )
    assert_close(run.server.flatten(), torch.from_numpy(best.x), atol=1e-4, rtol=0)
    assert not torch.allclose(run.server, problem.targets, atol=1e-2)  # the coupling did move them


def test_without_lambda_and_from_the_own_model_it_is_separate_training_to_the_bit():
    problem = quadratics(3, samples=4)
    amp = Federation(FedAMP(lambda_=0.0).method(), problem)
    separate = Federation(Separate().method(), problem)
    coupled = Federation(FedAMP().method(), problem)
    for number in (1, 2, 3):
        for run in (amp, separate, coupled):
            run.round(a_round(number, **ROUGH))
    for i in range(3):
        mine = amp.model(i, "personal", "trained")
        assert torch.equal(mine, separate.model(i, "personal", "trained"))
        assert not torch.allclose(mine, coupled.model(i, "personal", "trained"))


def test_a_self_weight_of_one_is_no_exchange():
    problem = quadratics(3, samples=2)
    run = Federation(HeurFedAMP(self_weight=1.0, start="cloud").method(), problem)
    run.round(a_round())
    assert_close(clouds(run), run.server)


def test_without_a_step_messages_weigh_nothing():
    xi, coupling = convex_weights(torch.zeros(4, 4))
    assert torch.equal(xi, torch.eye(4))
    assert torch.equal(coupling, torch.zeros(4, 1))


@pytest.mark.parametrize(
    "settings", [FedAMP(), HeurFedAMP(), HeurFedAMP(sigma=0.0, self_weight=0.0)]
)
def test_of_equal_models_the_cloud_models_are_that_model_to_the_bit(settings):
    run = Federation(settings.method(), quadratics(5))
    assert torch.equal(clouds(run), run.initial().repeat(5, 1))


def test_the_heuristic_without_scale_is_the_plain_mean():
    """sigma = 0 and xi_ii = 1 / m, the default self weight: every weight is 1 / m."""
    run = Federation(HeurFedAMP(sigma=0.0).method(), quadratics(4))
    run.server = random(4, 5)
    assert_close(clouds(run), run.server.mean(0).expand(4, 5))


def test_cosine_weights_by_hand():
    """Rows (1, 0), (0, 2), (3, 3): cosines 0, sqrt(1/2), sqrt(1/2); row 1 at sigma = 2: e^0 and
    e^sqrt(2).
    """
    shares = cosine_shares(torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 3.0]]), 2.0)
    e = math.exp(math.sqrt(2))
    assert_close(
        shares,
        torch.tensor([[0, 1 / (1 + e), e / (1 + e)], [1 / (1 + e), 0, e / (1 + e)], [0.5, 0.5, 0]]),
    )


@given(st.integers(1, 7), st.sampled_from([0.0, 1.0, 1e4, 1e30]), st.floats(0, 1))
def test_heuristic_rows_are_convex_combinations_at_any_scale(N, sigma, own_weight):
    shares = cosine_shares(random(N, 3, seed=N), sigma)
    xi, _ = convex_weights((1 - own_weight) * shares)
    assert_close(xi.sum(1), torch.ones(N, dtype=torch.float64))
    assert bool((xi >= 0).all())
    assert_close(xi.diagonal(), torch.full((N,), own_weight if N > 1 else 1.0, dtype=torch.float64))


@given(st.integers(1, 7), st.floats(0, 50))
def test_fedamp_rows_are_convex_combinations_also_beyond_the_bound(N, alpha):
    t = distances(random(N, 3, seed=N))
    messages = alpha * slope(FedAMP(sigma=2.0), t)
    xi, coupling = convex_weights(messages)
    assert_close(xi.sum(1), torch.ones(N, dtype=torch.float64))
    assert bool((xi >= 0).all())
    for i in range(N):
        total = sum(float(messages[i, j]) for j in range(N) if j != i)
        assert float(coupling[i]) == pytest.approx(total, abs=1e-12)
        assert float(xi[i, i]) == pytest.approx(max(1 - total, 0.0), abs=1e-9)
    if float(coupling.max()) <= 1:
        assert_close(xi, xi.T)


def test_squared_distances_are_exact_far_from_the_origin():
    """Single precision, |w|^2 about 1e9: the textbook Gram formula would lose every digit of
    distances about 1.
    """
    points = random(4, 6).float()
    assert_close(
        distances(points + 2e4),
        torch.cdist((points + 2e4).double(), (points + 2e4).double()).float() ** 2,
    )


@pytest.mark.parametrize("settings", [FedAMP(), HeurFedAMP()])
def test_the_server_does_not_know_clients_by_their_place(settings):
    """Permuted models give permuted cloud models."""
    run, order = Federation(settings.method(), quadratics(5)), torch.tensor([3, 0, 4, 1, 2])
    run.server = random(5, 5)
    straight = clouds(run)
    run.server = run.server[order]
    assert_close(clouds(run), straight[order])


def test_schedules_of_alpha():
    """Over 16 rounds with lambda = 2: lambda / sqrt(16) = .5; alpha / k; alpha."""
    rounds = [a_round(k, total=16) for k in (1, 4)]
    expected = {"constant": [3.0, 3.0], "sqrt": [0.5, 0.5], "diminishing": [3.0, 0.75]}
    for schedule, values in expected.items():
        alpha = {} if schedule == "sqrt" else {"alpha": 3.0}
        settings = FedAMP(lambda_=2.0, alpha_schedule=schedule, **alpha)
        assert [step(settings, r, members=3) for r in rounds] == values


def test_absent_clients_count_with_the_model_they_sent_last_and_stay_as_they_are():
    run = Federation(FedAMP().method(), quadratics(3, samples=2))
    run.round(a_round(1))
    first = run.server.clone()
    run.round(a_round(2), ids=(0, 2))
    assert torch.equal(run.server[1], first[1])
    assert torch.equal(run.state(1)[0], first[1])
    assert not torch.allclose(run.server[0], first[0])
    xi, _ = convex_weights(slope(FedAMP(), distances(first)))
    got = torch.stack([r.info["attention"] for r in run.replies])
    assert_close(got, xi[[0, 2]])


@pytest.mark.parametrize("settings_type", [FedAMP, HeurFedAMP])
def test_lambda_is_a_key_like_any_other(settings_type):
    """Read and written under the paper's name, also inside another record; misspelt it is
    refused.
    """
    name = settings_type().name
    settings = settings_type.model_validate({"name": name, "lambda": 0.25})
    assert settings == settings_type(lambda_=0.25)
    assert json.loads(settings.model_dump_json())["lambda"] == 0.25
    nested = TypeAdapter(dict[str, settings_type])
    assert nested.validate_python(nested.dump_python({"method": settings})) == {"method": settings}
    for invalid in ({"lamda": 0.25}, {"lambda": 1.0, "lambda_": 2.0}, {"lambda": -1.0}):
        with pytest.raises(ValidationError):
            settings_type.model_validate({"name": name, **invalid})


@pytest.mark.parametrize("function", ["exponential", "scad", "mcp"])
@pytest.mark.parametrize("gradient", ["printed", "exact"])
@given(N=st.integers(1, 300), spread=st.floats(0, 3))
def test_the_default_step_keeps_cloud_models_convex_at_any_number_of_clients(
    function, gradient, N, spread
):
    """A' <= A'(0), so N messages of alpha A' weigh at most N alpha A'(0) = 1; the own model keeps 1
    / N at the least.
    """
    settings = FedAMP(attention=function, gradient=gradient)
    W = random(N, 2, seed=N) * spread
    alpha = step(settings, a_round(), N)
    assert 0 < alpha <= 1
    xi, coupling = convex_weights(settings.factor * alpha * slope(settings, distances(W)))
    assert float(coupling.max()) <= (N - 1) / N + 1e-9
    assert float(xi.diagonal().min()) >= 1 / N - 1e-9


def test_the_default_step_is_1_while_that_is_convex_and_averages_equal_models_beyond():
    """A'(0) = 1 / sigma = 1/25: 1 up to 25 clients, 1/4 of 100; half of it with the exact
    gradient's factor 2.
    """
    assert [step(FedAMP(), a_round(), N) for N in (1, 25, 100)] == pytest.approx([1, 1, 0.25])
    assert step(FedAMP(gradient="exact"), a_round(), 100) == pytest.approx(0.125)
    assert step(FedAMP(alpha=1.0), a_round(), 100) == 1.0
    xi, _ = convex_weights(step(FedAMP(), a_round(), 50) * slope(FedAMP(), torch.zeros(50, 50)))
    assert_close(xi, torch.full((50, 50), 1 / 50))


def test_both_halves_take_the_same_step():
    """One step from the cloud model u, at sigma = 1 and 4 clients: alpha = 1/4, so the pull is 4
    lambda.
    """
    problem = quadratics(4, samples=1, d=3)
    run = Federation(FedAMP(sigma=1.0, lambda_=0.5).method(), problem)
    run.server = random(4, 3)
    for i in range(4):
        run.set_state(i, run.server[i : i + 1].clone())
    models, u = run.server.clone(), clouds(run)
    run.round(a_round(lr=0.1))
    assert_close(run.server, models - 0.1 * (models - problem.targets + 2 * (models - u)))


@pytest.mark.parametrize(("alpha", "has_remark"), [(None, False), (0.1, False), (1.0, True)])
def test_a_run_that_left_the_definition_says_so(alpha, has_remark):
    """At sigma = 1 three equal models have the coupling 2 alpha; the default alpha is 1/3, and 2/3
    is convex.
    """
    run = Federation(FedAMP(sigma=1.0, alpha=alpha).method(), quadratics(3))
    remark = run.method.server.closing(run.server, run.roster, a_round())
    assert (remark is not None) == has_remark
    if remark:
        assert "3 of 3 clients" in remark
        assert "is 2 in the middle" in remark


def test_half_of_the_clients_beyond_the_bound_are_not_most():
    assert coupling_warning(torch.tensor([2.0, 0.5])) is None
    assert "2 of 3" in (coupling_warning(torch.tensor([2.0, 0.5, 1.5])) or "")
    assert "leave method.alpha unset" in coupling_warning(torch.full((3,), 2.0))
    # which it does not follow from
    assert "method.alpha " not in coupling_warning(torch.full((3,), 2.0), "sqrt")
    assert coupling_warning(torch.ones(3)) is None
    assert coupling_warning(torch.zeros(0)) is None
