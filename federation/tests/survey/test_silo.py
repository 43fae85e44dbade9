"""A silo's side of a survey: refusals, repeated answers, and all kinds of data."""

import numpy as np
import pytest

from pomona.core.errors import DataError, ProtocolError
from pomona.data import data_settings
from pomona_federation.survey import agreeing, page, silo
from pomona_federation.survey.page import task_of
from pomona_federation.survey.raw_data import read_raw
from pomona_federation.survey.result import moments, pooled
from pomona_federation.survey.settings import (
    ColumnSpec,
    FiguresQuestion,
    FiguresReply,
    Names,
    Numbers,
    SurveySettings,
)
from pomona_federation.task_settings import TaskSettings
from surveying import surveyed

ROWS = 120
SURVEY = SurveySettings()


def table(folder, seed=0, rows=ROWS, ward="AAAB", change=lambda lines: lines):
    """One silo's table: numbers, categories, dates, and an outcome."""
    draw = np.random.Generator(np.random.Philox(seed))
    lines = ["age,ward,visit,outcome"]
    for k in range(rows):
        age = int(draw.integers(20, 90))
        lines.append(
            f"{age},{ward[k % len(ward)]},2024-{k % 12 + 1:02d}-03,{'ill' if age > 55 else 'well'}"
        )
    path = folder / f"{seed}.csv"
    path.write_text("\n".join(change(lines)) + "\n")
    return data_settings(
        name="table", path=path, label_column="outcome", dates=("visit",), test_share=0.2
    )


def figures(data, survey=SURVEY, disclosed=None, **kinds):
    """One silo's answer to a question derived from its own columns, with some declared as other
    kinds.
    """
    specs = silo.columns(survey, data, 0).columns
    changed = [spec.model_copy(update={"kind": kinds.get(spec.name, spec.kind)}) for spec in specs]
    return silo.figures(survey, FiguresQuestion(columns=tuple(changed)), data, 0, disclosed)


def test_nothing_of_a_value_is_told_with_the_columns(tmp_path):
    reply = silo.columns(SURVEY, table(tmp_path), 0)
    assert [(spec.name, spec.kind) for spec in reply.columns] == [
        ("age", "number"), ("ward", "category"), ("visit", "date")
    ]  # fmt: skip
    assert (reply.targets, reply.classes, reply.labels) == ("classes", (), ())
    assert reply.rows < ROWS


def test_a_silo_with_fewer_rows_than_the_least_count_tells_nothing(tmp_path):
    with pytest.raises(DataError, match="fewer training rows than the survey's least count of 10"):
        silo.columns(SURVEY, table(tmp_path, rows=12), 0)


@pytest.mark.parametrize(
    ("survey", "columns"),
    [
        (SURVEY, ("age", "name")),
        (SURVEY, ("outcome",)),
        (SURVEY, ("age", "age")),
        (SurveySettings(columns=("ward",)), ("age", "ward")),
    ],
)
def test_a_question_for_more_than_was_offered_is_refused(tmp_path, survey, columns):
    question = FiguresQuestion(
        columns=tuple(ColumnSpec(name=name, kind="number") for name in columns)
    )
    with pytest.raises(
        ProtocolError, match="the server asks about columns that this silo does not have"
    ):
        silo.figures(survey, question, table(tmp_path), 0)


@pytest.mark.parametrize("rare", ["A", "Z"])
@pytest.mark.parametrize(
    ("name", "kind"), [("ward", "number"), ("ward", "date"), ("age", "date"), ("visit", "number")]
)
def test_no_column_is_read_so_that_its_failure_would_tell_of_a_row(tmp_path, name, kind, rare):
    def edited(lines):
        return [lines[0], lines[1].replace(",A,", f",{rare},"), *lines[2:]]

    spec = ColumnSpec(name=name, kind=kind, missing=("A", "B"))
    with pytest.raises(
        ProtocolError, match=f"asks about column {name} as {kind}, but it was offered as"
    ):
        silo.figures(SURVEY, FiguresQuestion(columns=(spec,)), table(tmp_path, change=edited), 0)


