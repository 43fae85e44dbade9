"""The first sentence of a page, and its cautions: no sentence claims more than its numbers show."""

from collections.abc import Sequence
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
from report_results import answers, comparison, degenerate, inexact, presented, regression, result

from pomona.metrics.metric import METRICS
from pomona.record.paired_gain import Gain, Verdict, gains, jointly
from pomona.record.result import Result
from pomona.record.rows import Evaluation, RoundRow
from pomona.results import gain_presentation
from pomona.results.figures.clients import values
from pomona.results.figures.curves import curves, scenario_name
from pomona.results.figures.sections import figures
from pomona.results.gain_presentation import EXCLUSION, Gains, by_client, gained, value_and_interval
from pomona.results.run_numbers import runs
from pomona.results.summary_table import gain_columns
from pomona.results.tables.gains import _by_client, gain_tables
from pomona.results.text.cautions import cautions
from pomona.results.text.narrative import basis, setup, title
from pomona.results.text.verdicts import verdicts

LEVEL = "no significant difference"


def verdict(results: list[Result]) -> str:
    return " ".join(" ".join(verdicts(runs(results))).split())


def warned(results: list[Result]) -> str:
    return " ".join(" ".join(cautions(runs(results))).split())


def scored(
    method: str, right: Sequence[int], size: int = 100, classes: int = 2, **metadata: object
) -> Result:
    """A finished run whose headline models answer this many of each client's test samples
    correctly.
    """
    share, n = tuple(k / size for k in right), len(right)
    evaluation = Evaluation(
        1, "personal", "trained", "test", tuple(range(n)), (size,) * n, (0.5,) * n, share
    )
    defaults = {
        "clients": ["Charité", "Mercy", "Rural", "Kids", "West"][:n],
        "targets": "classes",
        "metric": "accuracy",
    }
    summary = {"seconds": 1.0}
    client_answers = answers([size] * n, share, classes)
    return Result(
        {"method": {"name": method}},
        {**presented(method), **defaults, **metadata},
        [],
        [evaluation],
        [],
        summary,
        answers=client_answers,
    )


def sized(method: str, right: Sequence[int], sizes: Sequence[int]) -> Result:
    """Like ``scored``, with test sets of these sizes."""
    run, share = scored(method, right), tuple(np.divide(right, sizes))
    evaluation = replace(run.evaluations[0], samples=tuple(sizes), value=share)
    return replace(run, evaluations=[evaluation], answers=answers(sizes, share, 2))


def scored_of(method: str, right: Sequence[int]) -> Result:
    """Like ``scored``, for any number of clients."""
    return scored(method, right, clients=[f"clinic {i}" for i in range(len(right))])


def test_the_first_sentence_says_that_federation_helps_by_how_much_and_whom_not() -> None:
    """Of 100 samples each: 20 more for the first, 20 less for the second, one more for the
    third.
    """
    separate, fedavg = scored("separate", (60, 80, 70)), scored("fedavg", (95, 60, 71))
    client_gains, mean_gain = gains(fedavg, separate)
    assert (mean_gain.value, [g.value for g in client_gains]) == (
        pytest.approx(0.16 / 3),
        pytest.approx([0.35, -0.2, 0.01]),
    )
    assert mean_gain.low > 0
    text = verdict([separate, fedavg])
    assert text.startswith(
        "Federation helps: FedAvg is ahead of Separate, training alone, in accuracy, 75.33 % "
        "against 70.00 % on average over clients: +5.33 percentage points (95 % interval +"
    )
    assert (
        "Client by client, FedAvg is better for 1 of 3 (Charité), worse for 1 (Mercy); “not "
        "worse by 2.00 percentage points” for 1."
    ) in text


def of_seeds(
    method: str, right: Sequence[Sequence[int]], seeds: Sequence[int], **metadata: object
) -> list[Result]:
    """Runs that answer this many of each client's 100 test samples correctly, one per seed."""
    seed_runs = [scored(method, seed_right, **metadata) for seed_right in right]
    return [
        replace(run, config=run.config | {"seed": seed})
        for run, seed in zip(seed_runs, seeds, strict=True)
    ]


ALONE_BY_SEED = ((60, 80, 70), (62, 78, 70), (61, 80, 71))
TOGETHER_BY_SEED = ((75, 81, 70), (73, 80, 70), (77, 82, 70))
BY_SEED_AND_CLIENT = np.subtract(TOGETHER_BY_SEED, ALONE_BY_SEED)
"""(seed, client): gains in percentage points."""


