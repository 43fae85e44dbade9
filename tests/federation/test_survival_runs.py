"""Whole runs on times to an event: workers, resume, private gradients, files, predictions, the
report.
"""

import json

import numpy as np
import pytest
import torch

import pomona
from pomona import Config
from pomona.metrics.survival import c_index
from pomona.personal import PersonalModel
from pomona.personal.export import Raw, export
from pomona.record.run_folder import load
from pomona.scenario import Scenario
from pomona.tasks.survival import curves
from pomona.testing import task_checks
from pomona.testing.task_checks import patients
from representatives import representatives

pytestmark = pytest.mark.long


def config(**keys):
    data = {
        "name": f"{task_checks.__name__}:patients",
        "targets": "survival",
        "intervals": 6,
        **keys.pop("data", {}),
    }
    base = {
        "method": "fedavg",
        "clients": 3,
        "rounds": 3,
        "lr": 0.3,
        "workers": 1,
        "model": "logistic",
    }
    return Config(**{**base, "data": data, **keys})


@pytest.mark.parametrize("method", representatives(["fedavg-ft", "apple"], ["apple"]))
def test_workers_and_a_resume_change_no_byte(method, tmp_path):
    keys = {"method": method, "model": {"name": "mlp", "hidden": [8]}}
    expected, two_workers = pomona.run(config(**keys)), pomona.run(config(**keys, workers=2))
    pomona.run(config(**keys, rounds=1), tmp_path / "run")
    resumed = pomona.run(config(**keys), tmp_path / "run", resume=True)
    for result in (two_workers, resumed):
        for i, model in expected.models.items():
            assert all(torch.equal(model[k], result.models[i][k]) for k in model)
    assert two_workers.final == expected.final


@pytest.mark.slow
def test_rows_of_one_call_are_as_alone():
    keys = {"method": "apple", "model": {"name": "mlp", "hidden": [8]}}
    single, batched = pomona.run(config(**keys)), pomona.run(config(**keys, rows_per_call=3))
    for i, model in single.models.items():
        for k in model:
            torch.testing.assert_close(batched.models[i][k], model[k], rtol=1e-4, atol=1e-5)


