"""A gain is of the numbers that are in bold, and names model, round and split of both sides."""

import json
from itertools import product

import numpy as np
import pytest

import pomona
from pomona.cli import main
from pomona.core.errors import ConfigError
from pomona.data import from_arrays
from pomona.results import table
from pomona.results.run_numbers import runs
from pomona.results.summary_table import run_table
from pomona.results.tables.gains import gain_tables
from pomona.results.text.cautions import cautions

pytestmark = pytest.mark.long
KEEP = ("last", "best")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Runs of two methods by ``keep``: their best round on validation is not the last."""
    out = tmp_path_factory.mktemp("runs")
    draw = np.random.default_rng(3)
    x = draw.normal(size=(240, 8))
    y = (x[:, 0] + draw.normal(size=240) > 0).astype(int)
    data = from_arrays(x, y, client=[f"s{k % 4}" for k in range(240)])
    for method, keep in product(("separate", "fedavg-ft"), KEEP):
        pomona.run(
            method=method,
            data=data,
            model="mlp",
            rounds=9,
            lr=0.5,
            batch_size=8,
            keep=keep,
            metric="accuracy",
            workers=1,
            out=out / f"{method}-{keep}",
        )
    return out


def called(capsys, *words):
    with pytest.raises(SystemExit, match="0"):
        main(["compare", *map(str, words)])
    return " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(("alone", "together"), list(product(KEEP, KEEP)))
def test_the_number_in_bold_is_the_one_that_the_gain_is_of(folders, capsys, alone, together):
    pair = folders / f"separate-{alone}", folders / f"fedavg-ft-{together}"
    rows = {row["method"]: row for row in table([*map(pomona.load, pair)]) if row["headline"]}
    judged = {name: row["judged"] for name, row in rows.items()}
    rounds = {name: row["judged_round"] for name, row in rows.items()}
    keys = {"last": "last", "best": "test_at_best_validation"}
    for method, keep in (("separate", alone), ("fedavg-ft", together)):
        assert judged[method] == rows[method][keys[keep]]
        assert (rounds[method] == 9) == (keep == "last")
    shown = run_table(list(rows.values()))
    bold = {shown.rows[i][j] for i, j in shown.marked if j}
    assert bold == {f"{100 * value:.2f}" for value in judged.values()}

    gain = 100 * (judged["fedavg-ft"] - judged["separate"])
    text = called(capsys, *pair)
    assert f"{gain:+.2f} percentage points".replace("-", "\u2212") in text
    sides = text.partition("Compared on test data: ")[2]
    assert f"round {rounds['fedavg-ft']}, the {_word(together)}" in sides
    assert f"round {rounds['separate']}, the {_word(alone)}" in sides
    mixed = "compared in the round best on validation"
    assert (mixed in text) == (alone != together)
    page = gain_tables(runs([*map(pomona.load, pair)]))[0].notes[0]
    for side in (alone, together):
        assert f"the {_word(side)}" in page.partition("Compared on test data: ")[2]

    written = json.loads(called(capsys, *pair, "--json"))
    (row,) = [one for one in written if one["method"] == "fedavg-ft" and one["headline"]]
    assert 100 * row["gain"] == pytest.approx(gain)
    assert (row["gain_over"], row["judged_round"]) == ("Separate", rounds["fedavg-ft"])
    assert f"round {rounds['separate']}, the {_word(alone)}" in row["gain_base"]
    assert [mixed in caution for caution in row["cautions"]] == [True] * (alone != together)
    on_page = [line for line in cautions(runs([*map(pomona.load, pair)])) if mixed in line]
    assert on_page == row["cautions"]


def _word(keep):
    return {"last": "last", "best": "best on validation"}[keep]


def test_gains_name_both_sides_and_runs_of_other_clients_have_none(folders):
    run, base = (pomona.load(folders / name) for name in ("fedavg-ft-best", "separate-last"))
    clients, mean = pomona.gains(run, base)
    for gain in (*clients, mean):
        assert "best on validation" in gain.model
        assert "round 9, the last" in gain.base_model
    other = pomona.run(method="separate", data="digits", clients=3, rounds=1, lr=0.1, workers=1)
    with pytest.raises(ConfigError, match=r"different clients, s0.* \(4\) and client 0.* \(3\)"):
        pomona.gains(run, other)
