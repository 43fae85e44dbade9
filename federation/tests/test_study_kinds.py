"""Studies that evaluate models, and studies that select settings."""

import json
import shutil
import tomllib

import numpy as np
import pytest
import tomli_w

import pomona
from federation_in_process import audited, lost
from pomona.core.errors import ConfigError, QuorumError
from pomona.experiments.job import figures
from pomona.metrics.intervals import wilson
from pomona.models.weights import read as weights_of
from pomona.personal import PersonalModel
from pomona.storage.lock import locked
from pomona.storage.run_status import read_status
from pomona_federation import flower_apps, status
from pomona_federation.monitoring.metrics import of_silo
from pomona_federation.monitoring.watched_server import WatchedServer
from pomona_federation.server.search_study import SearchResult, Trial, _files
from pomona_federation.server.study_queue import StudyQueue
from pomona_federation.server.study_requests import result_text
from pomona_federation.silo.settings import SiloFile
from pomona_federation.silo.silo_in_study import Silo
from pomona_federation.silo.silo_scenario import own_scenario
from pomona_federation.silo.study_decisions import StudyDecisions
from pomona_federation.silo.study_facts import facts
from pomona_federation.study import read_study, weights_file
from test_studies import decided, own_models, proposals, study_file

pytestmark = pytest.mark.long


@pytest.fixture
def federation(world):
    """Three silos whose kits come with a study."""
    return world.federation()


def evaluation_file(federation, name="cross", **changes):
    """A ``STUDY.toml`` that evaluates the models of the kit's own study."""
    path = federation.toml.with_name(f"{name}.toml")
    terms = {"name": name, "kind": "evaluate", "quorum": 1, "evaluate": {"of": "kit"}}
    path.write_text(tomli_w.dumps(terms | changes))
    return path


def submitted(federation, path, silos=None):
    """The folder of a study that these silos have accepted and all others declined, before its
    run.
    """
    study = StudyQueue(federation.server).submit(path)
    for silo in federation.names:
        proposals(federation, silo)
        decided(federation, silo, study.study.name, silos is None or silo in silos)
    return federation.server / "run/studies" / study.study.name


def ran(federation, path, silos=None):
    """The folder of a study that these silos have accepted, after its run."""
    folder = submitted(federation, path, silos)
    federation.run(folder.name)
    return folder


def cells(folder):
    """The result of an evaluation by model, silo and split: samples, value, interval."""
    rows = json.loads((folder / "evaluation.json").read_text())["cells"]
    return {
        (c["model"], c["silo"], c["split"]): (c["samples"], c["value"], c["interval"]) for c in rows
    }


def judged(federation, path, silo, split):
    """The same from a model file and a silo's data alone."""
    kit = federation.kits / silo
    terms = StudyQueue(federation.server).federation.kit_terms
    file = SiloFile.load(kit / "silo.toml")
    data = own_scenario(file, terms, federation.names.index(silo))
    rows = getattr(data.partition.clients[0], split)
    answers = PersonalModel.load(path).outputs(data.dataset.x[rows]).argmax(1).numpy()
    hits = int((answers == data.dataset.y[rows]).sum())
    return len(rows), round(hits / len(rows), 4), [round(b, 4) for b in wilson(hits, len(rows))]


def own_file(federation, silo):
    """A silo's personal model of the kit's own study."""
    return federation.kits / silo / "state/models/personal.safetensors"


# evaluate


@pytest.mark.parametrize("method", ["apple", "fedavg"])  # the latter's models are the same bytes
def test_the_matrix_is_that_of_each_model_file_on_each_silos_data(world, method):
    federation = world.federation(method=method)
    federation.run()
    matrix = cells(ran(federation, evaluation_file(federation)))
    assert matrix == {
        (model, silo, split): judged(federation, own_file(federation, model), silo, split)
        for model in federation.names
        for silo in federation.names
        for split in ("test", "validation")
    }
    assert len({value for _, value, _ in matrix.values()}) > 2
    assert "| silo-1 |" in result_text(federation.server, "cross", "md")
    assert own_models(federation, "cross") == {}  # nothing was trained


def test_a_silo_that_never_trained_judges_the_models_of_the_others(federation):
    offline = next(node for node, kit in federation.grid.folders.items() if kit.name == "silo-2")
    federation.grid.gone.add(offline)
    federation.run()
    federation.grid.gone.clear()
    folder = ran(federation, evaluation_file(federation))
    matrix = cells(folder)
    assert {model for model, _, _ in matrix} == {"silo-0", "silo-1"}
    value = judged(federation, own_file(federation, "silo-0"), "silo-2", "test")
    assert matrix["silo-0", "silo-2", "test"] == value
    assert json.loads((folder / "evaluation.json").read_text())["silos"] == federation.names