def test_private_gradients_are_clipped_sample_by_sample(tmp_path):
    """With a bound C each sample's gradient is scaled by min(1, C / its norm), as computed one
    sample at a time.
    """
    privacy = {"noise_multiplier": 1.0, "max_grad_norm": 0.9, "delta": 1e-4}
    privacy["acknowledge"] = [
        "sample-counts",
        "metrics",
        "feature-moments",
        "training-loss",
        "unlimited-epsilon",
    ]
    scenario = Scenario.prepare(config(privacy=privacy, data={"time_edges": (20.0, 60.0, 150.0)}))
    w, rows = scenario.initial.make(0), scenario.resident.rows["train"][0][:12]
    gradients = torch.cat([scenario.objective().gradient(w[None], [row[None]])[1] for row in rows])
    norms = gradients.norm(dim=1)
    assert norms.min() < 0.9 < norms.max()
    expected = (gradients * (0.9 / norms).clamp(max=1)[:, None]).sum(0)
    _, total = scenario.private(tmp_path).clipped_sum(w, rows)
    torch.testing.assert_close(total.float(), expected, rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("survival") / "run"
    return folder, pomona.run(config(method="fedavg-ft", rounds=4), folder)


def test_the_record_has_every_figure_and_the_edges(run):
    folder, result = run
    edges = load(folder).about["edges"]
    assert len(edges) == 6
    assert edges == sorted(edges)
    outputs, targets = result.predictions(0)
    assert outputs.shape == (len(targets), 6)
    test = set(map(tuple, patients()[1].astype(np.float32)))
    assert {tuple(row) for row in targets} <= test  # in the unit of the data
    headline = [
        f
        for f in result.final
        if [f["model"], f["when"]] == result.about["headline"] and f["split"] == "test"
    ]
    figures = next(f for f in headline if f["client"] == 0)
    assert (
        figures["c_index"]
        == c_index(curves(outputs), targets.astype(float), np.ones((1, len(targets))))[0]
    )
    assert {"uno_c", "dynamic_auroc", "integrated_brier"} <= figures["intervals"].keys()
    assert result.about["constant"]["own"]["c_index"]["mean"] == 0.5  # nobody is told apart


def test_gains_over_training_alone_are_paired(run):
    _, ours = run
    separate = pomona.run(config(method="separate", rounds=4))
    clients, mean = pomona.gains(ours, separate)
    values = [run.curve(*run.about["headline"], "test")[-1].value for run in (ours, separate)]
    assert [gain.value for gain in clients] == pytest.approx(
        [a - b for a, b in zip(*values, strict=True)]
    )
    assert mean.low <= mean.value <= mean.high


def test_a_model_file_answers_with_survival(run):
    folder, _ = run
    model = PersonalModel.load(folder / "models" / "client-00.safetensors")
    x, _ = patients()
    rows = model.predict(x[:4])
    expected = curves(model.outputs(x[:4]).numpy())
    edges = list(model.about.edges)
    for row, beyond in zip(rows, expected, strict=True):
        assert [np.float32(name) for name in row["survival"]] == edges
        assert list(row["survival"].values()) == pytest.approx(beyond)
        below = [edge for edge, s in zip(model.about.edges, beyond, strict=True) if s <= 0.5]
        assert (row["median"] and np.float32(row["median"])) == (below[0] if below else None)
    with torch.no_grad():
        assert Raw(model)(torch.from_numpy(x[:4])).numpy() == pytest.approx(
            model.outputs(x[:4]).numpy(), abs=1e-6
        )


def test_an_export_names_the_edges(run, tmp_path):
    folder, _ = run
    model = PersonalModel.load(folder / "models" / "client-00.safetensors")
    export(model, tmp_path / "m.pt2", "pt2")
    extra = {"pomona": ""}
    program = torch.export.load(tmp_path / "m.pt2", extra_files=extra)
    assert json.loads(extra["pomona"])["edges"] == list(model.about.edges)
    x = torch.from_numpy(patients()[0][:5])
    torch.testing.assert_close(program.module()(x), model.outputs(x.numpy()))
    onnx = pytest.importorskip("onnxruntime")
    export(model, tmp_path / "m.onnx", "onnx")
    session = onnx.InferenceSession(tmp_path / "m.onnx")
    assert json.loads(session.get_modelmeta().custom_metadata_map["pomona"])["edges"] == list(
        model.about.edges
    )
    assert session.run(None, {"inputs": x.numpy()})[0] == pytest.approx(
        model.outputs(x.numpy()).numpy(), abs=1e-5
    )


def test_the_report_draws_survival_by_risk(run):
    from pomona.results.figures.plot import drawing
    from pomona.results.figures.stills import risk_groups, survival
    from pomona.results.run_numbers import runs
    from pomona.results.tables.by_task import survival_table

    prepared = runs([load(run[0])])
    groups = risk_groups(prepared[0])
    sizes = [len(run[1].predictions(i)[1]) for i in range(3)]
    assert sum(len(group.targets) for group in groups) == sum(sizes)
    assert max(len(g.targets) for g in groups) - min(len(g.targets) for g in groups) <= 1
    with drawing():
        figure = survival(prepared)
    assert figure.title == "Survival by predicted risk"
    first = figure.rows[0]
    assert (first["time"], first["share"], first["at_risk"]) == (0.0, 1.0, len(groups[0].targets))
    # who is said to be at low risk outlives who is said to be at high risk
    shares = {row["risk"]: row["share"] for row in figure.rows if row["time"] <= 60}
    assert shares["low"] > shares["high"]
    (table,) = survival_table(prepared)
    assert [row[0] for row in table.rows] == ["client 0", "client 1", "client 2", "worst client"]
    worst = min(
        f["c_index"] for f in run[1].final if (f["model"], f["split"]) == ("personal", "test")
    )
    assert table.rows[-1][3] == f"{worst:.3f}"


def test_runs_of_classes_have_no_such_figure():
    from pomona.results.figures.stills import survival
    from pomona.results.run_numbers import runs
    from pomona.results.tables.by_task import survival_table

    prepared = runs([pomona.run(Config(clients=2, rounds=1, lr=0.1, workers=1, model="logistic"))])
    assert survival(prepared) is None
    assert survival_table(prepared) == []
