"""Simulations with secure aggregation: the plain mean within the fixed point, and who can have it."""

import re

import numpy as np
import pytest
import torch

import pomona
from pomona.config import resolve
from pomona.core.errors import ConfigError, QuorumError
from pomona.core.fixed_point import error
from pomona.core.training_settings import SecureAggregation
from pomona.federation.round_plan import select
from pomona.federation.secure_sum import excess, mean
from pomona.methods import METHODS
from pomona.record.run_folder import load
from pomona.storage.run_status import read_status
from pomona.testing.conformance import small
from problems import Notes
from representatives import drawn

pytestmark = pytest.mark.long

SUMS = [name for name, settings in METHODS.items() if settings().method().server.sums]
SINGLE = [
    "apple",
    "fedavg+median",
    "fedfomo",
    "fedamp",
    "pfedgraph",
    "ifca",
    "q-fedavg",
    "fednova",
    "scaffold",
    "cfl",
]
TERMS = {"max_norm": 50.0}


def run(folder, method="fedavg", terms=TERMS, **settings):
    """Models of all clients after a small run."""
    config = resolve(
        small({"name": method}).tree(), {"secure_aggregation": terms} if terms else {}, settings
    )
    pomona.run(config, folder)
    models = sorted((folder / "models").glob("client-*.safetensors"))
    return [np.concatenate([t.reshape(-1) for _, t in sorted(read(m).items())]) for m in models]


def read(path):
    from safetensors.numpy import load_file

    return load_file(path)


@pytest.mark.parametrize("method", ["fedavg", "fedadam", *drawn(SUMS, 1)])
def test_models_are_those_of_the_plain_mean_within_the_fixed_point(method, tmp_path):
    """After a round; later ones train on the differences. With an optimizer's step they grow."""
    plain = run(tmp_path / "plain", method, None, rounds=1)
    summed = run(tmp_path / "summed", method, rounds=1)
    exact = run(tmp_path / "exact", method, {**TERMS, "bits": 64}, rounds=1)
    precision = error(SecureAggregation(**TERMS), 4) + 2**-20  # float32 of numbers below 8
    adaptive = method in ("fedadam", "fedadagrad", "fedyogi")
    steps = 1e4 if adaptive else 10.0  # 1 / tau there; ALA and fine-tuning train on them
    for model, in_32_bits, in_64_bits in zip(plain, summed, exact, strict=True):
        assert np.abs(model - in_32_bits).max() <= steps * precision
        assert np.abs(model - in_64_bits).max() <= steps * 2**-20


def test_a_note_says_once_that_changes_are_clipped_and_how_long_they_are(tmp_path):
    terms = {"secure_aggregation": {"max_norm": 0.01}}
    pomona.run(resolve(small({"name": "fedavg"}).tree(), terms), tmp_path / "run", notes := Notes())
    clip_notes = [line for line in notes.said if "max_norm" in line]
    assert len(clip_notes) == 1
    assert "round 1: 4 of 4 clients' changes are longer" in clip_notes[0]


def test_clipping_shortens_the_mean(tmp_path):
    """Four clients' changes of norm 1e-3 at most move the model by no more."""
    config = small({"name": "fedavg"}, rounds=1)
    initial = run(tmp_path / "start", terms={"max_norm": 1e-6}, rounds=1)[0]
    changed = run(tmp_path / "moved", terms={"max_norm": 1e-3}, rounds=1)[0]
    assert config.rounds == 1
    assert 1e-4 < np.linalg.norm(changed - initial) <= 1e-3 * 1.01


@pytest.mark.parametrize("method", SINGLE)
def test_a_method_whose_server_needs_single_models_is_refused_and_others_are_named(
    method, tmp_path
):
    with pytest.raises(ConfigError, match=rf"the server of {re.escape(method)} .* fedavg, "):
        run(tmp_path / "run", method)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"buffers": "average"}, "BatchNorm statistics"),
        ({"clients": 2}, "may have 2 clients"),
        ({"clients": 12, "participation": 0.2}, f"may have {round(0.2 * 12)} clients"),
        (
            {"clients": 4, "membership": {"leaves": {"0": 1}, "unseen": [3]}},
            f"have {4 - 2} clients",
        ),
    ],
)
def test_what_a_sum_cannot_serve_is_refused(settings, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        run(tmp_path / "run", **settings)


def test_a_round_of_fewer_than_the_minimum_fails_before_it_is_trained(tmp_path):
    settings = {"absence": 0.5, "rounds": 9, "seed": 1}
    config = resolve(small({"name": "fedavg"}).tree(), settings)
    sizes = [len(select(config, tuple(range(config.clients)), k)) for k in range(1, 10)]
    index = next(k for k, size in enumerate(sizes) if size < 3)
    with pytest.raises(
        QuorumError, match=rf"round {index + 1} asks {sizes[index]} of 4 .*3 are needed; .* absence"
    ):
        run(tmp_path / "run", **settings)
    assert read_status(tmp_path / "run").round == index


def test_a_resumed_run_has_the_same_bits_and_its_record_says_what_it_summed(tmp_path):
    unbroken = run(tmp_path / "whole", rounds=3)
    run(tmp_path / "part", rounds=2)
    config = resolve(load(tmp_path / "part").config, {"rounds": 3})
    pomona.run(config, tmp_path / "part", resume=True)
    resumed = [
        np.concatenate([t.reshape(-1) for _, t in sorted(read(m).items())])
        for m in sorted((tmp_path / "part" / "models").glob("client-*.safetensors"))
    ]
    assert all(np.array_equal(a, b) for a, b in zip(unbroken, resumed, strict=True))
    assert load(tmp_path / "whole").config["secure_aggregation"] == {
        **TERMS,
        "minimum": 3,
        "bits": 32,
    }


def test_a_sum_longer_than_clipped_changes_can_make_is_recognised():
    terms, spec = SecureAggregation(max_norm=1.0), {"model": torch.zeros(1000)}
    rng = np.random.default_rng(0)
    garbage = rng.integers(0, 2**32, 1000, np.uint32)  # masks that do not cancel
    assert "did not mask as the others" in excess(garbage, 4, terms)
    assert not excess(np.zeros(1000, np.uint32), 4, terms)
    assert mean(np.zeros(1000, np.uint32), {}, spec, terms)["model"].abs().max() == 0
