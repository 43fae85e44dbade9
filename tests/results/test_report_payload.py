"""The page's data: the record's numbers, whole or in bytes, within a page's limits."""

import base64
import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from learned_results import CFL, clustered, each_kind, showing, weighed
from report_results import comparison, degenerate, halved, result

from pomona.core.rng import stream
from pomona.record.result import Result
from pomona.results import table
from pomona.results.run_numbers import runs
from pomona.results.web import page_data as packing
from pomona.results.web.live_run_page import LivePageCallback, following
from pomona.results.web.page_data import pack, payload
from pomona.results.web.report_page import embedded, refresh, write


def unpack(packed: dict[str, Any]) -> np.ndarray:
    """The page's own decoder, in NumPy."""
    raw = base64.b64decode(packed["bytes"])
    if "low" not in packed:
        return np.frombuffer(raw, "<f4").reshape(packed["shape"]).astype(np.float64)
    steps = np.frombuffer(raw, np.uint8).reshape(packed["shape"]).astype(np.float64)
    values = packed["low"] + steps / 254 * (packed["high"] - packed["low"])
    return np.where(steps == 255, np.nan, values)


def of(*results: Result, live: packing.LiveProgress | None = None) -> dict[str, Any]:
    """The payload as the page reads it."""
    loaded: dict[str, Any] = json.loads(embedded(payload(runs(list(results)), live)))
    return loaded


@settings(max_examples=40)
@given(
    st.integers(0, 4), st.integers(0, 5), st.integers(1, 3), st.integers(0, 10**6), st.booleans()
)
def test_numbers_survive_packing(rows: int, n: int, k: int, seed: int, blank: bool) -> None:
    values = stream(seed, "packed").normal(size=(rows, n, k))
    if blank and values.size:
        values.flat[0] = np.nan
    np.testing.assert_array_equal(unpack(pack(values)), values.astype(np.float32))


@pytest.mark.parametrize("spread", [0.0, 1.0])
def test_many_numbers_become_bytes_that_are_off_by_half_a_step(
    spread: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "EXACT", 10)
    values = 3 + spread * stream(1, "many").normal(size=(5, 4, 3))
    values[2, 1] = np.nan
    packed = pack(values)
    assert len(base64.b64decode(packed["bytes"])) == values.size
    step = (np.nanmax(values) - np.nanmin(values)) / 254
    np.testing.assert_allclose(unpack(packed), values, atol=step / 2 + 1e-12)


def test_numbers_that_no_float32_holds_are_not_drawn_and_named() -> None:
    large = float(np.finfo(np.float32).max) * 2
    values = np.array([[1.0, large, -large, np.nan]])
    np.testing.assert_array_equal(unpack(pack(values)), [[1.0, np.nan, np.nan, np.nan]])
    known = result("fedavg", n=2, rounds=1, classes=2)
    overflown = replace(
        known, evaluations=[replace(e, loss=(1.0, -1e100)) for e in known.evaluations]
    )
    assert packing.omitted_quantities(runs([known])) == []
    (line,) = packing.omitted_quantities(runs([overflown]))
    assert f"({len(known.evaluations)} of them) are not drawn" in line


def test_many_numbers_of_which_none_is_defined_are_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "EXACT", 10)
    assert np.isnan(unpack(pack(np.full((4, 4), np.nan)))).all()


def test_curves_of_the_page_are_those_of_the_record() -> None:
    results = comparison(n=5, rounds=4, classes=3)
    for run, recorded in zip(of(*results)["runs"], results, strict=True):
        np.testing.assert_array_equal(
            unpack(run["loss"]), np.float32([r.loss for r in recorded.rounds])
        )
        assert run["sent"] == pytest.approx(
            np.cumsum([(sum(r.bytes_down) + sum(r.bytes_up)) / 1e6 for r in recorded.rounds])
        )
        for view in run["views"]:
            curve = recorded.curve(view["model"], view["when"])
            assert view["rounds"] == [e.round for e in curve]
            np.testing.assert_array_equal(
                unpack(view["value"]), np.float32([e.value for e in curve])
            )
            np.testing.assert_array_equal(unpack(view["loss"]), np.float32([e.loss for e in curve]))
    # The first view is what the run is judged by.
    headline = next(row for row in table(results) if row["method"] == "apple")
    last = unpack(of(*results)["runs"][3]["views"][0]["value"])[-1]
    assert last.mean() == pytest.approx(headline["last"], abs=1e-6)


def test_matrices_of_the_page_are_those_of_the_record() -> None:
    run = result("apple", n=4, rounds=3)
    (dr,) = of(run)["runs"][0]["learned"]
    np.testing.assert_array_equal(
        unpack(dr["values"]), np.float32([m for _, m in run.matrices("dr")])
    )
    assert sorted(dr["order"]) == [0, 1, 2, 3]
    assert dr["rounds"] == [1, 2, 3]
    late = of(replace(run, rounds=[halved(row) for row in run.rounds]))["runs"][0]["learned"][0]
    assert np.isnan(unpack(late["values"])[:, [1, 3]]).all()


def test_the_chosen_run_at_first_is_the_best_that_shows_something() -> None:
    results = comparison(n=3, rounds=3)
    assert of(*results)["first"] == 3
    assert of(*results[:3])["first"] == 2  # none shows anything: FedAvg-FT is the best
    assert of(results[3], results[0])["runs"][0]["base"] == 1


