"""Each client's model on the other clients' test rows."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

import pomona
from command_line import call
from pomona.core.errors import ConfigError, StorageError
from pomona.data import from_arrays
from pomona.personal import PersonalModel
from pomona.record.elsewhere import FILE, Elsewhere, read
from pomona.record.headline import headline_evaluation
from pomona.results.run_numbers import runs
from pomona.results.tables.elsewhere import evaluations, verdict
from pomona.results.text.cautions import cautions
from pomona.results.web.report_page import write
from pomona.scenario import Scenario
from pomona.scenario.description import groups_of_test_rows
from pomona.tasks.scores import compute

SITES = ("North", "South", "West")


class Quiet:
    """Takes the notes, which else are warnings."""

    def on_note(self, text):
        pass


def of_sites(targets="classes", flipped=(), sites=SITES, n=60, **settings):
    """Data of some sites; at the flipped ones the first column has the opposite effect."""
    draw, rows = np.random.default_rng(0), n * len(sites)
    shape = (rows, 8, 8, 1) if targets == "segmentation" else (rows, 4)
    x, site = draw.normal(size=shape).astype(np.float32), np.repeat(sites, n)
    score = np.where(np.isin(site, flipped), -1, 1) * x.reshape(rows, -1)[:, 0]
    y = {
        "classes": (score > 0).astype(int),
        "multilabel": np.stack([score > 0, score > 0.5], axis=1).astype(np.float32),
        "regression": (3 * score + 10)[:, np.newaxis],
        "survival": np.stack([np.exp(score + 2), draw.random(rows) < 0.8], axis=1),
        "segmentation": (x[..., 0] > 0).astype(np.uint8),
    }[targets]
    return from_arrays(x, y, client=site, targets=targets, test_share=0.4, **settings)


def trained(data, folder=None, **settings):
    settings = {"method": "separate", "rounds": 6, "lr": 0.2, "callback": Quiet(), **settings}
    return pomona.run(data=data, out=folder, **settings)


def prepared(result, data):
    return Scenario.prepare(pomona.Config(**{**result.config, "data": data}))


def outputs_at(result, scenario, model, site):
    """Outputs of a client's model, as its file has it, on another's test rows, and the targets."""
    rows = scenario.partition.clients[site].test
    outputs = PersonalModel.of(result, model).outputs(scenario.dataset.x[rows])
    return scenario.task.reduce(outputs, torch.from_numpy(np.asarray(scenario.dataset.y[rows])))


@pytest.mark.long
@pytest.mark.parametrize(
    ("targets", "settings"),
    [
        ("classes", {}),
        ("classes", {"metric": "auroc"}),
        ("classes", {"metric": "elsewhere_metric:share_of_first"}),
        ("multilabel", {}),
        ("regression", {"lr": 0.05}),
        ("regression", {"lr": 0.05, "metric": "r2"}),
        ("survival", {"lr": 0.05}),
        ("segmentation", {"model": {"name": "unet", "width": 4}}),
    ],
)
def test_every_model_is_scored_on_all_test_rows(targets, settings, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    code = "def share_of_first(p, y):\n    return float(p[:, 0].mean())\n"
    (tmp_path / "elsewhere_metric.py").write_text(code)
    data = of_sites(targets)
    result = trained(data, **settings)
    scores, scenario = pomona.elsewhere(result, data).scores, prepared(result, data)
    expected = [
        [
            compute(result.metric.name, *outputs_at(result, scenario, i, j), scenario.task)
            for j in range(3)
        ]
        for i in range(3)
    ]
    np.testing.assert_allclose(scores, expected, rtol=1e-5)
    np.testing.assert_allclose(np.diag(scores), headline_evaluation(result).value, rtol=1e-6)


def test_a_gain_is_paired_on_the_rows_of_the_others():
    """With one neighbour it is the paired t-test of right answers; at the margin, the one-sided
    test at half the level.
    """
    data = of_sites(flipped=["South"], sites=SITES[:2], n=400)
    result = trained(data, rounds=1, lr=0.02)
    gain, scenario = pomona.elsewhere(result, data).gains[0], prepared(result, data)
    foreign, local = (
        (outputs.argmax(1) == targets).double().numpy()
        for outputs, targets in (outputs_at(result, scenario, model, 1) for model in (0, 1))
    )
    test = stats.ttest_rel(foreign, local)
    assert gain.value == pytest.approx((foreign - local).mean())
    assert gain.interval == pytest.approx(tuple(test.confidence_interval()))
    at_margin = stats.ttest_1samp(foreign - local + 0.02, 0, alternative="less")
    assert (gain.p, gain.margin) == (pytest.approx(test.pvalue), 0.02)
    assert gain.p_fails == pytest.approx(max(test.pvalue, 2 * at_margin.pvalue))


def test_rows_of_one_patient_are_one_unit():
    groups = np.tile(np.repeat(np.arange(20), 3), 3)
    data = of_sites(group=groups)
    result = trained(data, rounds=1)
    patients = [len(np.unique(g)) for g in groups_of_test_rows(prepared(result, data)).values()]
    gains = pomona.elsewhere(result, data).gains
    assert [gain.pairs for gain in gains] == [sum(patients) - n for n in patients]
    assert all(gain.pairs < gain.rows for gain in gains)


@pytest.mark.parametrize(
    ("flipped", "margin", "failing"),
    [((), 0.02, []), (("South",), 0.02, [0, 1, 2]), (("South",), 0.99, [])],
)
def test_a_model_fails_elsewhere_if_it_loses_more_than_the_margin(flipped, margin, failing):
    data = of_sites(flipped=flipped)
    result = trained(data, verdict={"margin": margin})
    evaluated = pomona.elsewhere(result, data)
    assert evaluated.failing == failing
    assert evaluated.means() == pytest.approx(
        [(np.sum(line) - line[i]) / 2 for i, line in enumerate(evaluated.scores)]
    )


def test_what_is_undefined_is_named():
    """South trains and tests on one class only; West has hardly a test row."""
    x, draw = np.random.default_rng(1).normal(size=(130, 3)), np.random.default_rng(2)
    site = np.repeat(SITES, [60, 60, 10])
    y = np.where(site == "South", 1, draw.integers(0, 2, 130))
    data = from_arrays(x, y, client=site, test_share=0.4)
    result = trained(data, metric="auroc", rounds=1)
    evaluated = pomona.elsewhere(result, data)
    assert [line[1] for line in evaluated.scores] == [None] * 3
    assert evaluated.scores[1][0] is not None
    notes = "\n".join(evaluated.notes)
    assert "do not define AUROC: South." in notes
    negatives = (y[site == "North"] == 0).sum()
    assert negatives
    assert "class a client does not have: South (" in notes


def test_the_loss_is_the_one_that_was_minimised(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    entropy = "torch.nn.functional.cross_entropy(outputs, y, reduction='none')"
    loss = f"import torch\ndef doubled(outputs, y):\n    return 2 * {entropy}\n"
    (tmp_path / "elsewhere_loss.py").write_text(loss)
    data = of_sites()
    result = trained(data, metric="loss", rounds=1, model={"loss": "elsewhere_loss:doubled"})
    scores = pomona.elsewhere(result, data)
    np.testing.assert_allclose(np.diag(scores.scores), headline_evaluation(result).loss)
    assert scores.gains == [None] * 3  # predictions do not determine it
    assert scores.failing == []


def test_a_client_without_a_model_has_no_row():
    data = of_sites()
    result = trained(data, rounds=1)
    models = {i: model for i, model in result.models.items() if i != 1}
    evaluated = pomona.elsewhere(replace(result, models=models), data)
    assert evaluated.scores[1] == [None] * 3
    assert evaluated.scores[0][1] is not None
    assert evaluated.gains[1] is None
    assert [e.client for e in evaluated.gains[0].excluded] == [1]
    assert "no round: South." in evaluated.notes[0]


def test_rows_prepared_by_each_client_are_named():
    pandas = pytest.importorskip("pandas")
    x = np.random.default_rng(0).normal(size=(120, 2))
    frame = pandas.DataFrame({"a": x[:, 0], "b": x[:, 1], "ill": (x[:, 0] > 0).astype(int)})
    frame["hospital"] = np.repeat(["A", "B"], 60)
    columns = {"label_column": "ill", "client_column": "hospital"}
    data = pomona.data.from_frame(frame, fit="client", **columns)
    notes = pomona.elsewhere(trained(data, rounds=1), data).notes
    assert any("data.fit = client" in note for note in notes)


@pytest.mark.parametrize(
    ("changed", "data", "text"),
    [({"partition": None}, of_sites(), "deployed"), ({}, of_sites(n=50), "not those of the run")],
)
def test_no_other_data_and_no_deployed_models(changed, data, text):
    result = trained(of_sites(), rounds=1)
    with pytest.raises(ConfigError, match=text):
        pomona.elsewhere(replace(result, config={**result.config, **changed}), data)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("elsewhere") / "run"
    split = {"name": "dirichlet", "turn_groups": 2}
    settings = {"method": "separate", "partition": split, "clients": 4, "rounds": 2, "lr": 0.3}
    pomona.run(data="digits", out=folder, callback=Quiet(), **settings)
    return folder


@pytest.mark.long
def test_the_command_writes_what_the_report_shows(recorded, capsys, tmp_path):
    code, printed, _ = call(capsys, "elsewhere", recorded, "--json")
    assert code == 0
    printed = json.loads(printed)
    result = pomona.load(recorded)
    evaluated = read(result)
    assert printed["scores"] == evaluated.scores
    assert (printed["means"], printed["failing"]) == (evaluated.means(), evaluated.failing)
    (run,) = runs([result])
    page = write([result], tmp_path).read_text()
    assert "Each client&#39;s model elsewhere" in page
    assert "Accuracy in % elsewhere" in page
    for mean in evaluated.means():
        assert run.metric.number(mean) in page
    assert evaluated.failing
    assert verdict(run) in " ".join(cautions([run])).replace("\N{NO-BREAK SPACE}", " ")


def test_scores_of_an_earlier_round_are_not_shown(recorded):
    result = pomona.load(recorded)
    pomona.elsewhere(result)
    (run,) = runs([replace(result, rounds=result.rounds[:1])])
    assert evaluations(run) is None
    assert any("earlier round" in sentence for sentence in cautions([run]))


@pytest.mark.parametrize(
    "text", ["", "{}", '{"rounds": 2, "scores": [[1]], "gains": [null]}', '{"rounds": NaN}']
)
def test_a_damaged_file_is_refused(recorded, text):
    result = pomona.load(recorded)
    (recorded / FILE).write_text(text)
    with pytest.raises(StorageError, match="pomona elsewhere"):
        read(result)
    (recorded / FILE).unlink()


def test_numbers_that_are_not_finite_are_refused():
    gain = pomona.Gain(0.0, None, None, 3)
    text = Elsewhere(rounds=1, scores=[[0.5]], gains=[gain]).model_dump_json()
    assert Elsewhere.model_validate_json(text).gains == [gain]
    with pytest.raises(ValueError, match="finite"):
        Elsewhere.model_validate_json(text.replace('"value":0.0', '"value":NaN'))
