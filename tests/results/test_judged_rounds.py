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
RULES = ("last", "best")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Runs of two methods by ``keep``: their best round on validation is not the last."""
    folder = tmp_path_factory.mktemp("runs")
    draw = np.random.default_rng(3)
    x = draw.normal(size=(240, 8))
    y = (x[:, 0] + draw.normal(size=240) > 0).astype(int)
    data = from_arrays(x, y, client=[f"s{k % 4}" for k in range(240)])
    for method, rule in product(("separate", "fedavg-ft"), RULES):
        pomona.run(
            method=method,
            data=data,
            model="mlp",
            rounds=9,
            lr=0.5,
            batch_size=8,
            keep=rule,
            metric="accuracy",
            workers=1,
            out=folder / f"{method}-{rule}",
        )
    return folder


def compare_output(capsys, *arguments):
    with pytest.raises(SystemExit, match="0"):
        main(["compare", *map(str, arguments)])
    return " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(("separate", "fedavg"), list(product(RULES, RULES)))
def test_the_number_in_bold_is_the_one_that_the_gain_is_of(folders, capsys, separate, fedavg):
    pair = folders / f"separate-{separate}", folders / f"fedavg-ft-{fedavg}"
    rows = {row["method"]: row for row in table([*map(pomona.load, pair)]) if row["headline"]}
    judged = {name: row["judged"] for name, row in rows.items()}
    rounds = {name: row["judged_round"] for name, row in rows.items()}
    keys = {"last": "last", "best": "test_at_best_validation"}
    for method, rule in (("separate", separate), ("fedavg-ft", fedavg)):
        assert judged[method] == rows[method][keys[rule]]
        assert (rounds[method] == 9) == (rule == "last")
    printed_table = run_table(list(rows.values()))
    bold = {printed_table.rows[i][j] for i, j in printed_table.marked if j}
    assert bold == {f"{100 * value:.2f}" for value in judged.values()}

    gain = 100 * (judged["fedavg-ft"] - judged["separate"])
    text = compare_output(capsys, *pair)
    assert f"{gain:+.2f} percentage points".replace("-", "\u2212") in text
    sides = text.partition("Compared on test data: ")[2]
    assert f"round {rounds['fedavg-ft']}, the {_label(fedavg)}" in sides
    assert f"round {rounds['separate']}, the {_label(separate)}" in sides
    mixed = "compared in the round best on validation"
    assert (mixed in text) == (separate != fedavg)
    page = gain_tables(runs([*map(pomona.load, pair)]))[0].notes[0]
    for side in (separate, fedavg):
        assert f"the {_label(side)}" in page.partition("Compared on test data: ")[2]

    written = json.loads(compare_output(capsys, *pair, "--json"))
    (row,) = [row for row in written if row["method"] == "fedavg-ft" and row["headline"]]
    assert 100 * row["gain"] == pytest.approx(gain)
    assert (row["gain_over"], row["judged_round"]) == ("Separate", rounds["fedavg-ft"])
    assert f"round {rounds['separate']}, the {_label(separate)}" in row["gain_base"]
    assert [mixed in caution for caution in row["cautions"]] == [True] * (separate != fedavg)
    on_page = [line for line in cautions(runs([*map(pomona.load, pair)])) if mixed in line]
    assert on_page == row["cautions"]


def _label(rule):
    return {"last": "last", "best": "best on validation"}[rule]


def test_gains_name_both_sides_and_runs_of_other_clients_have_none(folders):
    run, base = (pomona.load(folders / name) for name in ("fedavg-ft-best", "separate-last"))
    clients, mean = pomona.gains(run, base)
    for gain in (*clients, mean):
        assert "best on validation" in gain.model
        assert "round 9, the last" in gain.base_model
    digits = pomona.run(method="separate", data="digits", clients=3, rounds=1, lr=0.1, workers=1)
    with pytest.raises(ConfigError, match=r"different clients, s0.* \(4\) and client 0.* \(3\)"):
        pomona.gains(run, digits)