def test_a_server_cannot_take_a_silo_s_own_markers_of_gaps_away(tmp_path):
    data = table(tmp_path, change=lambda lines: [lines[0], f"lost{lines[1][2:]}", *lines[2:]])
    data = data.model_copy(update={"missing_values": {"age": ("lost",)}})
    answers = [
        silo.figures(
            SURVEY,
            FiguresQuestion(columns=(ColumnSpec(name="age", kind="number", missing=m),)),
            data,
            0,
        )
        for m in ((), ("lost",))
    ]
    assert answers[0] == answers[1]


def test_what_was_told_is_told_again_whatever_the_data_are_now(tmp_path):
    first, disclosed = figures(table(tmp_path))
    assert figures(table(tmp_path), disclosed=disclosed) == (first, disclosed)
    changed = table(tmp_path, change=lambda lines: [lines[0], *(f"7{line}" for line in lines[1:])])
    assert figures(changed)[0] != first
    assert figures(changed, disclosed=disclosed) == (first, disclosed)


def test_new_rows_are_not_told_by_a_difference(tmp_path):
    first, disclosed = _of_age(tmp_path)
    larger = table(tmp_path, rows=ROWS + 5)
    reply, updated = figures(larger, disclosed=disclosed)
    assert reply.numbers == first.numbers
    assert reply.rows == first.rows
    assert set(reply.withheld) == {"ward", "visit"}
    assert "could be derived by a difference" in reply.withheld["ward"]
    assert updated == disclosed


def _of_age(folder):
    question = FiguresQuestion(columns=(ColumnSpec(name="age", kind="number"),))
    return silo.figures(SURVEY, question, table(folder), 0)


def test_a_column_is_told_in_one_kind_only(tmp_path):
    _, disclosed = figures(table(tmp_path))
    reply, updated = figures(table(tmp_path), disclosed=disclosed, age="category")
    assert set(reply.withheld) == {"age"}
    assert "would be reported twice" in reply.withheld["age"]
    assert updated == disclosed


def test_another_least_count_coarsens_what_was_told(tmp_path):
    first, disclosed = figures(table(tmp_path))
    second, updated = figures(table(tmp_path), SurveySettings(least=20, cells=3), disclosed)
    assert set(second.numbers["age"].values) <= set(first.numbers["age"].values)
    assert min(second.numbers["age"].counts) >= 20
    assert len(second.numbers["age"].counts) <= 3
    assert updated == disclosed
    third, _ = figures(table(tmp_path), SurveySettings(least=3, cells=1000), disclosed)
    assert third == first


def test_numbers_at_one_silo_and_names_at_another_are_categories_for_both(tmp_path):
    plain = table(tmp_path, seed=1, ward="1112")
    result = surveyed({"north": table(tmp_path), "south": plain})
    assert {spec.name: spec.kind for spec in result.columns} == {
        "age": "number",
        "ward": "category",
        "visit": "date",
    }
    assert result.names("ward")["south"].names == ("1", "2")
    preprocessing = TaskSettings.model_validate(task_of(result)).preprocessing
    assert preprocessing.columns[1].values == ("1", "2", "A", "B")


def test_columns_of_some_silos_only_are_named(tmp_path):
    wider = table(
        tmp_path,
        seed=1,
        change=lambda lines: [f"{line},{k or 'more'}" for k, line in enumerate(lines)],
    )
    result = surveyed({"north": table(tmp_path), "south": wider})
    assert [spec.name for spec in result.columns] == ["age", "ward", "visit"]
    assert result.notes == (
        "south has columns that the others do not have: more; leave them out there with data.drop_columns",
    )


