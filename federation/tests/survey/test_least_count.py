"""No reader of answers can infer a cell with 1 to least - 1 rows: all small tables are tried, and
random large ones.
"""

from collections import Counter, defaultdict
from itertools import chain, combinations, combinations_with_replacement

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from pomona.core.bounds import LARGEST
from pomona_federation.survey.protection import (
    group_size,
    safe_classes,
    safe_names,
    safe_numbers,
    safe_share,
)
from pomona_federation.survey.settings import FiguresReply, Names, Numbers, SurveySettings
from pomona_federation.survey.silo import coarser_names, coarser_numbers

LEAST = 3
MISSING = None


def tables(cells, rows):
    """All tables: the number of rows in each cell."""
    for placed in combinations_with_replacement(cells, rows):
        yield Counter(placed)


def leaks(answers, cells, least=LEAST):
    """Unions of cells whose number of rows follows from an answer and must stay unknown.

    The reader knows how silos answer, and all answers that any data would have produced.
    """
    data = defaultdict(list)
    for table, answer in answers:
        data[answer].append(table)
    unions = [*chain.from_iterable(combinations(cells, size) for size in range(1, len(cells) + 1))]
    return [
        (answer, union, counts)
        for answer, possible in data.items()
        for union in unions
        if len(counts := {sum(table[cell] for cell in union) for table in possible}) == 1
        and 0 < min(counts) < least
    ]


def numbers(table):
    """The rows of a table as a column."""
    return np.array([np.nan if cell is MISSING else cell for cell in table.elements()], float)


def disclosures(column, coarser, settings):
    """Disclosures of a first survey and of one with another least count and fewer cells."""
    return column.model_dump_json(), coarser(column, settings).model_dump_json()


@pytest.mark.parametrize("rows", range(LEAST, 13))
@pytest.mark.parametrize("cells", [100, 2])
def test_numbers_do_not_leak_in_any_small_table(rows, cells):
    points = (MISSING, 0, 1, 5)
    later = SurveySettings(least=LEAST + 1, cells=2)
    answers = [
        (t, disclosures(safe_numbers(numbers(t), LEAST, cells), coarser_numbers, later))
        for t in tables(points, rows)
    ]
    assert leaks(answers, points) == []


@pytest.mark.parametrize("rows", range(LEAST, 13))
def test_categories_do_not_leak_in_any_small_table(rows):
    points, later = (MISSING, "a", "b", "c"), SurveySettings(least=LEAST + 2)

    def safe(table):
        return disclosures(
            safe_names({k: n for k, n in table.items() if k}, table[MISSING], LEAST),
            coarser_names,
            later,
        )

    assert leaks([(t, safe(t)) for t in tables(points, rows)], points) == []


@pytest.mark.parametrize("rows", range(LEAST, 13))
def test_classes_do_not_leak_in_any_small_table(rows):
    points = ("a", "b", "c", "d")
    assert (
        leaks([(t, safe_classes(t, LEAST).model_dump_json()) for t in tables(points, rows)], points)
        == []
    )


@pytest.mark.parametrize("rows", range(LEAST, 13))
def test_words_do_not_leak_in_any_number_of_texts(rows):
    points = ("with", "without")
    assert (
        leaks([(t, safe_share(t["with"], rows, LEAST)) for t in tables(points, rows)], points) == []
    )


def test_the_attack_finds_what_simpler_rules_leak():
    """Hiding small cells alone leaves them to a difference from the total; hiding one more leaves
    the nines.
    """
    points = ("a", "b", "c")

    def hidden(table):
        return tuple(table[cell] if table[cell] >= LEAST else "hidden" for cell in points)

    def hidden_and_next(table):
        shown_cells = {cell: n for cell, n in table.items() if n >= LEAST}
        if shown_cells and 0 < table.total() - sum(shown_cells.values()) < LEAST:
            del shown_cells[min(shown_cells, key=lambda cell: (shown_cells[cell], cell))]
        return tuple(sorted(shown_cells.items()))

    for rule in (hidden, hidden_and_next):
        assert any(
            leaks([(t, rule(t)) for t in tables(points, rows)], points) for rows in range(LEAST, 13)
        )