def test_runs_of_several_seeds_are_compared_over_their_seeds_in_text_table_and_figure() -> None:
    separate = of_seeds("separate", ALONE_BY_SEED, (0, 1, 2))
    fedavg = of_seeds("fedavg", TOGETHER_BY_SEED, (2, 0, 1))
    # by seed, not by place
    paired = np.subtract([TOGETHER_BY_SEED[k] for k in (1, 2, 0)], ALONE_BY_SEED)
    mean_gain = gains([fedavg[1], fedavg[2], fedavg[0]], separate)[1]
    assert mean_gain.value == pytest.approx(paired.mean() / 100)
    levels = f"{np.mean(TOGETHER_BY_SEED):.2f} % against {np.mean(ALONE_BY_SEED):.2f} %"
    prepared = runs([*separate, *fedavg])
    text = verdict([*separate, *fedavg])
    assert text.startswith(
        f"Federation helps: FedAvg is ahead of Separate, training alone, in accuracy, {levels} on "
        f"average over clients, over 3 seeds: +{paired.mean():.2f} percentage points (95 % "
        f"interval +{100 * mean_gain.low:.2f} to +{100 * mean_gain.high:.2f})."
    )
    assert "of 3 clients, over 3 seeds." in text
    assert "of 3 clients, over 3 seeds." in basis(prepared)[-1]
    overall, clients_table = gain_tables(prepared)
    assert overall.rows[0][:3] == ["FedAvg", "3", f"+{paired.mean():.2f}"]
    assert len(overall.rows) == 1
    assert [float(row[4].replace("\N{MINUS SIGN}", "-")) for row in clients_table.rows] == [
        round(gain, 2) for gain in paired.mean(axis=0)
    ]
    figure = values(prepared)
    assert "the mean over 3 seeds" in figure.caption
    mine = [row for row in figure.rows if row["run"] == "FedAvg"]
    assert [row["gain_over_separate"] for row in mine] == pytest.approx(paired.mean(axis=0) / 100)
    assert [row["value"] for row in mine] == pytest.approx(np.mean(TOGETHER_BY_SEED, axis=0) / 100)
    assert "single runs" not in warned([*separate, *fedavg])


def test_a_single_run_beside_several_seeds_is_compared_with_its_own_seed_and_a_line_says_so() -> (
    None
):
    separate = of_seeds("separate", ALONE_BY_SEED, (0, 1, 2))
    fedavg = of_seeds("fedavg", TOGETHER_BY_SEED, (0, 1, 2))
    apple = of_seeds("apple", [(70, 80, 71)], (1,))
    overall = gain_tables(runs([*separate, *fedavg, *apple]))[0]
    seed_gain = np.subtract((70, 80, 71), ALONE_BY_SEED[1]).mean()
    assert [row[:3] for row in overall.rows] == [
        ["FedAvg", "3", f"+{BY_SEED_AND_CLIENT.mean():.2f}"],
        ["APPLE", "1", f"+{seed_gain:.2f}"],
    ]
    assert (
        "Gains of APPLE (seed 1) are of single runs, not over seeds: Separate has seeds 0, 1 and "
        "2; run all methods with the same seeds."
    ) in warned([*separate, *fedavg, *apple])


def test_seeds_that_do_not_pair_leave_single_runs_and_one_line_says_why() -> None:
    separate, fedavg = (
        of_seeds("separate", ALONE_BY_SEED, (0, 1, 2)),
        of_seeds("fedavg", TOGETHER_BY_SEED, (0, 1, 2)),
    )
    uneven = [separate[0], *fedavg]
    assert "over 3 seeds" not in verdict(uneven)
    assert "FedAvg, seed 2, the best of 3 runs, is ahead of Separate" in verdict(uneven)
    assert (
        "Gains of FedAvg (seeds 0, 1 and 2) are of single runs, not over seeds: Separate has seed "
        "0;"
    ) in warned(uneven)
    other_rows = [
        replace(
            run,
            about=run.about
            | {"partition_sha256": str(run.config["seed"]), "test_rows": [run.config["seed"]]},
        )
        for run in (*separate, *fedavg)
    ]
    assert (
        verdict(other_rows)
        == "They do not share one scenario (data and partition), so their numbers are not ranked."
    )
    assert (
        "not over seeds, as each seed has other test samples: give all seeds one partition"
        in warned(other_rows)
    )
    # Seeds that share their test rows pair although their partitions differ, as in their validation
    # rows.
    shared = [replace(run, about=run.about | {"test_rows": ["a", "b", "c"]}) for run in other_rows]
    assert "over 3 seeds" in verdict(shared)


