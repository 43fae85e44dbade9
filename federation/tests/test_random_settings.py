"""Settings drawn at random, several at a time: a deployed study has its simulation's models, and a
run with two workers, or one that was interrupted and resumed, has the models and events of an
undisturbed one. ``POMONA_TEST_SEED`` draws others.
"""

import json

import pytest
from safetensors.numpy import load_file

import pomona
from federation_in_process import deployed, equal, settings
from pomona.core.errors import ConfigError, QuorumError
from pomona.core.rng import stream
from pomona.methods import METHODS
from representatives import seed

pytestmark = pytest.mark.slow
DRAWS = 12
NOISE = {"noise_multiplier": 1.0, "max_grad_norm": 1.0, "delta": 1e-3, "seed": 1}
COMMON = [
    {},
    {"local_steps": 3},
    {"local_epochs": 2},
    {"momentum": 0.9, "weight_decay": 0.01},
    {"lr_schedule": "cosine", "lr_milestones": []},
    {"lr_schedule": "steps", "lr_milestones": [1, 2]},
    {"participation": 0.6},
    {"participation": 0.6, "keep": "own_best"},
    {"keep": "own_best", "eval_every": 2},
    {"stop": {"patience": 1, "after": 1}},
    {"optimizer": "adam", "momentum": 0.0, "lr": 0.01},
    {"model": "logistic", "augment": ["noise:0.1"]},
    {"model": {"name": "mlp", "hidden": [8, 6]}, "batch_size": 1000},
    {"largest_share": 0.5},
    {"secure_aggregation": {"max_norm": 5.0, "minimum": 2}},
    {"privacy": {**NOISE, "acknowledge": ["metrics", "sample-counts", "unlimited-epsilon"]}},
]
SIMULATED = [*COMMON, {"keep": "best"}, {"absence": 0.3}, {"membership": {"unseen": [1]}}]


def drawn_settings(number, choices):
    """A method, and three of the choices, as settings of a small run on digits."""
    draw = stream(number, seed())
    methods = [name for name in METHODS if name not in {"auto", "fedavg-data"}]
    numbers = {"clients": (2, 6), "rounds": (2, 5), "seed": (0, 10)}
    tree = {name: int(draw.integers(*bounds)) for name, bounds in numbers.items()}
    for index in draw.choice(len(choices), 3, replace=False):
        tree |= choices[index]
    return tree | {"method": str(draw.choice(methods))}


def recorded(folder):
    """The models of a run's folder, and its events but for their times."""
    models = {
        path.stem: load_file(path) for path in sorted((folder / "models").glob("client-*.s*"))
    }
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    compared = ("evaluation", "round")
    rows = [{**e, "seconds": 0} for e in events if e["event"] in compared]
    return {n: {k: t.tobytes() for k, t in model.items()} for n, model in models.items()}, rows


@pytest.mark.parametrize("number", range(DRAWS))
def test_a_deployed_study_has_the_models_of_its_simulation(number, world):
    tree = drawn_settings(number, COMMON)
    try:
        federation = world.federation(tree.pop("method"), run=tree, insecure=True)
        federation.run()
    except (ConfigError, QuorumError) as fault:
        pytest.skip(f"refused: {fault}"[:200])
    assert equal(deployed(federation), world.simulated(federation))


class Interrupted:
    """Interrupts a run after its first round."""

    def on_round_end(self, row, evaluations):
        if row.round == 1:
            raise KeyboardInterrupt


@pytest.mark.parametrize("number", range(DRAWS, 3 * DRAWS))
def test_workers_and_an_interruption_change_neither_models_nor_events(number, tmp_path):
    tree = drawn_settings(number, SIMULATED)
    try:
        config = settings(**tree)
        pomona.run(config, tmp_path / "one")
    except (ConfigError, QuorumError) as fault:
        pytest.skip(f"refused: {fault}"[:200])
    pomona.run(settings(**tree, workers=2), tmp_path / "two")
    with pytest.raises(KeyboardInterrupt):
        pomona.run(config, tmp_path / "resumed", callback=Interrupted())
    pomona.run(config, tmp_path / "resumed", resume=True)
    expected = recorded(tmp_path / "one")
    assert recorded(tmp_path / "two") == expected
    assert recorded(tmp_path / "resumed") == expected
