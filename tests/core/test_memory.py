"""Out-of-memory errors of Python, NumPy and PyTorch become one line; other errors are unchanged."""

import numpy as np
import pytest
import torch

from pomona.config import resolve
from pomona.core.errors import ConfigError, OutOfMemoryError, explaining_memory_errors
from pomona.federation import client_states as state

NEVER = 2**58  # bytes: more than any machine's address space


def plainly():
    raise MemoryError


@pytest.mark.parametrize(
    ("allocate", "message"),
    [
        (plainly, "not enough memory; "),
        (lambda: np.empty(NEVER, np.uint8), "256. PiB more"),
        (lambda: torch.empty(NEVER, dtype=torch.uint8), f"{2**58 / 1e9:.1f} GB more"),
    ],
)
def test_memory_that_is_short_is_one_line(allocate, message):
    with (
        pytest.raises(OutOfMemoryError, match="drawing: not enough memory") as caught,
        explaining_memory_errors("drawing"),
    ):
        allocate()
    assert message.replace(".", "") in str(caught.value).replace(".", "")
    assert caught.value.code == 11


def test_other_faults_stay_what_they_are():
    with pytest.raises(RuntimeError, match="mat1") as caught, explaining_memory_errors("drawing"):
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")
    assert type(caught.value) is RuntimeError


@pytest.mark.parametrize(
    ("settings", "workers", "copies", "own_copies"),
    [
        ({}, 1, 4, 4),  # initial row, network, row, gradient
        ({"momentum": 0.9}, 1, 5, 5),
        ({"optimizer": {"name": "adam"}}, 1, 6, 6),
        ({}, 2, 1 + 2 + 2 * 2, 4),  # of two processes the initial row is one
        ({"participation": 0.25}, 2, 1 + 2 + 2, 4),  # one of four clients trains
    ],
)
def test_what_training_holds_at_once_must_fit(settings, workers, copies, own_copies, monkeypatch):
    config = resolve({"method": "fedavg", "clients": 4, **settings})
    d = 1000
    machine = {"have": 4 * d * copies, "own": 4 * d * own_copies}
    monkeypatch.setattr(state, "machine_memory", lambda: machine["have"])
    monkeypatch.setattr(state, "process_memory", lambda: machine["own"])
    state.require_training(config, d, workers)
    nodes = [machine["own"], machine["have"] - machine["own"]]
    state.require_training(config, d, workers, nodes)
    with pytest.raises(ConfigError, match="the cluster may have"):
        state.require_training(config, d, workers, [nodes[0], nodes[1] - 1])
    machine["have"] -= 1
    with pytest.raises(ConfigError, match="this machine may have"):
        state.require_training(config, d, workers)
    machine["have"], machine["own"] = 10**9, machine["own"] - 1
    with pytest.raises(ConfigError, match=r"training 1,000 parameters needs .* a process may have"):
        state.require_training(config, d, workers)
