"""A run, end to end, with any number of workers."""

import json
import os

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

import pomona
from pomona.core.errors import (
    ConfigError,
    DataError,
    DivergedError,
    LockedError,
    PomonaError,
    StorageError,
)
from pomona.federation.client import ClientRuntime
from pomona.federation.round_plan import is_evaluated, round_of, select
from pomona.federation.transport import spread
from pomona.record.run_folder import load
from problems import Notes, tiny

pytestmark = pytest.mark.long


def dies(self, visit, downlink):
    """A worker that is killed in the middle of a round."""
    if 0 in visit.ids:
        os._exit(9)
    return []


def outcome(result):
    """All results of a run, without times."""
    rounds = [(r.round, r.cohort, r.loss, r.bytes_down, r.bytes_up) for r in result.rounds]
    info = [{k: v.tolist() for k, v in r.info.items()} for r in result.rounds]
    return rounds, info, result.evaluations, result.final


def test_fedprox_without_its_term_is_fedavg():
    avg, prox = pomona.run(tiny("fedavg")), pomona.run(tiny("fedprox", {"mu": 0.0}))
    assert outcome(avg) == outcome(prox)


def test_fedavg_local_is_a_view_of_the_same_run():
    assert outcome(pomona.run(tiny("fedavg"))) == outcome(pomona.run(tiny("fedavg-local")))


def test_fedavg_training_is_untouched_by_fine_tuning():
    avg, tuned = pomona.run(tiny("fedavg")), pomona.run(tiny("fedavg-ft"))
    assert avg.curve("global", "received") == tuned.curve("global", "received")
    assert avg.curve("local", "trained") == tuned.curve("local", "trained")


def test_evaluations_are_named_and_numbered():
    result = pomona.run(tiny("fedavg", rounds=5, eval_every=2))
    assert [e.round for e in result.curve("global", "received")] == [0, 2, 4, 5]
    assert [e.round for e in result.curve("local", "trained")] == [2, 4, 5]
    assert [e.round for e in result.curve("global", "received", "validation")] == [0, 2, 4, 5]
    assert result.curve("global", "received")[-1].clients == (0, 1, 2, 3)


def test_a_received_model_is_numbered_by_the_round_it_was_made_in():
    """The same global model, evaluated at the end of a 2-round run and in passing in a 4-round
    run.
    """
    brief, longer = (pomona.run(tiny("fedavg", rounds=2)), pomona.run(tiny("fedavg", rounds=4)))
    assert brief.curve("global", "received")[-1] == longer.curve("global", "received")[2]


def test_final_metrics_agree_with_the_last_evaluation():
    result = pomona.run(tiny("apple"))
    last = result.curve("personal", "trained")[-1]
    final = {f["client"]: f for f in result.final if f["split"] == "test"}
    for client, accuracy, samples in zip(last.clients, last.accuracy, last.samples, strict=True):
        assert final[client]["accuracy"] == pytest.approx(accuracy)
        assert final[client]["samples"] == samples
        low, high = final[client]["intervals"]["accuracy"]
        assert low <= accuracy <= high


def test_figures_of_outcomes_are_recorded_of_test_samples_at_a_threshold_from_validation():
    result = pomona.run(tiny("separate", data={"name": "breast-cancer", "validation_share": 0.2}))
    for final in result.final:
        assert ("outcomes" in final) == (final["split"] == "test")
        for figures in final.get("outcomes", ()):  # of two classes, the second
            assert (figures["outcome"], figures["samples"]) == (1, final["samples"])
            assert figures["positives"] == sum(final["confusion"][1])
            assert figures["chosen"] or figures["threshold"] == 0.5
    assert any(figures["chosen"] for final in result.final for figures in final.get("outcomes", ()))


def test_part_of_the_clients_takes_part_and_everybody_is_evaluated():
    config = tiny("fedavg", participation=0.5, rounds=4)
    result = pomona.run(config)
    cohorts = [r.cohort for r in result.rounds]
    assert all(len(c) == 2 for c in cohorts)
    assert len(set(cohorts)) > 1
    assert [e.clients for e in result.curve("global", "received")] == [(0, 1, 2, 3)] * 5
    trained = set()
    for evaluation, cohort in zip(result.curve("local", "trained"), cohorts, strict=True):
        trained |= set(cohort)
        assert set(evaluation.clients) == trained
    assert outcome(pomona.run(tiny("fedavg", participation=0.5, rounds=4, workers=2))) == outcome(
        result
    )