def test_who_leaves_the_others_no_common_column_is_named(tmp_path):
    honest = silo.columns(SURVEY, table(tmp_path), 0)
    outlier = honest.model_copy(update={"columns": (ColumnSpec(name="x", kind="number"),)})
    silos = {"north": honest, "south": outlier, "west": honest}
    with pytest.raises(DataError, match="south lacks columns that most have: age, visit, ward"):
        agreeing.common_question(SURVEY, silos)
    fewer = honest.model_copy(update={"columns": honest.columns[1:]})
    _, notes = agreeing.common_question(SURVEY, silos | {"south": fewer})
    assert [note.partition(" columns")[0] for note in notes] == ["south lacks"]


def test_what_one_silo_decides_for_all_is_noted_with_its_name(tmp_path):
    """A false answer would stay: each silo discloses a column once."""
    honest = silo.columns(SURVEY, table(tmp_path), 0)
    age, ward, visit = honest.columns
    lie = (
        age.model_copy(update={"kind": "category"}),
        ward.model_copy(update={"missing": ("A", "B")}),
        visit.model_copy(update={"missing": tuple(map(str, range(50)))}),
    )
    false = honest.model_copy(update={"rows": 100 * honest.rows, "columns": lie})
    marked = (age, ward, visit.model_copy(update={"missing": ("-9",)}))
    west = honest.model_copy(update={"columns": marked})
    _, notes = agreeing.common_question(SURVEY, {"south": false, "north": honest, "west": west})
    assert [note for note in notes if note.startswith("north")] == []
    south = [note for note in notes if note.startswith("south")]
    assert [
        phrase
        for phrase in ("ward: A, B", "numbers or dates: age", "claims")
        if sum(phrase in note for note in south) != 1
    ] == []
    assert any(note.startswith("west marks gaps") and "visit: -9" in note for note in notes)
    assert any("more than 50 markers of gaps in visit" in note for note in notes)
    assert agreeing.common_question(SURVEY, {"south": honest, "north": honest})[1] == ()


def test_silos_of_different_kinds_are_told_apart(tmp_path):
    table_columns = silo.columns(SURVEY, table(tmp_path), 0)
    image_columns = table_columns.model_copy(update={"kind": "image", "shape": (4, 4, 1)})
    with pytest.raises(DataError, match="silo south has kind image, north table"):
        agreeing.common_question(SURVEY, {"north": table_columns, "south": image_columns})


def images(folder, seed):
    """Gray images in two classes, as an archive."""
    draw = np.random.Generator(np.random.Philox(seed))
    x = draw.integers(0, 200 + 20 * seed, (100, 6, 5, 2)).astype(np.uint8)
    path = folder / f"{seed}.npz"
    np.savez(path, x=x, y=np.arange(100) % 2)
    return data_settings(name="arrays", path=path, test_share=0.2), x


def test_images_are_told_by_their_intensities(tmp_path):
    (north, _), (south, _) = images(tmp_path, 1), images(tmp_path, 2)
    result = surveyed({"north": north, "south": south})
    task = TaskSettings.model_validate(task_of(result))
    pixels = []
    for data in (north, south):
        raw = read_raw(data, 0, 0)
        pixels.append(raw.dataset.x[raw.rows].astype(float))
    every = np.concatenate(pixels)
    assert task.input_shape == (6, 5, 2)
    assert task.classes == ("0", "1")
    assert np.allclose(task.shift, every.mean(axis=(0, 1, 2)), rtol=0.02)
    assert np.allclose(task.scale, every.std(axis=(0, 1, 2)), rtol=0.05)


def texts(folder, seed, rare):
    """Texts in two classes, one of them with a rare word."""
    lines = ["kind,text"]
    lines += [
        (
            f"{'good' if k % 2 else 'bad'},the film was {'fine' if k % 2 else 'poor'} "
            f"{'m² ' * (k % 3)}"
        )
        for k in range(99)
    ]
    lines += [f"good,the film was {rare}"]
    path = folder / f"{seed}.csv"
    path.write_text("\n".join(lines) + "\n")
    return data_settings(
        name="text",
        path=path,
        label_column="kind",
        text_columns=("text",),
        sequence_length=8,
        test_share=0.1,
    )