def test_who_declines_neither_judges_nor_sends_its_model(federation):
    federation.run()
    folder = ran(federation, evaluation_file(federation), silos=("silo-0", "silo-2"))
    assert {(model, silo) for model, silo, _ in cells(folder)} == {
        (model, silo) for model in ("silo-0", "silo-2") for silo in ("silo-0", "silo-2")
    }
    evaluation = json.loads((folder / "evaluation.json").read_text())
    assert (evaluation["declined"], evaluation["absent"]) == (["silo-1"], [])
    assert "No model came from silo-1." in (folder / "evaluation.md").read_text()


def test_given_weights_are_judged_everywhere_and_no_model_travels(federation, caplog):
    federation.run()
    terms = {"task": study_terms(federation)["task"], "evaluate": {}}
    weights = own_file(federation, "silo-1")
    model = {"name": "mlp", "hidden": [8], "init": str(weights)}
    path = weights_file(federation.kits / "silo-0", weights_of(weights).sha256)
    for silo in federation.names:  # as their administrators do by hand
        (federation.kits / silo / path.parent.name).mkdir()
        shutil.copy(weights, federation.kits / silo / path.parent.name / path.name)
    caplog.clear()
    folder = ran(federation, evaluation_file(federation, "given", run={"model": model}, **terms))
    assert cells(folder) == {
        ("given", silo, split): judged(federation, weights, silo, split)
        for silo in federation.names
        for split in ("test", "validation")
    }
    sizes = [
        int(text.split()[-2])
        for text in caplog.messages
        if text.startswith("answered with an uplink of")
    ]
    assert len(sizes) == 6
    assert max(sizes) < weights.stat().st_size / 10


def study_terms(federation):
    """The terms of the kit's own study."""
    return tomllib.loads(federation.toml.read_text())


def test_scores_on_few_samples_never_leave_the_silo(federation, monkeypatch):
    federation.run()
    minimum = judged(federation, own_file(federation, "silo-0"), "silo-1", "validation")[0] + 1
    monkeypatch.setattr("pomona_federation.study.LEAST_SAMPLES", minimum)
    matrix = cells(ran(federation, evaluation_file(federation)))
    assert {silo for _, silo, split in matrix if split == "validation"} == {"silo-0", "silo-2"}


def test_a_model_is_not_judged_by_data_that_have_changed_since_it_was_trained(federation):
    federation.run()
    path = federation.kits / "silo-1/silo.toml"
    file = tomllib.loads(path.read_text())
    path.write_text(tomli_w.dumps(file | {"data": {**file["data"], "validation_share": 0.5}}))
    folder = ran(federation, evaluation_file(federation))
    evaluation = json.loads((folder / "evaluation.json").read_text())
    assert evaluation["absent"] == ["silo-1"]
    refused = [r["reason"] for r in audited(federation.kits / "silo-1/state", "refused")]
    assert any("differs from what its model was trained on" in reason for reason in refused)


def test_an_evaluation_from_which_nothing_came_has_failed_and_says_of_whom(federation):
    def refused_at_the_end(message, reply):
        body = json.loads(flower_apps.unpacked(message.content).body)
        return lost(message) if body.get("trains") is False else reply

    federation.run()
    federation.grid.faults.append(refused_at_the_end)
    with pytest.raises(QuorumError, match="why SILO"):
        ran(federation, evaluation_file(federation))
    silos = status.server(federation.server, "cross")["silos"]
    assert [silo["unused"]["round"] for silo in silos] == [2, 2, 2]


def test_a_file_of_data_may_be_moved_in_a_study(federation):
    """What is pinned at the first task has no path."""
    kit, hashes = federation.kits / "silo-1", set()
    file = tomllib.loads((kit / "silo.toml").read_text())
    section = {key: value for key, value in file["data"].items() if key != "clients"}
    for name in ("train.npz", "moved.npz"):
        (kit / "data/train.npz").rename(kit / "data" / name)
        tree = file | {"data": {**section, "path": f"data/{name}"}}
        (kit / "silo.toml").write_text(tomli_w.dumps(tree))
        hashes.add(Silo(kit).local.partition.sha256)
    assert len(hashes) == 1