def test_of_several_seeds_an_overtrained_one_decides_nothing() -> None:
    """As of one run: a seed of the baseline that was better before makes the comparison unfair."""
    separate, fedavg = (
        of_seeds("separate", ALONE_BY_SEED, (0, 1, 2)),
        of_seeds("fedavg", TOGETHER_BY_SEED, (0, 1, 2)),
    )
    course = [0.5, 0.9, 0.8, 0.7, 0.65, 0.61]
    (final,) = separate[1].evaluations
    validation = [
        replace(final, round=k, split="validation", value=(v,) * 3) for k, v in enumerate(course, 1)
    ]
    separate[1] = replace(separate[1], evaluations=[*validation, replace(final, round=6)])
    assert "But Separate has got worse since round 2" in verdict([*separate, *fedavg])


def test_what_an_interval_leaves_open_is_no_lead() -> None:
    """Two samples of 300 more are right: the audit's 0.09 points, which were called "came out
    ahead".
    """
    separate, fedavg = scored("separate", (95, 95, 95)), scored("fedavg", (96, 95, 96))
    text = verdict([separate, fedavg])
    assert f"Between FedAvg and Separate, training alone, there is {LEVEL}" in text
    assert "95.67 % against 95.00 %" in text
    assert "not significant for any single client" in text
    for claim in ("ahead", "helps:", "better for"):
        assert claim not in text
    worse = verdict([scored("separate", (95, 95, 95)), scored("fedavg", (60, 95, 60))])
    assert worse.startswith("Federation does not help here: FedAvg is behind Separate")
    assert "worse for 2 (Charité and Rural)" in worse


def test_runs_without_training_alone_are_ranked_no_further_than_the_data_goes() -> None:
    several = [scored("fedavg", (90, 90)), scored("apple", (91, 90)), scored("fedprox", (50, 60))]
    text = verdict(several)
    assert "APPLE has the best accuracy, 90.50 %" in text
    assert "APPLE is ahead of FedProx (+35.50, 95 % interval +" in text
    assert f"Between APPLE and FedAvg there is {LEVEL}" in text
    assert "Training alone was not run" in warned(several)
    assert "`" not in warned(several)  # a page shows it as it stands


def test_the_choice_of_the_best_run_counts_in_what_it_is_ahead_of() -> None:
    """Random signs of six samples that differ are all one way in 2 of 64 cases, half of which count
    (mid-p): p = 1/64. Three times that is below 0.05, six times is not: four runs have six pairs.
    """
    best = scored("apple", (96, 90))
    rivals = [scored(method, (90, 90)) for method in ("fedavg", "fedprox", "ditto")]
    assert "is ahead of FedAvg (+3.00" in verdict([best, rivals[0]])
    assert "is ahead of" not in verdict([best, *rivals])


def test_where_less_is_better_the_smallest_error_leads_and_the_largest_is_worst() -> None:
    """Errors of every answer by client: 0.5 and 0.5 alone, 0.2 and 0.6 together."""
    separate, fedavg = regression("separate", (0.5, 0.5)), regression("fedavg", (0.2, 0.6))
    text = verdict([separate, fedavg])
    assert (
        "Federation helps: FedAvg is ahead of Separate, training alone, in mean absolute error, "
        "0.4000 against 0.5000"
    ) in text
    assert "better for 1 of 2 (clinic 1), worse for 1 (clinic 2)" in text
    fedavg_gains = gained(*reversed(runs([separate, fedavg])))
    assert [round(d, 6) for d in fedavg_gains.differences.values()] == [0.3, -0.1]
    assert fedavg_gains.verdicts == ["better", "worse"]
    assert "accuracy" not in text + warned([separate, fedavg])
    with_r2 = replace(
        fedavg,
        final=[{**r, "r2": share} for r, share in zip(fedavg.final, (0.6, 0.2), strict=False)],
    )
    assert "R² of FedAvg is 0.400 on average over clients" in verdict([separate, with_r2])


def test_without_the_models_answers_nothing_is_claimed() -> None:
    separate, fedavg = (replace(scored(m, (60, 90)), answers={}) for m in ("separate", "fedavg"))
    assert "the records do not contain the models' outputs" in verdict([separate, fedavg])
    assert by_client(gained(*runs([fedavg, separate]))) == ""
    assert gain_tables(runs([separate, fedavg])) == []


