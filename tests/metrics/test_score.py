"""A client's scores: checked where they come from a message or a file, and gathered to a table."""

import json

import pytest
from pydantic import TypeAdapter, ValidationError

from pomona.metrics.metric import Score, metric_named
from pomona.record.events import read
from pomona.record.rows import Evaluation

GOOD = {
    "model": "personal",
    "when": "trained",
    "split": "test",
    "samples": 3,
    "loss": 0.5,
    "accuracy": 1.0,
}
DOOR = TypeAdapter(Score)


def test_a_score_survives_its_own_json():
    score = Score(**GOOD, value=0.25, interval=(0.125, 0.5))
    assert DOOR.validate_json(DOOR.dump_json(score)) == score


@pytest.mark.parametrize(
    "changes",
    [
        {"when": "later"},
        {"split": "train"},
        {"model": "<b>"},
        {"samples": -1},
        {"loss": float("nan")},
        {"loss": 1e101},
        {"accuracy": 1.01},
        {"interval": (0.1,)},
    ],
)
def test_what_no_client_can_have_measured_is_refused(changes):
    with pytest.raises(ValidationError):
        DOOR.validate_python(GOOD | changes)
    with pytest.raises(ValidationError):  # also one that was made here, before it leaves
        DOOR.validate_python(Score(**(GOOD | changes)))


def test_an_evaluation_is_a_table_of_scores_and_is_read_back_from_its_event():
    scores = {
        4: Score(**GOOD, value=0.25, interval=(0.125, 0.5)),
        7: Score("personal", "trained", "test", 0),
    }
    table = Evaluation.from_scores(2, scores, metric_named("auroc"))
    assert (table.round, table.key, table.clients) == (2, scores[4].key, (4, 7))
    assert (table.samples, table.loss, table.value) == ((3, 0), (0.5, None), (0.25, None))
    assert table.interval == ((0.125, 0.5), None)
    assert read(json.dumps({"event": "evaluation", **vars(table)})) == ("evaluation", table)
    assert Evaluation.from_scores(2, {7: scores[7]}, metric_named("auroc")).interval == ()


@pytest.mark.parametrize("column", ["samples", "loss", "accuracy", "value", "interval"])
def test_every_column_has_a_value_for_each_client(column):
    table = Evaluation.from_scores(
        2, {4: Score(**GOOD, value=0.25, interval=(0.125, 0.5))}, metric_named("auroc")
    )
    event = {"event": "evaluation", **vars(table), column: [*getattr(table, column)] * 2}
    with pytest.raises(ValueError, match="one value for each client"):
        read(json.dumps(event))
