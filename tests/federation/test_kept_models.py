"""Which model a client's file holds: each chosen one is that of a run that ended in its round."""

import pytest
import torch

import pomona
from pomona.core.errors import ConfigError
from problems import tiny

RUN = {"rounds": 6, "model": {"name": "mlp", "hidden": [8]}, "metric": "accuracy", "lr": 2.0, "local_epochs": 2}


def rounds_chosen(result, keep):
    """The round whose model each client's file must hold, from the record's evaluations; of equals the first."""
    model, when = result.about["headline"]
    curve = [e for e in result.curve(model, when, "validation") if e.round > 0]
    if keep == "own_best":
        own = {i: [(e.by_client(e.value, [i])[0], e.round) for e in curve] for i in range(len(result.about["clients"]))}
        return {i: max(known, key=lambda at: (at[0], -at[1]))[1] for i, known in own.items()}
    best = max(curve, key=lambda e: (e.mean, -e.round)).round if keep == "best" else result.rounds[-1].round
    return dict.fromkeys(range(len(result.about["clients"])), best)


def same(ours, theirs):
    return ours.keys() == theirs.keys() and all(torch.equal(ours[k], theirs[k]) for k in ours)


@pytest.mark.parametrize("keep", ["last", "best", "own_best"])
@pytest.mark.parametrize("method", ["apfl", "fedavg"])
def test_files_hold_the_model_of_the_round_that_is_asked_for(tmp_path, keep, method):
    out = tmp_path / "run"
    result = pomona.run(tiny(method, **RUN, keep=keep), out)
    chosen = rounds_chosen(result, keep)
    assert keep == "last" or min(chosen.values()) < RUN["rounds"]
    in_memory = pomona.run(tiny(method, **RUN, keep=keep, workers=2))
    shorter = {number: pomona.run(tiny(method, **{**RUN, "rounds": number})) for number in set(chosen.values())}
    for client, number in chosen.items():
        assert same(result.models[client], shorter[number].models[client])
        assert same(in_memory.models[client], result.models[client])


@pytest.mark.parametrize("keep", ["best", "own_best"])
def test_a_run_that_goes_on_chooses_as_if_it_had_never_ended(tmp_path, monkeypatch, keep):
    from pomona.federation.checkpointing import Checkpointing

    config, commit = tiny("apfl", **RUN, keep=keep), Checkpointing.commit
    whole = pomona.run(config)
    for cut in (2, 4, 6):

        def breaks(self, number, tensors, meta, cut=cut):
            commit(self, number, tensors, meta)
            if number == cut:
                raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(Checkpointing, "commit", breaks)
            with pytest.raises(KeyboardInterrupt):
                pomona.run(config, tmp_path / str(cut))
        resumed = pomona.run(config, tmp_path / str(cut), resume=True)
        assert all(same(resumed.models[i], whole.models[i]) for i in whole.models)


def test_with_an_early_stop_and_few_clients_a_round_the_best_is_kept_too():
    over = {**RUN, "participation": 0.5, "stop": {"patience": 2}, "keep": "best"}
    result = pomona.run(tiny("fedavg", **over))
    (number,) = set(rounds_chosen(result, "best").values())
    shorter = pomona.run(tiny("fedavg", **{**RUN, "participation": 0.5, "rounds": number}))
    assert all(same(result.models[i], shorter.models[i]) for i in result.models)


def test_without_validation_samples_nothing_can_be_chosen():
    config = tiny("fedavg", **RUN, keep="own_best")
    config = config.model_copy(update={"data": config.data.model_copy(update={"validation_share": 0.0})})
    with pytest.raises(ConfigError, match="keep looks at validation samples"):
        pomona.run(config)


def test_the_card_names_the_round_of_the_file_and_its_figures(tmp_path):
    result = pomona.run(tiny("fedavg", **RUN, keep="own_best"), tmp_path / "run")
    model, when = result.about["headline"]
    for client, number in rounds_chosen(result, "own_best").items():
        values = [
            f"{split} {result.metric.number(e.by_client(e.value, [client])[0])}"
            for split in ("validation", "test")
            for e in result.curve(model, when, split)
            if e.round == number
        ]
        said = (tmp_path / f"run/models/client-{client:02d}.card.md").read_text()
        assert f"model of round {number}, {result.metric.heading}: {', '.join(values)}." in said.replace("\\", "")