@pytest.mark.parametrize(("answered", "hollow"), [(True, [0.01]), (False, [0.35, -0.2, 0.01])])
def test_a_gain_that_the_data_cannot_tell_from_none_is_drawn_hollow(
    answered: bool, hollow: list[float]
) -> None:
    """Gains of 35, -20 and 1 of 100 samples; without the models' answers of none is known more."""
    pair = [scored("separate", (60, 80, 70)), scored("fedavg", (95, 60, 71))]
    figure = values(runs([run if answered else replace(run, answers={}) for run in pair])).figure
    circles = [line for line in figure.axes[1].lines if line.get_markerfacecolor() == "white"]
    points = [x for line in circles for x in line.get_xdata()]
    assert sorted(points) == pytest.approx(sorted(100 * gain for gain in hollow))


def test_the_tables_of_gains_are_those_of_the_intervals() -> None:
    results = comparison(n=4, rounds=4, classes=3)
    overall, *client_tables = gain_tables(runs(results))
    assert [row[0] for row in overall.rows] == ["FedAvg", "FedAvg-FT", "APPLE"]
    for run, row, table in zip(results[1:], overall.rows, client_tables, strict=True):
        clients, mean_gain = gains(run, results[0])
        assert row[1] == f"{100 * mean_gain.value:+.2f}".replace("-", "\N{MINUS SIGN}")
        assert row[2] == f"{100 * mean_gain.low:+.2f} to {100 * mean_gain.high:+.2f}".replace(
            "-", "\N{MINUS SIGN}"
        )
        joint_verdicts = jointly(clients)
        assert row[4:8] == [str(joint_verdicts.count(verdict)) for verdict in get_args(Verdict)]
        assert [line[-2] for line in table.rows] == joint_verdicts
        # also of decided gains: what samples can show is not known from what they showed
        assert row[-1] == f"{100 * mean_gain.error.detectable(3):.2f}"


def test_a_gain_has_the_decimals_of_its_interval() -> None:
    """Four digits of the largest number: two decimals of 10.12."""
    gain = Gain(0.5, -9.1234, 10.1234, 40, 40)
    texts = value_and_interval(METRICS["mae"], gain)
    assert texts == ("+0.50", "\N{MINUS SIGN}9.12 to +10.12")


@pytest.mark.parametrize(
    ("rows", "clients", "value", "reason"),
    [
        (40, 1, 0.0, "no difference on these test samples"),
        (40, 1, 0.5, "no variation between these test samples, so no interval"),
        (4, 1, 0.0, "too few test samples for an interval"),
        (10, 2, 0.0, "too few test samples for an interval"),
    ],
)
def test_a_gain_without_an_interval_has_the_reason(rows, clients, value, reason):
    """Of 5 rows each, one client may gain what the other loses."""
    gain = Gain(value, None, None, rows, rows, clients=clients)
    assert value_and_interval(METRICS["auroc"], gain)[1] == reason
    [run, base] = runs([scored("fedavg", (60,)), scored("separate", (60,))])
    table = _by_client(Gains(run, base, [gain], gain))
    assert table.rows[0][5:7] == [reason, "cannot tell"]


def test_no_size_is_said_of_a_gain_that_so_few_samples_cannot_show():
    """Signs of 8 rows agree in all of them by chance more often than in 0.05 / 60 of cases."""
    gain = gains(sized("fedavg", (4,), (8,)), sized("separate", (6,), (8,)))[1]
    assert gain_presentation.detectable(METRICS["accuracy"], gain, 60) == "none"
    assert "rows no gain" in gain_presentation.resolution(METRICS["accuracy"], gain, 60)


def test_column_chart_and_sentence_give_one_verdict_where_holm_leaves_a_client_open() -> None:
    """Nine equal clients and one of 100 that gains 6: its own p is near 0.013, ten times that is
    above 0.05.
    """
    separate, fedavg = (
        scored_of(method, (60,) * 9 + (last,))
        for method, last in (("separate", 60), ("fedavg", 66))
    )
    client_gains, _ = gains(fedavg, separate)
    assert client_gains[9].verdict == "better"
    assert 0.005 < client_gains[9].p < 0.05
    overall, clients = gain_tables(runs([separate, fedavg]))
    assert overall.rows[0][4:8] == ["0", "1", "9", "0"]
    assert [row[-2] for row in clients.rows] == ["cannot tell"] * 9 + ["not worse"]
    assert "corrected together (Holm)" in overall.notes[0]
    assert "not significant for any single client" in verdict([separate, fedavg])
    assert gained(*reversed(runs([separate, fedavg]))).verdicts == [row[-2] for row in clients.rows]