def test_texts_are_told_by_words_in_enough_of_them(tmp_path):
    result = surveyed({"north": texts(tmp_path, 1, "wolf"), "south": texts(tmp_path, 2, "bear")})
    task = TaskSettings.model_validate(task_of(result))
    assert set(task.words) == {"the", "film", "was", "fine", "poor", "m²"}
    assert task.vocabulary == 8
    assert task.input_shape == (8,)
    for answer in (reply.figures for reply in result.silos.values()):
        assert all(n == answer.rows or answer.rows - n >= 10 for n in answer.words.values())
        assert all(answer.words[word] == answer.rows for word in ("the", "film", "was"))


@pytest.mark.parametrize("name", ["a  b", "a\u00a0b", "\u0645\u200c\u062e", "a" * 200])
def test_a_class_and_a_column_whose_names_have_wide_blanks_or_joiners_are_told(tmp_path, name):
    data = table(tmp_path, change=lambda lines: ["\n".join(lines).replace("well", name)])
    reply, _ = figures(data)
    assert {*reply.classes.names} == {"ill", name}  # and not all rows under the other one
    data = table(tmp_path, change=lambda lines: ["\n".join(lines).replace("age", name)])
    assert name in figures(data)[0].numbers


@pytest.mark.parametrize("name", ["a\u202eb", "\u200f", "a" * 201])
@pytest.mark.parametrize("renamed", ["well", "age"])
def test_a_class_or_column_with_a_name_that_nobody_sees_is_refused(tmp_path, name, renamed):
    """Its rows would be counted with those of another class, or nowhere, without a word."""
    data = table(tmp_path, change=lambda lines: [x.replace(renamed, name) for x in lines])
    with pytest.raises(DataError, match=r"drop_columns"):
        figures(data)


def outcomes(folder, seed, heads, line):
    """A table of x and targets."""
    draw = np.random.Generator(np.random.Philox(seed))
    lines = [f"x,{heads}", *(f"{draw.normal():.3f},{line(draw)}" for _ in range(200))]
    path = folder / f"{seed}.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_times_to_an_event_become_intervals(tmp_path):
    def line(draw):
        return f"{draw.exponential(5) + 0.1:.2f},{int(draw.random() < 0.6)}"

    data = {
        name: data_settings(
            name="table",
            path=outcomes(tmp_path, k, "days,seen", line),
            label_columns=("days", "seen"),
            targets="survival",
        )
        for k, name in enumerate(("north", "south"))
    }
    result = surveyed(data)
    (target_columns,) = result.targets().values()
    task = TaskSettings.model_validate(task_of(result))
    assert 5 <= len(task.time_edges) <= 10
    for name, column in target_columns.items():
        raw = read_raw(data[name], 0, 0)
        assert sum(column.counts) == raw.dataset.y[raw.rows, 1].sum()


def test_targets_that_are_numbers_get_shift_and_scale(tmp_path):
    data = {
        name: data_settings(
            name="table",
            path=outcomes(tmp_path, k, "y", lambda draw, k=k: f"{draw.normal(1000 + k, 3):.3f}"),
            label_column="y",
            targets="regression",
        )
        for k, name in enumerate(("north", "south"))
    }
    task = TaskSettings.model_validate(task_of(surveyed(data)))
    assert abs(task.target_shift[0] - 1000.5) < 0.5
    assert abs(task.target_scale[0] - 3) < 0.4