def test_every_kind_of_quantity_is_there() -> None:
    kinds = {q["name"]: q["kind"] for q in of(showing(each_kind()))["runs"][0]["learned"]}
    assert kinds == {
        "attention": "matrix", "affinity": "matrix", "alpha": "values", "gates": "values", "inheritance": "values",
        "my own_thing": "values",
    }  # fmt: skip
    cluster, norms = of(clustered())["runs"][0]["learned"]
    assert (cluster["kind"], norms["kind"]) == ("clusters", "norms")
    assert norms["thresholds"] == pytest.approx([CFL["eps_mean"] * 1.5, CFL["eps_max"] * 1.5])


def test_losses_by_epoch_leave_out_who_learned_nothing() -> None:
    counts, losses = of(weighed())["runs"][0]["learned"][::-1]
    assert (counts["name"], losses["kind"], losses["stage"]) == ("ala_epochs", "epochs", [3, 2, 0])
    nothing = np.nan
    np.testing.assert_array_equal(
        unpack(losses["values"]).T, [[9, 5, 3, 4], [8, 7, nothing, nothing], [nothing] * 4]
    )


def test_a_name_from_the_data_cannot_leave_its_place() -> None:
    names = ["</script><b>", "<!--", "&amp;"]
    text = str(embedded(payload(runs([result("apple", n=3, rounds=1, names=names)]), None)))
    assert not set("<>&") & set(text)
    assert json.loads(text)["runs"][0]["clients"] == names


def test_several_data_sets_have_a_place_each() -> None:
    one, other = result("apple", n=3, rounds=2), result("fedavg", n=3, rounds=2)
    other = replace(
        other,
        config={**other.config, "data": {"name": "cifar10"}},
        about={**other.about, "partition_sha256": "x"},
    )
    found = of(one, other)
    assert [run["place"] for run in found["runs"]] == ["digits, practical", "cifar10, practical"]
    assert len(found["partitions"]) == 2


@pytest.mark.parametrize("lack", degenerate())
def test_what_is_missing_leaves_a_payload(lack: str) -> None:
    found = of(*degenerate()[lack]())
    assert 0 <= found["first"] < len(found["runs"])


def learning(method: str, n: int, rounds: int) -> Result:
    """A run with two matrices and a number per client and layer, each round."""
    base = showing(
        [
            {
                "weights": np.eye(n),
                "affinity": stream(t, method).random((n, n)),
                "gates": stream(t, "gates").random((n, 8)),
            }
            for t in range(rounds)
        ],
        n=n,
    )
    return replace(base, config={**base.config, "method": {"name": method}})


@pytest.mark.long
def test_pages_stay_small(tmp_path: Path) -> None:
    # Twelve clients, 160 rounds, six methods of which four show more than any method does.
    several = [
        *comparison(n=12, rounds=160)[:2],
        *(learning(m, 12, 160) for m in ("fedfomo", "fedamp", "apple", "fedala")),
    ]
    assert write(several, tmp_path / "usual").stat().st_size < 2.5e6
    # A hundred clients for 300 rounds: six million numbers in two matrices.
    assert refresh(learning("fedfomo", 100, 300), tmp_path / "large", None).stat().st_size < 3e6


def test_a_live_page_reads_itself_again_until_the_run_ends(tmp_path: Path) -> None:
    run = replace(result("apple", n=3, rounds=3), summary={})
    noon = datetime(2026, 11, 21, 12, 0, 30, tzinfo=UTC)
    going = refresh(run, tmp_path, packing.LiveProgress(3, noon, 60)).read_text(encoding="utf-8")
    assert f'"live":[3,{noon.timestamp()},60]' in going
    assert "<strong>Running</strong>: round 3 of 3 is done, written at 12:00:30 UTC" in going
    assert "cut short" not in going
    ended = refresh(run, tmp_path, None).read_text(encoding="utf-8")
    assert '"live":null' in ended
    assert "Running" not in ended
    assert "was cut short" in ended
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]


def test_a_follower_writes_when_it_is_due_and_closes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, written = [97.0], list[tuple[float, float | None]]()

    def refreshed(result: str, out: Path, live: packing.LiveProgress | None) -> None:
        now[0] += 0.5
        written.append((now[0], live and live.patience))
        assert live is None or live.seconds == 3

    monkeypatch.setattr("pomona.results.web.live_run_page.load", str)
    monkeypatch.setattr("pomona.results.web.live_run_page.refresh", refreshed)
    monkeypatch.setattr("pomona.results.web.live_run_page.monotonic", lambda: now[0])
    row = result("apple", n=2, rounds=1).rounds[0]
    with following(tmp_path) as (follower,):
        assert isinstance(follower, LivePageCallback)
        for moment in (100.0, 103.5, 109.0, 110.0, 119.5, 121.0):
            now[0] = moment
            follower.on_round_end(row, [])
    # A page that takes 0.5 s is written every 0.5 / 0.05 = 10 s, and once more at the end. The
    # longest waits so far are 3 s (30 is below the least), 10 s and 11 s.
    assert written == [(100.5, 60), (110.5, 100), (121.5, 110), (122.0, None)]
    with following(None) as nobody:
        assert nobody == ()