def test_bytes_are_models_times_their_size():
    result = pomona.run(tiny("apple", {"budget": 2}))
    # a byte a client says whose cores are there
    model, request, presence = (4 * result.about["parameters"], 2 * 8, 4)
    assert all(r.bytes_up == (model + request,) * 4 for r in result.rounds)
    first, *later = (r.bytes_down for r in result.rounds)
    assert first == (presence,) * 4  # every client makes the initial cores itself
    assert later == [(2 * model + presence,) * 4] * 2
    assert result.summary["bytes_down"] == 2 * 4 * 2 * model + 3 * 4 * presence
    separate = pomona.run(tiny("separate"))
    assert separate.summary["bytes_down"] == separate.summary["bytes_up"] == 0


def test_the_record_is_read_back_as_it_was(tmp_path):
    result = pomona.run(tiny("apple"), tmp_path / "run")
    loaded = load(tmp_path / "run")
    assert outcome(loaded) == outcome(result)
    assert (loaded.config, loaded.about, loaded.summary) == (
        result.config,
        result.about,
        result.summary,
    )
    assert json.loads((tmp_path / "run/summary.json").read_text()) == result.summary
    assert len((tmp_path / "run/clients.csv").read_text().splitlines()) == 1 + sum(
        len(e.clients) for e in result.evaluations
    )


def test_models_and_private_parts_are_kept_apart(tmp_path):
    result = pomona.run(tiny("apple"), tmp_path / "run")
    model = load_file(tmp_path / "run/models/client-02.safetensors")
    assert sum(v.size for v in model.values()) == result.about["parameters"]
    private = load_file(tmp_path / "run/private/client-02.safetensors")
    assert np.allclose(private["dr"][0], result.rounds[-1].info["dr"][2])
    assert "dr" not in model


def test_a_saved_model_answers_as_it_was_evaluated(tmp_path):
    from pomona.personal import PersonalModel
    from pomona.scenario import Scenario

    config = tiny("apple")
    result = pomona.run(config, tmp_path / "run")
    scenario = Scenario.prepare(config)
    last = result.curve("personal", "trained")[-1]
    for client in range(4):
        rows = scenario.partition.clients[client].test
        net = PersonalModel.load(tmp_path / f"run/models/client-{client:02d}.safetensors")
        answers = net.predict(scenario.dataset.x[rows])
        right = [
            a["class"] == str(y) for a, y in zip(answers, scenario.dataset.y[rows], strict=True)
        ]
        assert np.mean(right) == pytest.approx(last.accuracy[client])


def test_a_folder_that_holds_a_run_is_left_alone(tmp_path):
    pomona.run(tiny("separate"), tmp_path / "run")
    content = {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()}
    with pytest.raises(LockedError, match="already holds a run"):
        pomona.run(tiny("fedavg"), tmp_path / "run")
    assert {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()} == content