columns = st.lists(
    st.one_of(st.just(np.nan), st.integers(-3, 30).map(float), st.floats(-1e9, 1e9)), min_size=10
)


@given(columns, st.integers(3, 10), st.sampled_from([2, 5, 100]))
def test_what_is_told_of_numbers_is_safe_and_stays_as_it_is(column, least, cells):
    x = np.array(column)
    safe = safe_numbers(x, least, cells)
    assert safe.rows == len(x)
    assert len(safe.counts) <= cells
    assert min(safe.counts, default=least) >= min(least, group_size(len(x), least, cells))
    assert safe.rest == 0 or safe.rest >= least
    rows = np.repeat([*safe.values, np.nan], [*safe.counts, safe.rest])
    assert safe_numbers(rows, least, cells) == safe
    if safe.values:
        finite = np.sort(x[np.isfinite(x)])
        assert all(any(np.isclose(value, finite, rtol=1e-3, atol=1e-12)) for value in safe.values)


@given(
    st.dictionaries(st.sampled_from("abcdefgh"), st.integers(1, 30), min_size=1), st.integers(0, 30)
)
def test_what_is_told_of_categories_is_safe_and_stays_as_it_is(counts, missing):
    safe = safe_names(counts, missing + 10, 10)
    assert safe.rows == sum(counts.values()) + missing + 10
    assert min(safe.counts, default=10) >= 10
    assert safe.rest == 0 or safe.rest >= 10
    assert safe_names(safe.by_name, safe.rest, 10) == safe
    if sum(counts.values()) >= 10:
        labels = safe_classes(counts, 10)
        assert (labels.rows, labels.rest) == (sum(counts.values()), 0)
        assert safe_classes(labels.by_name, 10) == labels


def test_ends_of_a_column_are_not_told():
    x = np.arange(100.0)
    safe = safe_numbers(x, 10, 100)
    assert safe == Numbers(values=tuple(4.0 + 10 * k for k in range(10)), counts=(10,) * 10)


def test_few_missing_rows_count_in_the_middle_and_few_known_ones_as_missing():
    x = np.concatenate([np.arange(30.0), [np.nan] * 9])
    assert safe_numbers(x, 10, 100).counts == (10, 19, 10)
    assert safe_numbers(np.concatenate([np.arange(9.0), [np.nan] * 30]), 10, 100) == Numbers(
        rest=39
    )


def test_rare_categories_join_the_missing_or_the_most_frequent():
    assert safe_names({"a": 20, "b": 4, "c": 6}, 0, 10) == Names(
        names=("a",), counts=(20,), rest=10
    )
    assert safe_names({"a": 20, "b": 4, "c": 30}, 5, 10) == Names(
        names=("a", "c"), counts=(20, 39), rest=0
    )


def test_a_name_that_cannot_be_one_line_is_not_told():
    assert safe_names({"a\nb": 20, "c": 10, "x" * 300: 10}, 0, 10) == Names(
        names=("c",), counts=(10,), rest=30
    )
    assert safe_classes({"a\nb": 20}, 10) == Names(rest=20)


def test_an_answer_that_holds_other_rows_is_refused():
    with pytest.raises(ValueError, match="each column must hold 20 rows"):
        FiguresReply(rows=20, numbers={"age": Numbers(values=(1.0,), counts=(19,))})


@pytest.mark.parametrize("sign", [1, -1])
def test_cells_beyond_the_limit_of_a_table_count_as_missing(sign):
    beyond = [np.nextafter(LARGEST, np.inf), 1e25, np.inf]
    safe = safe_numbers(sign * np.array([1.0, 2.0, LARGEST, *beyond]), min_count=3, cells=2)
    assert (safe.counts, safe.rest) == ((3,), len(beyond))
    with pytest.raises(ValidationError):
        Numbers(values=(sign * 1.001 * LARGEST,), counts=(3,))