def test_levels_and_gain_are_of_the_same_clients() -> None:
    """Rural has one test row, too few for a variance: 95 and 60 against 60 and 80 remain, and 77.5
    - 70 is the gain.
    """
    sizes = (100, 100, 1)
    text = verdict([sized("separate", (60, 80, 1), sizes), sized("fedavg", (95, 60, 0), sizes)])
    assert "77.50 % against 70.00 % on average over 2 of 3 clients" in text
    assert "+7.50 percentage points" in text
    assert f"left out {EXCLUSION}: Rural (1 row" in text


def test_a_client_whose_answers_one_run_lacks_is_not_called_too_small() -> None:
    """Mercy's 100 samples are enough; the other run has no answers to them."""
    separate, fedavg = scored("separate", (60, 80, 70)), scored("fedavg", (95, 60, 71))
    remaining = {client: answer for client, answer in separate.answers.items() if client != 1}
    text = verdict([replace(separate, answers=remaining), fedavg])
    assert "left out for too few test samples, or none on record in both runs" in text
    assert "Mercy (100 rows" in text


@pytest.mark.parametrize("separate_runs", [[], [sized("separate", (100, 100, 1), (200, 200, 3))]])
def test_the_best_mean_is_behind_where_only_a_client_of_three_samples_carries_it(
    separate_runs: list[Result],
) -> None:
    """Means of (70, 70, 100) % and (90, 90, 0) %: 80 and 60. The gain leaves out the third client:
    70 - 90 = -20 points.
    """
    sizes = (200, 200, 3)
    first, second = sized("fedavg", (140, 140, 3), sizes), sized("apple", (180, 180, 0), sizes)
    mean_gain = gains(first, second)[1]
    assert (mean_gain.value, mean_gain.verdict) == (pytest.approx(-0.2), "worse")
    text = verdict([*separate_runs, first, second])
    assert (
        "On the clients that can be compared, FedAvg is behind APPLE (\N{MINUS SIGN}20.00" in text
    )
    assert f"Between FedAvg and APPLE there is {LEVEL}" not in text


def test_of_several_runs_verdicts_hold_together() -> None:
    """14 answers differ, 11 for the run: of 14 signs so many agree in 2 (1 + 14 + 91 + 364 / 2) of
    2^14 cases (mid-p), 0.035. That is below 0.05, and of two runs, by Holm's correction, above.
    """
    separate, level = scored("separate", (60, 60)), scored("apple", (60, 60))
    outputs, truth = separate.answers[0]
    right = outputs.argmax(1) == truth
    turned = [*np.flatnonzero(~right)[:11], *np.flatnonzero(right)[:3]]
    changed_outputs = outputs.copy()
    changed_outputs[turned] = outputs[turned, ::-1]
    fedavg = scored("fedavg", (68, 60))
    fedavg = replace(fedavg, answers={**separate.answers, 0: (changed_outputs, truth)})
    assert gains(fedavg, separate)[1].p == pytest.approx(2 * 288 / 2**14, abs=0.005)
    assert "FedAvg is ahead of Separate" in verdict([separate, fedavg])
    assert (
        f"Between FedAvg, the best of 2 runs, and Separate, training alone, there is {LEVEL}, "
        "corrected for the number of runs compared"
    ) in verdict([separate, fedavg, level])
    compared = runs([separate, fedavg, level])
    assert [row[3] for row in gain_tables(compared)[0].rows] == ["not worse"] * 2
    columns = gain_columns(compared, []).values()
    assert [row["gain_verdict"] for row in columns] == [None, "not worse", "not worse"]
    assert "alone: better, +" in basis(compared[:2])[-1]
    assert "alone: not worse, corrected for the number of runs compared, +" in basis(compared)[-2]


