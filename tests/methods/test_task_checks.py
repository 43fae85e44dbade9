"""The run checks detect errors: each of these methods breaks one rule."""

import os
from dataclasses import replace
from typing import Literal

import pytest
import torch

from pomona.core.training_settings import Optimizer
from pomona.federation import run_checks
from pomona.methods import base
from pomona.methods.one_model.fedavg import FedAvg
from pomona.testing.round_checks import adamw_trains_rows_as_alone_and_otherwise_than_sgd
from pomona.testing.task_checks import PARTLY_FROZEN, a_run_trains_with_adamw_or_refuses_it, trains


class Faulty(base.MethodSettings):
    """FedAvg with one fault."""

    fault: Literal[
        "none", "climbs", "names its process", "spoils what is frozen", "sgd whatever is asked"
    ]

    def method(self):
        method = FedAvg().method()

        def train(state, received, training, round_):
            initial = received["model"]
            training.observe("global", initial, "received")
            if self.fault == "sgd whatever is asked":
                round_ = replace(round_, optimizer=Optimizer())
            W = base.sgd(training, initial.clone(), round_)
            info = {}
            match self.fault:
                case "climbs":
                    W = 2 * initial - W
                case "names its process":
                    info = {"process": torch.full((len(W),), float(os.getpid()))}
                case "spoils what is frozen":
                    dict(training.objective._module.named_parameters())["fc1.bias"].data += 1e-6
            return None, {"model": W}, info

        return replace(method, client=base.Client(base.stateless, train))


def test_a_method_without_a_fault_passes():
    trains(PARTLY_FROZEN, Faulty(fault="none"))


@pytest.mark.parametrize("fault", ["climbs", "names its process", "spoils what is frozen"])
def test_a_run_with_a_fault_does_not(fault):
    with pytest.raises(AssertionError):
        trains(PARTLY_FROZEN, Faulty(fault=fault))


def test_a_card_that_promises_any_steps_is_held_to_them():
    adamw_trains_rows_as_alone_and_otherwise_than_sgd(Faulty(fault="none"))
    with pytest.raises(AssertionError, match="AdamW's steps are those of SGD"):
        adamw_trains_rows_as_alone_and_otherwise_than_sgd(Faulty(fault="sgd whatever is asked"))


def test_a_card_for_sgd_must_be_refused_adamw(monkeypatch):
    from pomona.methods.personal_regularisation.pfedme import PFedMe

    a_run_trains_with_adamw_or_refuses_it(PFedMe())
    monkeypatch.setattr(run_checks, "require_steps", lambda *_: None)
    with pytest.raises(AssertionError, match=r"optimizer\.name: the card excludes this run"):
        a_run_trains_with_adamw_or_refuses_it(PFedMe())