def test_a_place_that_cannot_be_written_is_found_before_training(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(StorageError, match="cannot write"):
        pomona.run(tiny("separate"), tmp_path / "file" / "run")
    with pytest.raises(StorageError, match="no readable run"):
        load(tmp_path)


def test_a_record_without_its_start_or_with_odd_settings_is_refused(tmp_path):
    pomona.run(tiny("separate", rounds=1), tmp_path / "run")
    (tmp_path / "run" / "status.json").unlink()  # as where the files were sent without it
    events, config = (tmp_path / "run" / name for name in ("events.jsonl", "config.toml"))
    settings = config.read_text()
    assert "\nseed = 0\n" in settings
    for invalid in (
        settings.replace("\nseed = 0\n", "\nseed = [1, 2]\n"),
        settings + '[attack]\nclients = [0]\nkind = "unknown"\n',
    ):
        config.write_text(invalid)
        with pytest.raises(StorageError, match=r"no readable run \(config\.toml: "):
            load(tmp_path / "run")
    config.write_text(settings)
    assert load(tmp_path / "run").clients == 4
    events.write_text("")
    with pytest.raises(StorageError, match="its start is not recorded"):
        load(tmp_path / "run")


@pytest.mark.parametrize("workers", [1, 2])
def test_divergence_names_client_round_and_step(workers):
    with pytest.raises(DivergedError, match=r"client \d+, round \d+, step \d+"):
        pomona.run(tiny("separate", lr=1e30, rounds=20, workers=workers))


def test_a_worker_that_dies_is_named(monkeypatch):
    monkeypatch.setattr(ClientRuntime, "visit", dies)
    with pytest.raises(PomonaError, match=r"clients [0-9, ]+ died"):
        pomona.run(tiny("separate", workers=2))


def test_a_missing_gpu_is_said(monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="device=cpu"):
        pomona.run(tiny("separate", device="cuda"))


def test_rounds_decay_and_selection_are_functions_of_the_round():
    config = tiny(
        "fedavg", lr=1.0, lr_decay=0.5, participation=0.5, clients=10, rounds=4, eval_every=3
    )
    assert [round_of(config, n).lr for n in (1, 2, 3)] == [1.0, 0.5, 0.25]
    assert [is_evaluated(config, n) for n in range(5)] == [True, False, False, True, True]
    clients = tuple(range(10))
    assert select(config, clients, 2) == select(config, clients, 2)
    assert {len(select(config, clients, n)) for n in range(1, 9)} == {5}
    assert select(tiny("fedavg"), (0, 1, 2, 3), 1) == (0, 1, 2, 3)


def test_work_is_spread_evenly():
    assert spread([10, 1, 1, 8], 2) == [(0,), (1, 2, 3)]
    assert spread([1, 1], 5) == [(0,), (1,)]
    assert sorted(i for g in spread([3, 1, 4, 1, 5, 9, 2, 6], 3) for i in g) == list(range(8))


def test_one_client_and_one_class_work():
    single_client = pomona.run(tiny("apple", clients=1))
    assert single_client.rounds[-1].info["dr"].shape == (1, 1)
    single_class = tiny("apple", partition={"name": "classes", "classes_per_client": 1}, clients=10)
    result = pomona.run(single_class)
    assert all(f["auroc"] is None for f in result.final)
    assert all(f["accuracy"] is not None for f in result.final)


def test_no_validation_split_is_no_trouble():
    result = pomona.run(
        tiny("fedavg", data={"name": "digits", "train_limit": 240, "validation_share": 0.0})
    )
    assert result.curve("global", "received", "validation") == []
    assert result.summary["models"]["global, received"]["best_validation"] is None


def test_other_tasks_run(tmp_path):
    table = pomona.run(
        tiny(
            "apple",
            data={"name": "breast-cancer"},
            model={"name": "logistic"},
            partition={"name": "dirichlet", "beta": 5.0},
        )
    )
    assert table.summary["models"]["personal, trained"]["last"]["test"] > 0.8


@pytest.mark.parametrize("name", ["fedfomo", "fedfomo-ma"])
def test_a_method_that_validates_names_who_cannot(name, tmp_path):
    data = {"name": "digits", "train_limit": 240, "test_limit": 120, "validation_share": 0.0}
    with pytest.raises(DataError, match=rf"client 1.*{name}.*data\.validation_share"):
        pomona.run(tiny(name, data=data), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("precision", "flags", "count"),
    [
        ("bf16", {}, 1),
        ("bf16", {"avx512_bf16": False}, 1),
        ("bf16", {"amx_bf16": True}, 0),
        ("fp32", {}, 0),
    ],
)
def test_bf16_on_a_processor_without_it_is_said_to_be_slower(monkeypatch, precision, flags, count):
    notes = Notes()
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: flags)
    pomona.run(tiny("fedavg", rounds=1, precision=precision), callback=notes)
    assert len(notes.said) == count
    assert all("bf16 is slower than fp32" in note for note in notes.said)