def test_a_terminal_says_what_means_and_gains_rest_on_and_whom_they_leave_out() -> None:
    """100 samples a client; Mercy has none that define the metric."""
    separate, fedavg = scored("separate", (60, 80, 70)), scored("fedavg", (95, 60, 71))
    mean, gain = basis(runs([separate, fedavg]))
    assert mean == "Separate and FedAvg: mean over 3 clients, 300 test rows."
    assert "training alone: better, +5.33 percentage points (95 % interval +" in gain
    assert "This rests on 300 test rows" in gain
    base = scored("fedavg", (95, 95, 95))
    blank = replace(
        base, evaluations=[replace(e, value=(0.95, None, 0.95)) for e in base.evaluations]
    )
    assert basis(runs([blank])) == [
        "FedAvg: mean over 2 of 3 clients, 200 test rows; left out, without a value: Mercy."
    ]


def test_a_single_run_states_its_metric_by_name() -> None:
    run = regression(errors=(0.6, 0.9, 0.3))
    assert (
        "the clients' personal models, evaluated after local training: mean absolute error of 0.6000 "
        "on average"
    ) in verdict([run])
    flags = scored("fedavg", (74, 74), targets="multilabel", metric="auroc")
    ranked = [replace(e, value=(0.8, None), metric="auroc") for e in flags.evaluations]
    text = verdict([replace(flags, evaluations=ranked)])
    assert "AUROC of 0.800 on average" in text
    assert "right on" not in text
    assert "AUROC of FedAvg is undefined for Mercy" in warned([replace(flags, evaluations=ranked)])


@pytest.mark.parametrize("lack", degenerate())
def test_whatever_is_missing_leaves_a_first_sentence(lack: str) -> None:
    assert verdict(degenerate()[lack]())


def test_unequal_scenarios_and_metrics_are_not_ranked() -> None:
    assert "not ranked" in verdict(degenerate()["unequal scenarios"]())
    by_loss = regression("fedavg")
    assert "Their headline metrics differ" in verdict(
        [regression(), replace(by_loss, about={**by_loss.about, "metric": "loss"})]
    )


def test_a_run_cut_short_is_called_so() -> None:
    assert "2 of 6 rounds" in warned(degenerate()["cut short"]())


def test_a_difference_of_less_than_a_test_sample_is_called_so() -> None:
    """Three clients of 100: one sample is 1/300 of the mean. 0.002 apart is less, 0.004 more."""
    separate = scored("separate", (950, 950, 950), size=1000)
    for right, close in (
        ((952, 952, 950), False),
        ((950, 951, 950), False),
        ((950, 950, 950), True),
    ):
        assert (
            "closer than one test sample" in warned([separate, scored("fedavg", right, size=1000)])
        ) == close
    fedavg = scored("fedavg", (952, 952, 950), size=1000)
    pair = [
        replace(r, evaluations=[replace(e, samples=(1000, 1000, 20)) for e in r.evaluations])
        for r in (separate, fedavg)
    ]
    # 4 / 3000 apart; one sample of the smallest client moves the mean by 1 / 60.
    assert "one answer more or less on Rural (20 samples)" in warned(pair)


def course(losses: Sequence[float], validation: Sequence[float] = ()) -> Result:
    run = scored("fedavg", (60, 60))
    rows = [RoundRow(r, 1.0, (0, 1), (v, v), (0, 0), (0, 0)) for r, v in enumerate(losses, 1)]
    evaluations = [
        replace(
            run.evaluations[0],
            round=r,
            split="validation",
            accuracy=(v, v),
            value=(v, v),
            metric="accuracy",
        )
        for r, v in enumerate(validation, 1)
    ]
    return replace(run, rounds=rows, evaluations=[*run.evaluations, *evaluations])


def test_a_curve_that_still_climbs_is_told_from_one_that_has_arrived() -> None:
    steps = np.arange(20)
    climbing, arrived = 0.5 + 0.02 * steps, 0.9 - 0.4 * np.exp(-steps)
    noisy = 0.8 + 0.02 * np.cos(2.1 * steps)
    cautioned = [
        ("still getting better" in warned([course([1.0] * 20, v)]))
        for v in (climbing, arrived, noisy)
    ]
    assert cautioned == [True, False, False]
    # Without validation the training loss tells.
    assert "still getting better when it ended (training loss" in warned([course(2 - 0.05 * steps)])
    assert "still getting better" not in warned([course(np.exp(-steps))])


def test_a_training_that_diverges_is_called_so() -> None:
    text = warned([course([0.5, 0.2, 1.9e20, 1.9e20, 1.9e20])])
    assert (
        "FedAvg diverges: the training loss ended at 1.9e+20, from 0.5 in the first round; lower "
        "lr before"
    ) in text
    assert "diverges" not in warned([course([0.5, 0.2, 0.21, 0.19, 0.2])])


