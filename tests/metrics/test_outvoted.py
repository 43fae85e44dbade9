"""No client alone decides against all others which of two rounds is better."""

from statistics import mean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pomona.metrics.best_round import Outvoted, Point, best, outvoted, overruled
from pomona.metrics.metric import ACCURACY, LOSS

score = st.floats(0, 1).map(lambda v: round(v, 3))


def curve(*rounds):
    """Points of rounds, each with the scores of all clients."""
    return [
        Point.of(number, dict(enumerate(scores)), dict(enumerate(scores)))
        for number, scores in enumerate(rounds, start=1)
    ]


def by_means(points):
    """The same points without the clients' scores."""
    return [Point(p.round, p.value, p.loss) for p in points]


LIE = curve([0.2, 1.0, 0.3], [0.25, 0.0, 0.35], [0.3, 0.0, 0.4], [0.35, 0.0, 0.45])


def test_a_false_fall_does_not_hide_that_all_others_rise():
    chosen = best(LIE, ACCURACY)
    assert (chosen.round, chosen.since) == (4, 0)
    assert chosen.value == pytest.approx((0.35 + 0.0 + 0.45) / 3)  # as reported
    assert best(by_means(LIE), ACCURACY).round == 1
    ((client, fall),) = overruled(LIE[:2], ACCURACY).items()
    assert (client, fall.gain) == (1, -1.0)
    assert fall.low == fall.high == pytest.approx(0.05)
    assert not overruled(LIE, ACCURACY)  # it fell between rounds 1 and 2 alone


def test_a_false_rise_does_not_hide_that_no_other_rises():
    """With losses, less is better."""
    rising = curve([0.5, 0.6, 0.1], [0.51, 0.61, 0.4], [0.52, 0.62, 0.9])
    assert best(rising, LOSS).round == 1
    falling = curve([0.5, 0.6, 0.9], [0.51, 0.61, 0.4], [0.52, 0.62, 0.1])
    assert best(falling, LOSS).round == 1
    assert list(overruled(falling, LOSS)) == [2]
    assert not overruled(rising, LOSS)


def test_sites_that_differ_much_do_not_help_a_liar():
    """Its scores are among the others' in every round, only its gain is not."""
    rounds = curve([0.9, 0.9, 0.5], [0.91, 0.5, 0.52], [0.92, 0.5, 0.55])
    assert best(rounds, ACCURACY).round == 3


def test_a_client_without_a_score_in_one_of_two_rounds_does_not_decide():
    rounds = curve([0.2, 1.0, 0.3], [0.25, None, 0.35])
    assert best(rounds, ACCURACY).round == 2
    assert overruled(rounds, ACCURACY)[1].gain is None
    newcomer = curve([0.3, None, 0.3], [0.25, 1.0, 0.25])
    assert best(newcomer, ACCURACY).round == 1
    # few have both: the plain means are compared
    assert best(curve([0.2, 0.3, None], [None, 0.25, 1.0]), ACCURACY).round == 2


def test_two_clients_are_compared_by_their_mean():
    assert best(curve([0.2, 1.0], [0.3, 0.0]), ACCURACY).round == 1
    assert not overruled(curve([0.2, 1.0], [0.3, 0.0]), ACCURACY)


def test_where_the_others_are_divided_the_mean_decides():
    rounds = curve([0.5, 0.5, 0.5, 0.5], [0.6, 0.45, 0.6, 0.4])
    assert best(rounds, ACCURACY).round == 2
    assert not overruled(rounds, ACCURACY)
    # one that gains much where the others stand still is no lie
    assert best(curve([0.5, 0.5, 0.5], [0.5, 0.5, 0.9]), ACCURACY).round == 2


def test_one_of_many_is_outvoted_by_two_thirds_of_the_others():
    earlier, later = [0.5] * 10, [0.53] * 7 + [0.49, 0.49, 0.0]
    assert best(curve(earlier, later), ACCURACY).round == 2
    assert list(overruled(curve(earlier, later), ACCURACY)) == [9]


def test_a_gain_that_is_too_small_for_all_others_is_none_for_the_study():
    rounds = curve([0.5, 0.5, 0.1], [0.49, 0.48, 0.9])
    assert best(rounds, ACCURACY).round == 1
    assert best(curve([0.5, 0.5, 0.9], [0.6, 0.6, 0.0]), ACCURACY, 0.05).round == 2


def test_a_gain_out_of_all_proportion_is_outvoted_where_the_others_gain_on_the_whole():
    rounds = curve([0.5, 1.0, 0.5], [0.45, 0.0, 0.62])
    assert best(rounds, ACCURACY).round == 2
    assert overruled(rounds, ACCURACY)[1].gain == -1.0
    # in proportion, and where the others lose on the whole, the mean decides
    assert best(curve([0.5, 1.0, 0.5], [0.45, 0.8, 0.62]), ACCURACY).round == 1
    assert best(curve([0.5, 1.0, 0.5], [0.35, 0.0, 0.52]), ACCURACY).round == 1