def test_an_evaluation_that_does_not_fit_is_refused_when_it_is_submitted(federation):
    submit = StudyQueue(federation.server).submit
    with pytest.raises(ConfigError, match="no silo has a model"):
        submit(evaluation_file(federation))
    with pytest.raises(ConfigError, match="no study 'nobody'"):
        submit(evaluation_file(federation, evaluate={"of": "nobody"}))
    with pytest.raises(ConfigError, match=r"run.rounds has no effect"):
        submit(evaluation_file(federation, run={"rounds": 3}))
    with pytest.raises(ConfigError, match="share_scores"):
        submit(evaluation_file(federation, share_scores=False))
    with pytest.raises(ConfigError, match="evaluate"):
        submit(evaluation_file(federation, kind="train"))


# search


SPACE = {"lr": [0.02, 0.1, 0.4], "method.mu": [0.0, 0.5]}


def search_file(federation, name="tune", **changes):
    """A ``STUDY.toml`` that searches over the terms of the kit's own study."""
    return study_file(
        federation, name, kind="search", **{"search": {"space": SPACE, "points": 3}, **changes}
    )


def trials(folder):
    """The trials of a search."""
    return json.loads((folder / "search.json").read_text())


def test_the_winner_is_that_of_simulations_chosen_by_validation(federation, world):
    folder = ran(federation, search_file(federation))
    search = trials(folder)
    scores = []
    for number, trial in enumerate(search["trials"]):
        config = federation.simulation
        method = config.method.model_copy(update={"mu": trial["point"]["method.mu"]})
        config = config.model_copy(update={"lr": trial["point"]["lr"], "method": method})
        result = pomona.run(config, world.folder / f"simulated-{number}")
        best = figures(result)["validation"]
        scores.append(best["value"])
        assert trial["score"] == pytest.approx(best["value"], abs=1e-4)
        assert trial["best_round"] == best["round"]
    assert (len(scores), len(set(scores)) > 1) == (3, True)
    assert search["winner"] == int(np.argmax(scores))
    page, score = (folder / "search.md").read_text(), search["trials"][search["winner"]]["score"]
    texts = "accuracy in %", f"**{100 * score:.4g}**", "****"
    assert [text in page for text in texts] == [True, True, False]


@pytest.mark.parametrize("metric", ["loss", "accuracy"])
def test_small_scores_of_a_search_keep_their_digits_and_a_loss_is_not_in_percent(metric):
    point = {"lr": 0.1}
    trial = Trial(number=0, agreement="", point=point, score=-3e-5, metric="loss", best_round=1)
    result = SearchResult(metric=metric, rule="the first", trials=(trial,), winner=0)
    assert _files(result, "small", 1).tables[0].rows == [["0", "0.1", "-3e-05", "1", ""]]


def test_no_score_on_test_samples_leaves_a_silo_in_a_search(federation):
    folder = ran(federation, search_file(federation))
    for trial in (folder / "trials").iterdir():
        events = [json.loads(line) for line in (trial / "events.jsonl").read_text().splitlines()]
        splits = {e["split"] for e in events if e["event"] == "evaluation"}
        assert splits == {"validation"}


def test_the_winners_study_trains_with_its_settings(federation):
    folder = ran(federation, search_file(federation))
    search = trials(folder)
    study = read_study(folder / "STUDY.toml")
    assert (study.kind, study.name) == ("train", "tune-best")
    point = search["trials"][search["winner"]]["point"]
    assert (study.run["lr"], study.run["method"]["mu"]) == (point["lr"], point["method.mu"])
    best_folder = ran(federation, folder / "STUDY.toml")
    assert read_status(best_folder).state == "finished"
    assert own_models(federation, "tune-best")


def test_a_search_that_was_killed_repeats_no_finished_trial(federation):
    folder = submitted(federation, search_file(federation))
    search = StudyDecisions(federation.kits / "silo-0").lookup("tune")

    def killed(message, reply):
        if search.trials[1] in str(message.content):
            raise SystemExit(143)
        return reply

    federation.grid.faults.append(killed)
    with pytest.raises(SystemExit):
        federation.run("tune")
    first = (folder / "trials/000/events.jsonl").read_bytes()
    assert read_status(folder).state == "interrupted"
    federation.grid.faults.clear()
    federation.grid.sent.clear()
    federation.run("tune")
    assert not [m for m in federation.grid.sent if search.trials[0] in str(m.content)]
    assert (folder / "trials/000/events.jsonl").read_bytes() == first
    assert [t["number"] for t in trials(folder)["trials"]] == [0, 1, 2]