def test_what_one_answer_for_everybody_reaches_stands_beside_and_is_a_caution() -> None:
    """Constant answers are right on 90, 90 and 50 of 100 samples."""
    constant = {"own": {"accuracy": {"clients": [0.9, 0.9, 0.5], "mean": 2.3 / 3}}}
    several = {k: scored("fedavg", right, constant=constant) for k, right in
               {"low": (60, 70, 50), "some": (95, 85, 90), "good": (95, 95, 90)}.items()}  # fmt: skip
    assert (
        "FedAvg (accuracy 60.00 %) is no better than always giving one answer, which has 76.67 %"
        in warned([several["low"]])
    )
    assert "For Mercy: FedAvg is no better than always giving one answer" in warned(
        [several["some"]]
    )
    assert "no better" not in warned([several["good"]])
    text = verdict([scored("separate", (30, 30, 30), constant=constant), several["low"]])
    assert text.startswith("None of these runs has learned anything useful yet")
    assert "FedAvg is ahead of Separate" in text
    assert "Federation helps" not in text
    assert "one answer would reach 76.67 %" in verdict([several["good"]])
    # Training alone that is above the constant has learned, however the federated run does.
    text = verdict([scored("separate", (95, 95, 90), constant=constant), several["low"]])
    assert "None of these runs" not in text
    assert text.startswith("Federation does not help here: FedAvg is behind Separate")


def test_answers_at_the_usual_threshold_that_are_the_most_frequent_class_are_a_caution() -> None:
    """AUROC may be high while no model ever says yes: 95 of 100 right, 95 are no."""
    base = scored("fedavg", (95, 95), metric="auroc")
    ranked = [replace(e, value=(0.8, 0.8), metric="auroc") for e in base.evaluations]
    final = [
        {
            "model": "personal",
            "when": "trained",
            "split": "test",
            "client": c,
            "samples": 100,
            "confusion": matrix,
        }
        for c, matrix in enumerate([[[95, 0], [5, 0]], [[94, 1], [4, 1]]])
    ]
    text = warned([replace(base, evaluations=ranked, final=final)])
    sentence = (
        "are right on no more of the test samples than each client's most frequent class is "
        "(95.00 %)"
    )
    assert f"The predicted classes of FedAvg (95.00 %) {sentence}" in text
    final[1]["confusion"] = [[95, 0], [2, 3]]
    assert "The predicted classes" not in warned([replace(base, evaluations=ranked, final=final)])


def test_what_holds_for_several_runs_is_said_once_and_names_them() -> None:
    constant = {"own": {"accuracy": {"clients": [0.9, 0.9, 0.5], "mean": 2.3 / 3}}}

    def warnings_of(*right: Sequence[int]) -> str:
        methods = ("separate", "fedavg", "apple", "fedprox")
        return warned(
            [scored(m, r, constant=constant) for m, r in zip(methods, right, strict=False)]
        )

    usual_right = (95, 85, 90)
    text = warnings_of(usual_right, usual_right, (85, 95, 95), usual_right)
    assert (
        "For Mercy: Separate, FedAvg and FedProx are no better than always giving one answer."
        in text
    )
    assert "For Charité: APPLE is no better than always giving one answer." in text
    assert text.count("no better") == 2
    text = warnings_of((60, 70, 50), (66, 70, 50))
    assert (
        "(accuracy 60.00 %) and FedAvg (accuracy 62.00 %) are no better than always giving one "
        "answer"
    ) in text
    unfinished = [replace(scored(m, usual_right), summary={}) for m in ("fedavg", "apple")]
    assert "FedAvg and APPLE were cut short: 0 rounds are recorded of each." in warned(unfinished)
    assert warned([related(0.0), related(0.01)]).count("have hardly changed") == 1


def related(shift: float, n: int = 4) -> Result:
    """An APPLE run whose first client moved ``shift`` of its weight from itself to the last, away
    from the shares.
    """
    base = result("apple", n=n, rounds=2, classes=2)
    sizes = base.about["sizes"]["train"]
    p = np.tile(np.array(sizes) / sum(sizes), (n, 1))
    p[0, [0, -1]] += (-shift, shift)
    return replace(base, rounds=[replace(r, info={**r.info, "dr": p}) for r in base.rounds])


