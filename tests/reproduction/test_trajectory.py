"""A client's trajectory over its loss surface: models, plane and losses are the run's own."""

import csv
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

import pomona
from pomona.config import Config, resolve
from pomona.core.errors import ConfigError
from pomona.scenario import Scenario

pytestmark = pytest.mark.long

FILE = Path(__file__).parents[2] / "reproduction" / "trajectory.py"
SCRIPT = runpy.run_path(str(FILE))
surface, trace, trajectory = (SCRIPT[name] for name in ("surface", "trace", "trajectory"))
BASE = {
    "data": {"name": "digits", "train_limit": 240, "test_limit": 120},
    "model": {"name": "mlp", "hidden": [8]},
    "partition": {"name": "pathological"},
    "clients": 4, "rounds": 5, "batch_size": 16, "lr": 0.1, "workers": 1,
}  # fmt: skip


def config_of(method: str, **overrides: object) -> Config:
    return resolve(BASE, {"method": {"name": method, **overrides}})


def test_runs_go_one_way_until_the_weights_learn_and_another_one_after(tmp_path: Path) -> None:
    picture = trajectory(
        [config_of("fedavg"), config_of("fedala", start_round=4)], 1, 2, tmp_path, points=4
    )
    paths = {
        method: {
            (r["round"], r["moment"]): (r["c1"], r["c2"], r["loss"])
            for r in picture.rows
            if r["method"] == method
        }
        for method in ("fedavg", "fedala")
    }
    steps = [(number, moment) for number in (2, 3, 4, 5) for moment in ("start", "end")]
    assert [list(path) for path in paths.values()] == [steps, steps]
    alike = [step for step in steps if paths["fedavg"][step] == paths["fedala"][step]]
    assert alike == [(2, "start"), (2, "end"), (3, "start"), (3, "end")]
    # Local training lowers the loss of the model that it starts from.
    assert all(
        path[number, "end"][2] < path[number, "start"][2]
        for path in paths.values()
        for number in (2, 3, 4, 5)
    )
    with (tmp_path / "trajectory.csv").open() as file:
        assert len(list(csv.DictReader(file))) == len(picture.rows)
    assert (tmp_path / "trajectory.png").stat().st_size > 5000
    contours = picture.figure.axes[0].collections[0]
    assert contours.get_array() is not None


def test_the_models_are_those_of_the_run_and_losses_are_measured_on_them(tmp_path: Path) -> None:
    config = config_of("fedavg")
    scenario = Scenario.prepare(config)
    traced = trace(scenario, 2, 3)
    assert traced.rounds == [3, 4, 5]
    # Round r starts from the mean of what round r - 1 sent; the run's last global model is the mean
    # of all last ends.
    shares = np.array([len(c.train) for c in scenario.partition.clients], dtype=float)
    models = [trace(scenario, i, 3).final.double().numpy() for i in range(4)]
    mean = sum(share * model for share, model in zip(shares / shares.sum(), models, strict=True))
    np.testing.assert_allclose(traced.initial[1:].numpy(), mean[:-1], atol=1e-6)
    result = pomona.run(config, tmp_path / "run")
    saved = load_file(tmp_path / "run" / "models" / "client-02.safetensors")
    np.testing.assert_allclose(
        np.sort(np.concatenate([v.ravel() for v in saved.values()])), np.sort(mean[-1]), atol=1e-6
    )
    # The loss in the round's record is averaged over its batches, on the way between these two.
    first, last = surface(
        scenario, 2, np.stack([traced.initial[-1].numpy(), traced.final[-1].numpy()])
    )
    assert last < result.rounds[-1].loss[2] < first


@pytest.mark.parametrize(
    ("configs", "client", "first_round", "message"),
    [
        ([], 0, 1, "at least one run"),
        ([config_of("separate")], 0, 1, "separate reports a different model"),
        ([config_of("fedavg")], 4, 1, "client 4: there are 4"),
        ([config_of("fedavg")], 0, 5, "trains in 1 rounds from round 5"),
        ([config_of("fedavg"), resolve(BASE, {"seed": 1})], 0, 1, "differ in data, partition or model"),
    ],
)  # fmt: skip
def test_what_cannot_be_drawn_is_said(
    configs: list[Config], client: int, first_round: int, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        trajectory(configs, client, first_round, tmp_path)
    assert not list(tmp_path.iterdir())


def test_the_script_draws_recorded_runs_and_says_what_it_cannot(tmp_path: Path) -> None:
    for method in ("fedavg", "apple"):
        pomona.run(config_of(method), tmp_path / method)

    def drawn(method: str) -> subprocess.CompletedProcess[str]:
        words = [tmp_path / method, "--client", "1", "--out", tmp_path / f"{method}-way"]
        return subprocess.run(
            [sys.executable, FILE, *map(str, words)], capture_output=True, text=True, check=False
        )

    process = drawn("fedavg")
    assert {Path(p) for p in process.stdout.split()} == {*(tmp_path / "fedavg-way").iterdir()}
    # APPLE's clients are judged by a mixture that no local training starts from.
    process = drawn("apple")
    assert process.stderr.startswith("error[CONFIG]: apple reports a different model")
    assert (process.returncode, (tmp_path / "apple-way").exists()) == (1, False)