def test_while_a_search_runs_it_is_seen_for_whom_its_trial_waits(federation):
    """Asked by silo-1, in the last round of the second trial of three rounds each."""
    submitted(federation, search_file(federation))
    search, news = StudyDecisions(federation.kits / "silo-0").lookup("tune"), []

    def record(message, reply):
        if message.metadata.dst_node_id == 11 and search.trials[1] in str(message.content):
            news.append((status.server(federation.server), status.silo(federation.kits / "silo-0")))
        return reply

    federation.grid.faults.append(record)
    with locked(federation.server / "run"):
        federation.run("tune")
    at_server, at_silo = news[-1]
    assert (at_server["state"], at_server["trial"], at_server["rounds"]) == ("running", 1, 3)
    assert at_server["waiting"]["asked"] == federation.names
    assert [silo["state"] for silo in at_server["silos"]] == ["present"] * 3
    entry = next(row for row in at_silo["studies"] if row["study"] == "tune")
    assert entry["round"] >= 3
    view = next(
        v for v in WatchedServer(federation.server).studies() if v.status["study"] == "tune"
    )
    assert view.audited.committed
    samples = [s for m in of_silo(federation.kits / "silo-0")().metrics for s in m.samples]
    assert any(s.name == "pomona_silo_round" and s.labels == {"study": "tune"} for s in samples)


def test_nothing_runs_under_the_hash_of_the_search_itself(federation):
    submitted(federation, search_file(federation))
    search = StudyDecisions(federation.kits / "silo-0").lookup("tune")
    assert len({search.agreement, *search.trials}) == 4
    with pytest.raises(Exception, match="its trials run"):
        search.trial(search.agreement)


def test_a_policy_counts_the_rounds_of_all_trials(federation):
    submitted(federation, search_file(federation, search={"space": {"rounds": [2, 5]}}))
    study_facts = facts(Silo.in_study(federation.kits / "silo-0", "tune"))
    assert study_facts.traffic.rounds == 7


def test_a_trial_that_diverges_loses(federation):
    space = {"lr": [1e20, 0.1]}
    search = trials(ran(federation, search_file(federation, search={"space": space})))
    assert [bool(t["fault"]) for t in search["trials"]] == [True, False]
    assert search["winner"] == 1


def test_a_search_without_validation_samples_chooses_nothing(federation):
    for silo in federation.names:
        path = federation.kits / silo / "silo.toml"
        file = tomllib.loads(path.read_text())
        file["data"]["validation_share"] = 0.0
        path.write_text(tomli_w.dumps(file))
    with pytest.raises(QuorumError, match="validation"):
        ran(federation, search_file(federation))


@pytest.mark.parametrize(
    ("search", "message"),
    [
        ({"space": {"lr": []}}, "lr"),
        ({"space": {}}, "space"),
        ({"space": {"model.init": ["/etc/passwd"]}}, "space"),
        ({"space": {"method.mu": ["os:system"]}}, "space"),
        ({"space": {"method.name": ["fedavg"]}}, "the same in all trials"),
        ({"space": {"model.init": ["weights.safetensors"]}}, "the same in all trials"),
        ({"space": {"privacy.noise_multiplier": [1.0]}}, "the same in all trials"),
        ({"space": {"secure_aggregation.minimum": [2, 3]}}, "the same in all trials"),
        ({"space": {"lr": [0.1], "nonsense": [1]}}, "nonsense"),
        ({"space": {f"k{'x' * k}": list(range(100)) for k in range(3)}}, "limit is 10000"),
    ],
)
def test_a_search_that_cannot_be_is_refused_when_it_is_submitted(federation, search, message):
    with pytest.raises(ConfigError, match=message):
        StudyQueue(federation.server).submit(search_file(federation, search=search))


def test_a_search_with_privacy_is_refused(federation):
    run = {
        **study_terms(federation)["run"],
        "privacy": {"noise_multiplier": 1.0, "max_grad_norm": 1.0, "delta": 1e-5},
        "keep": "best",
    }
    with pytest.raises(ConfigError, match=r"2 problems.*would cost more epsilon.*own_best"):
        StudyQueue(federation.server).submit(search_file(federation, run=run))


PRIVACY = {"noise_multiplier": 1.0, "max_grad_norm": 1.0, "delta": 1e-5, "epsilon_budget": 8.0}


@pytest.mark.parametrize(
    ("run", "reason"),
    [
        ({"privacy": PRIVACY}, r"not covered by privacy: sample-counts .*; metrics"),
        (
            {"method": "pfedfda", "privacy": {**PRIVACY, "acknowledge": ["metric"]}},
            "3 problems.*without noise; take fedrep.*mean metrics.*not covered by privacy: sample",
        ),
    ],
)
def test_what_every_silo_would_refuse_is_refused_when_it_is_submitted(federation, run, reason):
    terms = tomllib.loads(federation.toml.read_text())["run"]
    path = study_file(federation, "later", run={**terms, **run})
    with pytest.raises(ConfigError, match=f"(?i){reason}"):
        StudyQueue(federation.server).submit(path)