def test_relationships_that_have_hardly_moved_from_the_shares_of_samples_are_a_caution() -> None:
    """They start at the shares. 0.04 of weight is little among four clients, and much among
    forty.
    """
    line = (
        "The relationships of APPLE have hardly changed from the clients' shares of the samples: "
        "they show which client is large"
    )
    cases = {(0.0, 4): True, (0.04, 4): True, (0.06, 4): False, (0.04, 40): False, (0.01, 40): True}
    assert {case: line in warned([related(*case)]) for case in cases} == cases
    captions = [figures(*runs([related(shift)]))[0].caption for shift in (0.0, 0.5)]
    assert ["hardly changed" in caption for caption in captions] == [True, False]
    unknown = related(0.0)
    assert line not in warned([replace(unknown, about={**unknown.about, "sizes": {}})])
    assert line not in warned([result("apple", n=4, rounds=40)])


def test_own_data_are_called_by_their_file_and_not_by_its_format() -> None:
    base = result("fedavg", n=2, rounds=1)

    def texts_of(**data: object) -> tuple[str, str, str]:
        (run,) = runs([replace(base, config={**base.config, "data": data})])
        return title([run]), scenario_name(run), setup([run])

    heading, scenario, sentence = texts_of(name="table", path="/private/hospital/icu.csv")
    assert (heading, scenario) == ("FedAvg on icu.csv", "icu.csv, practical")
    assert "that hold parts of icu.csv (" in sentence
    assert "/private" not in sentence
    assert texts_of(name="table")[0] == "FedAvg on table"
    assert texts_of(name="mnist", path="/private/mnist-raw")[0] == "FedAvg on mnist"


def test_few_events_are_named_with_their_clients() -> None:
    base = scored("fedavg", (90, 90, 90), classes=2)
    yes = (30, 8, 0)
    final = [
        {"model": "personal", "when": "trained", "split": "test", "client": c, "samples": 100, "accuracy": 0.9,
         "confusion": [[100 - k, 0], [k, 0]]}
        for c, k in enumerate(yes)
    ]  # fmt: skip
    run = replace(base, final=final, about={**base.about, "classes": ["no", "yes"]})
    assert "Fewer than 10 test samples of “yes” come from Mercy (8) and Rural (0)" in warned([run])
    small = replace(run, evaluations=[replace(e, samples=(100, 100, 12)) for e in run.evaluations])
    assert "Fewer than 30 test samples come from Rural" in warned([small])


def test_losses_that_differ_are_told_and_drawn_apart() -> None:
    plain, weighted = scored("fedavg", (60, 60)), scored("apple", (60, 60))
    pair = [
        replace(r, config={**r.config, "model": {"loss": loss}})
        for r, loss in ((plain, "auto"), (weighted, "mine:w"))
    ]
    assert "minimise different losses (auto and mine:w)" in warned(pair)
    assert len(curves(runs(pair)).figure.axes) == 2  # without losses on record, as in private runs
    assert curves(runs(pair)).title == "Accuracy over the rounds"
    pair[0] = replace(pair[0], rounds=result("fedavg", n=2, rounds=1).rounds)
    texts = [[text.get_text() for text in ax.texts] for ax in curves(runs(pair)).figure.axes]
    assert ["not on record" in words for words in texts] == [False, False, True, False]


def test_answers_off_by_their_error() -> None:
    outputs, truth = inexact("fedavg", (0.5,))[0]
    assert np.abs(outputs - truth).mean() == pytest.approx(0.5, rel=0.05)
    assert result("apple", n=2, rounds=1).predictions(0)[0].shape[1] == 10


def test_cautions_of_runs_without_intervals_do_not_point_to_intervals() -> None:
    """A metric of one's own, or a deployed federation's record, has none."""
    pair = [replace(scored(method, (9, 8), 20), answers={}) for method in ("separate", "fedavg")]
    assert gained(*reversed(runs(pair))).mean is None
    text = warned([replace(run, config={**run.config, "seed": 0}) for run in pair])
    assert "one seed, so nothing here covers other initial models" in text
    assert "intervals, where there are any" in text
    assert "the intervals" not in text


def test_curves_that_coincide_name_their_panel() -> None:
    """Two runs with one curve of the metric, and without losses, or with those of training."""
    pair = [scored("fedavg", (60,)), scored("fedprox", (60,))]
    assert curves(runs(pair)).caption.endswith(" Curves that coincide: FedAvg = FedProx.")
    pair[0] = replace(pair[0], rounds=result("fedavg", n=1, rounds=1).rounds)
    assert curves(runs(pair)).caption.endswith(" Curves that coincide below: FedAvg = FedProx.")