@given(
    st.lists(st.tuples(score, score), min_size=3, max_size=8),
    st.sampled_from([0.0, 0.05]),
    st.data(),
)
def test_no_client_decides_against_all_others(pairs, min_gain, data):
    liar = data.draw(st.integers(0, len(pairs) - 1))
    gains = [later - earlier for i, (earlier, later) in enumerate(pairs) if i != liar]
    best_round = best(curve(*zip(*pairs, strict=True)), ACCURACY, min_gain).round
    if min(gains) > min_gain + 1e-9:
        assert best_round == 2
    if max(gains) < 0:
        assert best_round == 1


@given(st.lists(st.tuples(score, score), min_size=1, max_size=8), st.booleans())
def test_the_means_decide_where_most_others_do_not_disagree(pairs, higher):
    points = curve(*zip(*pairs, strict=True))
    metric = ACCURACY if higher else LOSS
    overruled_clients = overruled(points, metric)
    same_round = best(points, metric).round == best(by_means(points), metric).round
    assert same_round == (not overruled_clients)
    assert len(overruled_clients) <= 1


@given(st.lists(st.lists(score, min_size=2, max_size=2), min_size=1, max_size=9))
def test_with_two_clients_the_best_round_is_that_of_the_highest_mean(rounds):
    means = [mean(r) for r in rounds]
    chosen = best(curve(*rounds), ACCURACY)
    assert means[chosen.round - 1] == pytest.approx(max(means))


@given(st.lists(st.lists(st.none() | score, min_size=3, max_size=3), max_size=9), st.integers(0, 9))
def test_the_best_of_a_longer_curve_follows_from_its_beginning(rounds, split):
    points = curve(*rounds)
    first = best(points[:split], ACCURACY)
    later_points = [p for p in points[:split] if first and p.round == first.round] + points[split:]
    best_of_whole, best_of_later = best(points, ACCURACY), best(later_points, ACCURACY)
    if any(p.value is not None for p in points[:split]):
        assert best_of_later.round == best_of_whole.round


def test_no_scores_and_none_in_common():
    for earlier, later in (
        ({}, {}),
        ({0: None}, {0: None}),
        ({0: 0.1}, {1: 0.1}),
        ({0: 0.1}, {0: 0.2}),
    ):
        assert outvoted(earlier, later, 0.0, True) == outvoted(earlier, later, 0.0, False) == {}


NO = None  # no score
RULES = [
    # before, after, min_gain, reported as better, who is outvoted: with its gain and the others'
    # the two with both scores gain 5 and 0, in the mean 2.5 > 1, and neither loses
    ([0, 1, 0], [NO, 6, 0], 1, False, {0: Outvoted(None, 0, 5)}),
    # one of two loses, which is less than two thirds
    ([0, 0, 0], [0, -1, NO], 0, True, {}),
    # two of four have both: not more than half
    ([NO, 0, 0, 0], [-2, 2, NO, 3], 0, False, {}),
    # limited: 0, -2, -2, 0, in the mean -1; of the three others two lose, just two thirds
    ([0, 0, 0, 0], [1, -3, -2, 0], 1, True, {0: Outvoted(1, -3, 0)}),
    # limited: 1, 1, 1, no more than 1; the others' size 2 and range 1: 1 + 6 > 2 (2 + 1)
    ([0, 0, 0], [1, 2, -6], 1, False, {2: Outvoted(-6, 1, 2)}),
    # the same with size 3 and range 2: 1 + 9 = 2 (3 + 2) is not above
    ([0, 0, 0], [-9, 1, 3], 1, False, {}),
    # out of proportion, but the others' mean 0 is no gain
    ([0, 0, 0], [0, 0, -2], 0, False, {}),
]


def test_each_limit_of_the_rule_is_where_it_says():
    for earlier, later, min_gain, reported, expected in RULES:
        scores = dict(enumerate(earlier)), dict(enumerate(later))
        assert outvoted(*scores, min_gain, reported) == expected, (earlier, later)


def test_the_clients_are_compared_by_the_number_that_decides():
    """The metric, whatever their losses are; the loss where the metric is undefined throughout."""
    equal, undefined = [0.5] * 3, [NO] * 3
    for earlier, later in (
        (([0.2, 1.0, 0.3], equal), ([0.3, 0.0, 0.4], equal)),
        ((undefined, [0.5, 0.0, 0.5]), (undefined, [0.4, 0.9, 0.4])),
    ):
        points = [
            Point.of(number, *(dict(enumerate(scores)) for scores in pair))
            for number, pair in ((1, earlier), (2, later))
        ]
        assert best(points, ACCURACY).round == 2
        assert list(overruled(points, ACCURACY)) == [1]
