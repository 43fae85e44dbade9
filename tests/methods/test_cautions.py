"""Warnings of methods before a run whose settings keep them from working."""

import pytest

import pomona
from pomona.federation.run_checks import caution
from pomona.methods import METHODS
from problems import Notes, a_round, tiny

DIMINISHING, FIFTY = {"alpha_schedule": "diminishing"}, tuple(range(50, 100))


@pytest.mark.parametrize(
    ("name", "settings", "lr", "expected"),
    [
        ("ditto", {"lambda": 1.0}, 1.0, "lr x lambda = 1"),
        ("ditto", {"lambda": 10.0}, 0.3, "lr x lambda = 3"),
        ("ditto+ala", {"lambda": 10.0}, 0.3, "lr x lambda = 3"),
        ("ditto", {"lambda": 1.0}, 0.99, None),
        ("pfedme", {"personal_lr": 0.09}, 0.3, "personal_lr x lambda = 1.35"),
        ("pfedme", {}, 0.3, None),
        ("fedavg", {}, 10.0, None),
    ],
)
def test_a_step_that_forgets_is_warned_of(name, settings, lr, expected):
    caution = METHODS[name](**settings).method().caution(a_round(lr=lr), 3)
    assert expected in caution if expected else caution is None


@pytest.mark.parametrize(
    ("name", "settings", "rate"),
    [
        ("pfedme", {"personal_lr": 0.1}, "method.personal_lr"),
        ("pfedme+ala", {"personal_lr": 0.1}, "method.personal_lr"),
        ("fedas", {"alignment_lr": 0.1}, "method.alignment_lr"),
        *(
            (name, {}, "method.server_lr" if "server_lr" in method.model_fields else None)
            for name, method in METHODS.items()
            if name != "apple"
        ),
    ],
)
def test_a_client_that_diverges_is_pointed_to_a_rate_that_is_set(name, settings, rate):
    assert METHODS[name](**settings).method().client.rate == rate


@pytest.mark.parametrize(
    ("name", "settings", "overrides", "expected"),
    [
        # lambda / alpha_k = k, lr 0.1: 1 from round 10 on.
        ("fedamp", DIMINISHING, {"rounds": 9}, None),
        ("heurfedamp", DIMINISHING, {"rounds": 30}, "lr x lambda / alpha = 3 in round 30"),
        # The rate falls as fast as the pull grows: 0.1 k 0.9^(k - 1) is below 1 at any k.
        ("fedamp", DIMINISHING, {"rounds": 30, "lr_decay": 0.9}, None),
        # Cosine: at the ends 0.1 and almost 0; 0.1 k (1 + cos(pi (k - 1) / K)) / 2 reaches 0.85 of
        # 30 rounds, 2.7 of 100.
        ("fedamp", DIMINISHING, {"rounds": 30, "lr_schedule": "cosine"}, None),
        ("fedamp", DIMINISHING, {"rounds": 100, "lr_schedule": "cosine"}, "from 3.8 on it"),
        # lambda / alpha = sqrt(100) in every round, or 1 / 0.05.
        ("fedamp", {"alpha_schedule": "sqrt"}, {"rounds": 100}, "alpha = 1 in round 1;"),
        ("heurfedamp", {"alpha": 0.05}, {}, "lr x lambda / alpha = 2 in round 1;"),
        ("fedamp", {"alpha": 0.05, "lambda": 0.0}, {}, None),
        ("fedamp", {}, {}, None),
        # Unset, alpha is 1 / (N A'(0)) = 25 / N from 25 clients on: lambda / alpha is 4 of 100
        # clients.
        ("fedamp", {}, {"clients": 100, "lr": 0.2}, None),
        ("fedamp", {}, {"clients": 100, "lr": 0.3}, "lr x lambda / alpha = 1.2 in round 1;"),
        ("fedamp", {}, {"clients": 100, "lr": 0.3, "membership": {"unseen": FIFTY}}, None),
        ("heurfedamp", {}, {"clients": 100, "lr": 0.3}, None),
        # 0.3 / 4 in round 1, the whole of it from round 4 on.
        ("ditto", {"lambda": 10.0}, {"lr": 0.3, "lr_warmup_rounds": 3, "rounds": 9}, "ambda = 3"),
        # The scheduler lambda(r) is over after a fifth of the rounds.
        ("apple", {"mu": 0.1}, {"rounds": 4}, "method.mu has no effect"),
        ("apple", {"mu": 0.1}, {"rounds": 5}, None),
        ("apple", {"schedule": "exponential"}, {"rounds": 5}, "set method.mu"),
        ("apple", {"schedule": "exponential", "mu": 0.0}, {"rounds": 5}, None),
    ],
)
def test_a_run_is_warned_of_its_worst_rounds(name, settings, overrides, expected):
    text = caution(tiny(name, settings, **{"momentum": 0.9, **overrides}))
    assert expected in text if expected else text is None


@pytest.mark.parametrize(
    ("settings", "overrides", "does", "does_not"),
    [
        ({"alpha_schedule": "sqrt"}, {"rounds": 400}, "fewer rounds", "method.alpha "),
        (DIMINISHING, {"rounds": 30}, "lr_decay", "fewer rounds"),
        ({"alpha": 0.05}, {}, "method.alpha well above", "fewer rounds"),
        ({}, {"clients": 1000}, "method.lambda", "method.alpha "),
    ],
)
def test_the_advice_names_what_the_pull_follows_from(settings, overrides, does, does_not):
    text = caution(tiny("fedamp", settings, **overrides))
    assert does in text
    assert does_not not in text


def test_a_run_says_it():
    notes = Notes()
    pomona.run(tiny("ditto", {"lambda": 10.0}, lr=0.1, rounds=1), callback=notes)
    assert ["forgets the personal model" in text for text in notes.said] == [True]
