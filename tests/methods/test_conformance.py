"""One table for every method: the public checks, for all names and for settings that change a
method's course.
"""

import pytest

from pomona.methods import METHODS
from pomona.testing import conformance
from pomona.testing.task_checks import TASK_CHECKS
from representatives import KINDS_OF_METHOD

VARIANTS = [
    ("apple", {"budget": 1}),
    ("apple", {"budget": 2, "selection": "uniform"}),
    ("apple", {"mu": 1.0}),
    ("apple", {"core_step": "local"}),
    ("apple", {"core_step": "local", "budget": 1, "mu": 1.0}),
    ("apple", {"core_radius": 1.0}),
    ("apfl", {"adaptive": True}),
    ("fedamp", {"start": "cloud"}),
    ("fedamp", {"attention": "scad"}),
    ("fedfomo", {"budget": 1}),
    ("fedala", {"layers": 2, "round_epochs": 0}),
    ("per-fedavg", {"order": "hf"}),
    ("per-fedavg", {"order": "exact"}),
    ("partialfed", {"rule": "lower-shared"}),
    ("fedbabu", {"finetune": "head"}),
    ("fedavg-ft", {"finetune_head_epochs": 1}),
    ("fed-rod", {"gamma": 0.0, "head_start": "copy"}),
    ("fedrep", {"shared": ("*weight",)}),
    ("fedala", {"layers": ("*weight",)}),
    ("ifca", {"clusters": 3}),
    ("ditto", {"feature_weight": 1.0}),
    ("mr-mtl", {"feature_weight": 1.0}),
    ("fedcross", {"models": 2, "partner": "in-order"}),
    ("floco", {"region_round": 1}),
    ("fedsa-lora", {"head": "shared"}),
    ("pfedgraph", {"similarity": "models"}),
    ("fedselect", {"limit": 0.0}),
    ("pfedfda", {"betas": 2}),
    ("pgfed", {"mixing": "client"}),
    ("pgfedmo", {"mixing": "client", "budget": 1}),
]
ROUNDS = [
    ("fedamp", {"alpha_schedule": "sqrt"}),
    ("heurfedamp", {"alpha_schedule": "sqrt"}),
    ("fedphp", {"mu": 0.0}),
]
DOWNLOADS = [("fedfomo", {"budget": 2, "candidates": "everybody"}), ("fedfomo-ma", {"budget": 1})]
EVERY = [(name, {}) for name in METHODS]
TABLE = EVERY + VARIANTS
MASKS = [
    ("apple", {"budget": 1}),
    ("fedala", {"layers": 2}),
    ("fedphp", {"transfer": "distillation"}),
    ("per-fedavg", {"order": "hf"}),
    ("partialfed", {"rule": "lower-shared"}),
]
RUNS = {check.__name__ for check in TASK_CHECKS}
LONG_CHECKS = {
    "a_client_reads_only_rows_that_it_was_sent",
    "clients_of_one_class_and_partial_participation_work",
    "the_loss_falls_towards_the_known_optimum",
    "who_joins_later_and_who_never_trained_take_part",
}
SHARED_HALVES = {
    *("fedavg-local", "fedprox-ft", "fedprox-c", "fedavgm", "fedadagrad", "fedyogi", "pgfedmo"),
    *("fedprox+ala", "per-fedavg+ala", "pfedme+ala", "ditto+ala", "fedphp+ala"),
}
"""Methods whose halves are put together of others' in this table, by functions that another one
runs.
"""


def label(name, settings):
    return name + "".join(f" {k}={v}" for k, v in settings.items())


every_method = pytest.mark.parametrize(
    ("name", "settings"), TABLE, ids=[label(*case) for case in TABLE]
)


def method(name, settings):
    return METHODS[name](**settings).method()


def checks(table, selects=lambda check: True):
    """The checks of all methods in a table."""
    return [
        pytest.param(check, id=f"{label(name, settings)}: {check}", marks=marks(name, str(check)))
        for name, settings in table
        for check in conformance(METHODS[name](**settings))
        if selects(check)
    ]


def marks(name, check):
    """The gate runs the short checks of a method of each kind, and draws of all others; what runs on
    a task is left to slow tests but once a kind.
    """
    representative = name in KINDS_OF_METHOD
    if representative and check not in RUNS | LONG_CHECKS:
        return []
    slow = not representative if check in RUNS else check in LONG_CHECKS and name in SHARED_HALVES
    return [pytest.mark.long, *[pytest.mark.slow] * slow]


def one_run(check):
    """All checks of rounds, and one run check: for variants whose runs differ little from their
    method's.
    """
    return str(check) not in RUNS or str(check) == "a_run_trains_survival"


def of_masks(check):
    """The check on masks, for variants that use outputs, layers or second derivatives."""
    return str(check) == "a_run_trains_segmentation"


@pytest.mark.parametrize(
    "check", checks(EVERY) + checks(VARIANTS, one_run) + checks(MASKS, of_masks)
)
def test_conformance(check):
    check()


@pytest.mark.parametrize("check", checks(DOWNLOADS, lambda check: "how_many_models" in str(check)))
def test_a_card_says_how_many_models_a_client_receives(check):
    check()


@pytest.mark.parametrize(
    "check", checks(ROUNDS, lambda check: "how_many_there_will_be" in str(check))
)
def test_a_card_says_whether_a_round_depends_on_how_many_there_will_be(check):
    check()