def test_flags_become_outputs(tmp_path):
    data = {
        name: data_settings(
            name="table",
            path=outcomes(
                tmp_path,
                k,
                "f,g",
                lambda draw: f"{int(draw.random() < 0.5)},{int(draw.random() < 0.2)}",
            ),
            label_columns=("f", "g"),
            targets="multilabel",
        )
        for k, name in enumerate(("north", "south"))
    }
    result = surveyed(data)
    assert TaskSettings.model_validate(task_of(result)).outputs == 2
    statistics = moments(pooled(result.targets()["f"].values()))
    assert {*vars(statistics)} == {"count", "mean", "deviation"}
    assert set(pooled(result.targets()["g"].values()).values) == {0.0, 1.0}


def test_hostile_names_and_numbers_are_refused():
    for bad in (
        {"rows": 10, "numbers": {"a\nb": {}}},
        {"rows": 10, "numbers": {"a": {"values": [1, 1], "counts": [5, 5]}}},
        {"rows": 10, "numbers": {"a": {"values": [1e31], "counts": [10]}}},
        {"rows": 10, "numbers": {"a": {"values": [1.00001], "counts": [10]}}},
        {"rows": 10, "numbers": {"a": {"values": [1e-320], "counts": [10]}}},
        {"rows": 10, "numbers": {"a": {"values": [float("nan")], "counts": [10]}}},
        {"rows": 10, "names": {"a": {"names": ["\x1b[2J"], "counts": [10]}}},
        {"rows": 10, "names": {"a": {"names": ["x"], "counts": [-1], "rest": 11}}},
        {"rows": 10, "words": {"two words": 3}},
        {"rows": 10, "words": {"word": 11}},
        {"rows": 2**53},
    ):
        with pytest.raises(ValueError):  # noqa: PT011 - pydantic's, whatever it says
            FiguresReply.model_validate(bad)
    reply = FiguresReply.model_validate({"rows": 10, "numbers": {"a": {"rest": 10}}})
    assert reply.numbers["a"] == Numbers(rest=10)


def test_an_answer_that_no_silo_makes_is_refused(tmp_path):
    data, survey = table(tmp_path), SurveySettings(cells=4)
    columns = silo.columns(survey, data, 0)
    question, _ = agreeing.common_question(survey, {"north": columns})
    reply, _ = silo.figures(survey, question, data, 0)
    n = reply.rows
    agreeing.require_answered(survey, question, columns, reply, n)
    fives = Numbers(values=(1.0, 2.0, 3.0, 4.0, 5.0), counts=(10, 10, 10, 10, n - 40))
    for change, message in (
        ({"classes": None}, "other labels"),
        ({"targets": {"more": Numbers(rest=n)}}, "other labels"),
        ({"numbers": {**reply.numbers, "age": fives}}, "more than 4 cells"),
        (
            {"numbers": {**reply.numbers, "age": Numbers(values=(1.0,), counts=(9,), rest=n - 9)}},
            "fewer than 10",
        ),
        ({"names": {"ward": Names(names=("A",), counts=(n - 1,), rest=1)}}, "fewer than 10"),
        ({"words": {"word": 1}}, "fewer than 10"),
    ):
        with pytest.raises(ProtocolError, match=message):
            agreeing.require_answered(survey, question, columns, reply.model_copy(update=change), n)
    with pytest.raises(ProtocolError, match=f"not 10 to {n - 1}"):
        agreeing.require_answered(survey, question, columns, reply, n - 1)


def test_a_page_shows_names_as_text(tmp_path):
    sharp = table(tmp_path, ward="<b>")
    result = surveyed({"north": sharp, "south": table(tmp_path, seed=1)})
    html = page.write(result, tmp_path / "page").read_text()
    assert "<b>" not in html
    assert "ward = &lt;" in html
    notes = ("south has columns that the others do not have: <img src=x>, [y](z)",)
    text = page.write(result.model_copy(update={"notes": notes}), tmp_path / "page")
    assert r"have: \<img src=x>, \[y](z)" in text.with_name("survey.md").read_text()
