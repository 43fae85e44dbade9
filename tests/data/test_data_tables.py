"""Tables as hospitals export them: categories, dates, gaps; preprocessing fitted on training rows
alone.
"""

import json
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import OneHotEncoder

from pomona.core.errors import ConfigError, DataError
from pomona.data import cell_values, data_settings, read
from pomona.data.axes import CustomReader
from pomona.data.preprocessing import Preprocessing, RawTable, TableColumn
from pomona.data.tables import features, tabular
from pomona.data.tables.tabular import moments
from pomona.personal.inputs import read as read_inputs
from pomona.record.model_metadata import ModelMetadata

WARD = """age,ward,visit,smoker,died
30,A,2000-01-02,true,no
,B,2000-01-03,False,yes
50,A,,TRUE,no
70,,2000-01-11,false,yes
"""
KEYS = {"label_column": "died", "missing": "median", "categories": ("ward",), "dates": ("visit",)}


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return path


def table(tmp_path, text=WARD, rows=None, **settings):
    """The data of a text, fitted on rows (all by default)."""
    data = read(
        data_settings(name="table", path=write(tmp_path / "t.csv", text), **{**KEYS, **settings})
    )
    return data.learn(data, np.arange(len(data)) if rows is None else np.array(rows, np.int64))


def refused(tmp_path, text, error=DataError, **settings):
    with pytest.raises(error) as fault:
        read(
            data_settings(
                name="table",
                path=write(tmp_path / "t.csv", text),
                **{"label_column": "died", **settings},
            )
        )
    return fault.value.text()


def test_gaps_categories_dates_and_booleans_become_numbers(tmp_path):
    data = table(tmp_path)
    # medians: age of 30, 50, 70; visits of 1, 2, 10 days; the ward A is the most frequent
    assert data.columns == (
        "age",
        "age missing",
        "ward=A",
        "ward=B",
        "ward missing",
        "visit",
        "visit missing",
        "smoker",
    )
    assert data.x.tolist() == [
        [30, 0, 1, 0, 0, 1, 0, 1],
        [50, 1, 0, 1, 0, 2, 0, 0],
        [50, 0, 1, 0, 0, 2, 1, 1],
        [70, 0, 1, 0, 1, 10, 0, 0],
    ]
    assert (data.shift, data.scale) == moments(data.x, np.arange(4))
    assert (data.x.dtype, data.others, data.classes) == (np.float32, ("died",), ("no", "yes"))
    (fit,) = data.preprocessing
    assert [column.fill for column in fit.columns] == [50, "A", 2, 0.5]
    assert fit == Preprocessing.model_validate(json.loads(json.dumps(fit.model_dump(mode="json"))))
    assert (
        "4 columns become 8 features, learnt from 4 training rows; gaps in age, ward, visit are"
        in data.notes[0]
    )


def test_only_training_rows_teach(tmp_path):
    data = table(tmp_path, rows=[0, 2])
    # ages 30 and 50; one ward; one visit, of day 1, and a gap; no other gap
    assert data.columns == ("age", "ward=A", "visit", "visit missing", "smoker")
    assert data.x.tolist() == [
        [30, 1, 1, 0, 1],
        [40, 0, 2, 0, 0],
        [50, 1, 1, 1, 1],
        [70, 1, 10, 0, 0],
    ]
    assert "column ward: 1 of 4 rows have categories that are too rare" in data.notes[-1]
    changed = table(tmp_path, WARD.replace(",B,", ",C,").replace("70,", "71,"), rows=[0, 2])
    assert changed.preprocessing == data.preprocessing
    assert (changed.shift, changed.scale) == (data.shift, data.scale)


def test_a_clean_table_has_the_same_bytes_with_and_without_the_settings(tmp_path):
    draw = np.random.Generator(np.random.Philox(3))
    rows = [f"{draw.normal()},{draw.integers(9)},{draw.integers(2)}" for _ in range(50)]
    path = write(tmp_path / "t.csv", "\n".join(["a,b,y", *rows]))
    plain = read(data_settings(name="table", path=path, label_column="y"))
    for changes in (
        {"missing": "median"},
        {"categories": "encode"},
        {"fit": "pooled", "categories": ()},
    ):
        data = read(data_settings(name="table", path=path, label_column="y", **changes))
        assert data.fingerprint == plain.fingerprint
        assert (data.shift, data.scale, data.columns) == (plain.shift, plain.scale, plain.columns)
        assert data.learn(data, np.arange(50)).notes == ()


def test_categories_are_found_where_most_cells_are_no_numbers(tmp_path):
    text = "sex,ward,age,died\n" + "".join(
        f"{'FM'[k % 2]},{k % 3},{30 + k},{k % 2}\n" for k in range(30)
    )
    data = table(tmp_path, text, categories="encode", dates=())
    assert data.columns == ("sex=F", "sex=M", "ward", "age")
    message = refused(tmp_path, text.replace("\nF,0,30", "\nF,0,3O"), categories="encode")
    assert (
        "column age: 1 of 30 are not finite numbers, first '3O' in line 2; single cells: correct "
        "them"
    ) in message
    dated = "visit,died\n" + "".join(f"2024-01-{k + 1:02d},{k % 2}\n" for k in range(9))
    assert """dates: read them as days, 'data.dates=["visit"]'""" in refused(
        tmp_path, dated, categories="encode"
    )


def test_what_the_message_advises_reads_the_table(tmp_path):
    """Every column of a refused table is read by the settings that the message names, which repeat
    what is set already: a setting on the command line replaces an earlier one.
    """
    text = "visit,back,sex,ward,lactate,died\n" + "".join(
        f"2024-03-{k + 1:02d},2024-04-{k + 1:02d},{'FM'[k % 2]},{'yn'[k % 2]},"
        f"{'' if k == 3 else k if k % 7 else '??'},{k % 2}\n"
        for k in range(20)
    )
    settings = {"dates": ("visit",), "categories": ("sex",), "missing_values": {"sex": ("U",)}}
    message = refused(tmp_path, text, **settings)
    assert "data.missing=median" in message
    assert """'data.dates=["visit", "back"]'""" in message
    assert """'data.categories=["sex", "ward"]'""" in message
    assert """'data.missing_values={sex = ["U"], lactate = ["??"]}'""" in message
    gaps = {"missing": "median", "missing_values": {"sex": ("U",), "lactate": ("??",)}}
    data = table(tmp_path, text, **gaps, dates=("visit", "back"), categories=("sex", "ward"))
    columns = ("visit", "back", "sex=F", "sex=M", "ward=n", "ward=y", "lactate", "lactate missing")
    assert data.columns == columns


def test_rare_categories_have_no_feature(tmp_path):
    text = "ward,died\n" + "".join(
        f"{w},{k % 2}\n" for k, w in enumerate("A" * 60 + "B" * 37 + "C" * 3)
    )
    assert table(tmp_path, text, dates=(), category_share=0.03).columns == (
        "ward=A",
        "ward=B",
        "ward=C",
    )
    data = table(tmp_path, text, dates=(), category_share=0.031)
    assert data.columns == ("ward=A", "ward=B")
    assert data.x[-3:].tolist() == [[0, 0]] * 3
    assert (
        "3 of 100 rows have categories that are too rare in the training rows or absent from them "
        "(first 'C')"
    ) in "".join(data.notes)
    assert table(tmp_path, text, dates=(), category_share=0.38).columns == ("ward=A",)
    with pytest.raises(DataError, match=r"no category of ward is in 61\.00% of the training rows"):
        table(tmp_path, text, dates=(), category_share=0.61)


def test_whole_numbers_are_one_category_however_they_are_written(tmp_path):
    data = table(
        tmp_path, "cp,died\n1.0,0\n1,1\n 2. ,0\n3,1\n007,1\n", categories=("cp",), dates=()
    )
    assert data.columns == ("cp=1", "cp=2", "cp=3", "cp=007")


def test_values_that_stand_for_a_gap(tmp_path):
    text = "chol,cp,died\n0,none,0\n0.0,9,1\n200,b,0\n300,,1\n100,b,1\n"
    markers = {"chol": (0,), "cp": ("9",)}
    data = table(tmp_path, text, categories=("cp",), dates=(), missing_values=markers)
    assert data.columns == ("chol", "chol missing", "cp=b", "cp=none", "cp missing")
    assert data.x.tolist() == [
        [200, 1, 0, 1, 0],
        [200, 1, 1, 0, 1],
        [200, 0, 1, 0, 0],
        [300, 0, 1, 0, 1],
        [100, 0, 1, 0, 0],
    ]
    message = refused(
        tmp_path, "chol,died\n0,0\n5,1\n", missing_values=markers | {"cp": ()}, error=ConfigError
    )
    assert "data.missing_values" in message
    message = refused(tmp_path, "chol,died\n0,0\n5,1\n", missing_values={"chol": (0,)})
    assert (
        "column chol: 1 of 2 cells are gaps, first '0' in line 2; gaps: fill them with medians"
        in message
    )


def test_names_of_columns_may_come_from_the_settings(tmp_path):
    text = "30,A,0\n40,B,2\n,A,1\n"
    names = {
        "columns": ("age", "ward", "num"),
        "label_column": "num",
        "label_above": 0,
        "dates": (),
    }
    data = table(tmp_path, text, **names)
    assert data.columns == ("age", "age missing", "ward=A", "ward=B")
    assert (data.classes, data.y.tolist(), data.others) == (
        ("num <= 0", "num > 0"),
        [0, 1, 1],
        ("num",),
    )
    assert data.preprocessing[0].layout == ("age", "ward", "num")
    numbered = table(tmp_path, text, label_column=2, categories=(1,), dates=())
    assert numbered.x.tolist() == data.x.tolist()
    assert numbered.columns == ("0", "0 missing", "1=A", "1=B")
    for changes, message in (
        ({"columns": ("age", "ward")}, "data.columns has 2 names, .* 3 columns"),
        ({"columns": ("age", "num", "num")}, "names 'num' twice"),
        ({"columns": ("age", "", "num")}, r"data.columns: column 1 \(from 0\) has no name"),
        ({"header": True}, "drop data.columns"),
    ):
        with pytest.raises(ConfigError, match=message):
            table(tmp_path, text, **{**names, **changes})


def resolve_custom(path):
    """Settings as a reader of the user's own has them: any that data have."""
    return CustomReader(name="mine:read", path=path, label_column="x", columns=("v", "x"))


def test_names_in_the_settings_replace_none_in_a_file(tmp_path):
    pa, parquet = (pytest.importorskip(name) for name in ("pyarrow", "pyarrow.parquet"))
    parquet.write_table(pa.table({"a": [30.0], "b": [0]}), tmp_path / "t.parquet")
    settings = resolve_custom(tmp_path / "t.parquet")
    with pytest.raises(
        ConfigError, match=r"data.columns is for CSV, .*t.parquet is Parquet; remove it"
    ):
        tabular.read(settings)  # as a reader of the user's own may


@pytest.mark.parametrize(
    ("name", "problem"), [("", "no name"), ("v" * 501, "a name of 501 characters")]
)
def test_a_feature_needs_a_name_that_can_be_recorded(name, problem, tmp_path):
    text = f"{name},age,died\n1,30,no\n1,40,yes\n"
    message = refused(tmp_path, text)
    assert f"t.csv: column 0 (from 0) has {problem}; give one of 1 to 500 characters" in message
    assert "or drop it by data.drop_columns" in message
    table(tmp_path, text.replace(name, "v" * 500, 1), categories=(), dates=())
    dropped = table(tmp_path, text, categories=(), dates=(), drop_columns=(name,))
    assert (dropped.columns, dropped.others) == (("age",), (name, "died"))


def test_a_label_of_numbers_is_cut_in_two(tmp_path):
    data = table(
        tmp_path,
        "x,num\n1,0\n2,4\n3,-1\n",
        label_column="num",
        label_above=0,
        classes=("well", "ill"),
        dates=(),
        categories=(),
    )
    assert (data.y.tolist(), data.classes) == ([0, 1, 0], ("well", "ill"))
    message = refused(tmp_path, "x,died\n1,0\n2,\n3,b\n", label_above=0)
    assert "label column died: 1 of 3 are not finite numbers, first 'b' in line 4" in message
    for settings in ({"classes": ("a",)}, {"targets": "regression"}):
        assert "data.label_above" in refused(
            tmp_path, "x,died\n1,0\n", error=ConfigError, label_above=0, **settings
        )


@pytest.mark.parametrize(
    ("cell", "days"),
    [
        ("2000-01-01", 0),
        ("1999-12-31", -1),
        ("2024-03-01", 8826),
        ("2000-01-02T12:00", 1.5),
        ("2000-01-01T01:00+02:00", -1 / 24),
    ],
)
def test_days_of_dates(cell, days):
    assert cell_values.days(cell) == days


@pytest.mark.parametrize(
    "cell", ["01.03.2024", "2024-02-30", "2024", "", "x", "0001-01-01T00:00+23:00"]
)
def test_what_is_no_date(cell):
    assert np.isnan(cell_values.days(cell))


@pytest.mark.parametrize(
    ("text", "settings", "message"),
    [
        ("visit,died\n2024-01-01,0\n1.2.2024,1\n", {"dates": ("visit",)}, ("1 of 2 are not dates "
                                                                          "such as 2024-03-01, "
                                                                          "first '1.2.2024' in "
                                                                          "line 3")),
        ("age,died\n1,0\n,1\n", {}, "column age: 1 of 2 cells are gaps, first '' in line 3"),
        ("ward,died\nA,0\n,1\n", {"categories": ("ward",)}, "column ward: 1 of 2 cells are gaps"),
        ("age,died\n1,0\n2,\n", {"missing": "median"}, ("label column died: 1 of 2 are empty, "
                                                       "first in line 3; every row needs a label")),
        ("age,died\n1,0\nx,1\n2,1\n3,1\n", {"missing": "median"}, ("column age: 1 of 4 are not "
                                                                  "finite numbers, first 'x' in "
                                                                  "line 3")),
    ],
)  # fmt: skip
def test_cells_that_cannot_be_read(tmp_path, text, settings, message):
    assert message in refused(tmp_path, text, **settings)


@pytest.mark.parametrize("categories", ["encode", ("ward",)])
@pytest.mark.long
def test_a_category_with_ten_thousand_values_is_refused(tmp_path, categories):
    text = "ward,died\n" + "".join(f"w{k},{k % 2}\n" for k in range(10_000))
    message = refused(tmp_path, text, categories=categories)
    assert (
        "column ward: a category with too many values (one too many is 'w1000' in line 1002)"
        in message
    )
    assert "raise data.category_limit" in message
    data = table(
        tmp_path, text, categories=categories, dates=(), category_limit=10_000, category_share=0
    )
    assert data.x.shape == (10_000, 10_000)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"categories": ("died",)}, "data.categories: column died of .* is not a feature"),
        (
            {"dates": ("ward",), "drop_columns": ("ward",)},
            "data.dates: column ward of .* is not a feature",
        ),
        ({"dates": ("when",)}, "data.dates: .* no column 'when'"),
        (
            {"dates": ("ward",), "categories": ("ward",)},
            "column ward is in data.categories and in data.dates",
        ),
        (
            {"missing_values": {"wart": (0,)}},
            "data.missing_values: .* no column 'wart'; did you mean ward",
        ),
        ({"fit": "client", "categories": "encode"}, "data.fit=client needs rows with owners"),
    ],
)
def test_settings_that_do_not_fit(tmp_path, settings, message):
    with pytest.raises(ConfigError, match=message):
        read(
            data_settings(
                name="table",
                path=write(tmp_path / "t.csv", "ward,bed,died\nA,1,0\nB,2,1\n"),
                label_column="died",
                **settings,
            )
        )


CELLS = st.one_of(st.none(), st.floats(-1e6, 1e6, width=32))
CATEGORIES = st.one_of(st.none(), st.sampled_from("ABCDE"))


@given(st.lists(st.tuples(CELLS, CATEGORIES), max_size=12), st.data())
def test_features_are_those_of_scikit_learn(cells, data):
    """For any table of 0, 1 or many rows, wholly missing columns and single categories included."""
    rows = np.array(
        data.draw(st.lists(st.integers(0, max(0, len(cells) - 1)), max_size=12 if cells else 0)),
        np.int64,
    )
    numbers = np.array([np.nan if a is None else a for a, _ in cells], np.float32).reshape(-1, 1)
    codes = np.array(
        [np.nan if b is None else "ABCDE".index(b) for _, b in cells], np.float32
    ).reshape(-1, 1)
    columns = (TableColumn(name="a", fill=0.0), TableColumn(name="b", kind="category", fill=""))
    raw = RawTable(columns, np.hstack([numbers, codes]), ((), tuple("ABCDE")))
    learnt = features.fitted(raw, rows, 0.0)
    x = features.features(raw, learnt, 0.25)
    assert x.shape == (len(cells), learnt.width)
    assert np.isfinite(x).all()

    taught = numbers[rows]
    expected = []
    if np.isfinite(taught).any():
        expected.append(
            SimpleImputer(strategy="median")
            .fit(taught.astype(float))
            .transform(numbers.astype(float))
        )
    else:
        expected.append(np.nan_to_num(numbers, nan=0.0))
    if np.isnan(taught).any():
        expected.append(np.isnan(numbers))
    present = codes[rows][~np.isnan(codes[rows])].astype(int)
    usual = np.bincount(present, minlength=5).argmax() if len(present) else -1
    filled = np.where(np.isnan(codes), usual, codes).astype(int)
    if len(present):
        encoder = OneHotEncoder(handle_unknown="ignore", sparse_output=False).fit(present[:, None])
        expected.append(
            encoder.transform(filled) if len(filled) else np.zeros((0, len(set(present))))
        )
    if np.isnan(codes[rows]).any():
        expected.append(np.isnan(codes))
    np.testing.assert_array_equal(x, np.hstack(expected).astype(np.float32))


def metadata_of(data, client=0):
    """A model file's metadata for a data set."""
    return ModelMetadata(
        client="A", model="m", network={"name": "logistic"}, kind="table", input_shape=data.x.shape[1:], outputs=2,
        vocabulary=0, words=(), targets="classes", classes=("no", "yes"), labels=(), columns=data.columns,
        others=data.others, shift=data.shift, scale=data.scale, target_shift=(0.0,), target_scale=(1.0,),
        preprocessing=data.preprocessing[client],
    )  # fmt: skip


def test_the_raw_table_is_answered_as_it_was_trained_on(tmp_path):
    data = table(tmp_path)
    samples = read_inputs(tmp_path / "t.csv", metadata_of(data))
    assert samples.x.tobytes() == data.x.tobytes()
    assert samples.note == ""
    turned = write(tmp_path / "u.csv", "visit,smoker,ward,age\n,1,?,\n2000-01-05,false,Z,44\n")
    samples = read_inputs(turned, metadata_of(data))
    assert samples.x.tolist() == [[50, 1, 1, 0, 1, 2, 1, 1], [44, 0, 0, 0, 0, 4, 0, 0]]
    assert "u.csv: column ward: 1 of 2 rows have categories that are too rare" in samples.note
    assert "(first 'Z')" in samples.note


def test_a_gap_in_a_column_that_had_none_in_training_is_counted(tmp_path):
    """Ages 30 and 40 have the median 35."""
    data = table(
        tmp_path, "30,0,A\n40,2,B\n", columns=("age", "num", "ward"), label_column="num", dates=()
    )
    samples = read_inputs(write(tmp_path / "u.csv", "age,ward\n,A\n50,B\n"), metadata_of(data))
    assert samples.x[:, 0].tolist() == [35, 50]
    assert "column age: 1 of 2 rows have a gap; it is filled without a flag" in samples.note


def test_files_without_names_are_read_by_the_layout_of_the_training_file(tmp_path):
    layout = {"columns": ("age", "num", "ward"), "label_column": "num", "dates": ()}
    data = table(tmp_path, "30,0,A\n40,2,B\n,1,A\n", **layout)
    samples = read_inputs(tmp_path / "t.csv", metadata_of(data))
    assert (samples.x.tolist(), samples.note) == (data.x.tolist(), "")
    samples = read_inputs(write(tmp_path / "u.data", "30,A\n?,B\n"), metadata_of(data))
    assert samples.x.tolist() == [[30, 0, 1, 0], [35, 1, 0, 1]]
    assert "columns are taken in the order of the training (age, ward)" in samples.note


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("age,ward,visit\n1,A,2000-01-01\n", ("missing smoker; the model takes age, ward, visit, "
                                             "smoker")),
        ("age,ward,visit,smoker\nhigh,A,2000-01-01,0\n", ("column age: 1 of 1 are not finite "
                                                         "numbers, first 'high' in line 2")),
        ("age,ward,visit,smoker\n1,A,May,0\n", ("column visit: 1 of 1 are not dates such as "
                                               "2024-03-01, first 'May'")),
    ],
)  # fmt: skip
def test_a_table_that_does_not_fit_the_model(tmp_path, text, message):
    metadata = metadata_of(table(tmp_path))
    with pytest.raises(DataError) as fault:
        read_inputs(write(tmp_path / "u.csv", text), metadata)
    assert message in str(fault.value)


def test_gaps_are_refused_where_the_training_had_none(tmp_path):
    data = table(tmp_path, "age,died\n1,0\n2,1\n", missing="refuse", categories=(), dates=())
    with pytest.raises(DataError, match="column age: 1 of 2 cells are gaps, first '' in line 3"):
        read_inputs(write(tmp_path / "u.csv", "age,died\n1,0\n,1\n"), metadata_of(data))


SITES = """age,ward,site,died
10,A,x,0
20,A,x,1
,B,x,0
100,C,y,1
300,C,y,0
,,y,1
"""


def test_each_client_may_have_medians_and_moments_of_its_own(tmp_path):
    settings = {"dates": (), "client_column": "site", "fit": "client", "category_share": 0.0}
    data = table(tmp_path, SITES, **settings)
    pooled = table(tmp_path, SITES, **settings | {"fit": "pooled"})
    north, south = data.preprocessing
    assert (
        data.columns
        == pooled.columns
        == ("age", "age missing", "ward=A", "ward=B", "ward=C", "ward missing")
    )
    assert (
        north.columns[0].fill,
        south.columns[0].fill,
        pooled.preprocessing[0].columns[0].fill,
    ) == (15, 200, 60)
    assert (north.columns[1].fill, south.columns[1].fill) == ("A", "C")
    assert (data.shift, data.scale) == ((0.0,), (1.0,))
    for rows in (slice(0, 3), slice(3, 6)):
        np.testing.assert_allclose(data.x[rows].mean(axis=0), 0, atol=1e-6)
        varies = data.x[rows].std(axis=0) > 0
        np.testing.assert_allclose(data.x[rows].std(axis=0)[varies], 1, atol=1e-6)
    for k, rows in enumerate((slice(0, 3), slice(3, 6))):
        assert (
            read_inputs(tmp_path / "t.csv", metadata_of(data, k)).x[rows].tobytes()
            == data.x[rows].tobytes()
        )
    # a client without training rows has the others' medians
    first_site = table(tmp_path, SITES, rows=[0, 1, 2], **settings)
    assert first_site.preprocessing[1].columns[0].fill == 15


@pytest.mark.parametrize(
    "bad",
    [
        {"columns": []},
        {"columns": [{"name": "a"}, {"name": "a"}]},
        {"columns": [{"name": ""}]},
        {"columns": [{"name": "a", "fill": "x"}]},
        {"columns": [{"name": "a", "kind": "category", "fill": 1.0}]},
        {"columns": [{"name": "a", "values": ["x"]}]},
        {"columns": [{"name": "a", "kind": "category", "values": ["x", "x"]}]},
        {"columns": [{"name": "a", "flagged": True}]},
        {"columns": [{"name": "a"}], "shift": [1.0]},
        {"columns": [{"name": "a"}], "shift": [1.0], "scale": [0.0]},
        {"columns": [{"name": "a", "fill": 1e400}]},
        {"columns": [{"name": "a", "kind": "text"}]},
    ],
)
def test_records_that_contradict_themselves_are_refused(bad):
    with pytest.raises(ValueError, match="validation error"):
        Preprocessing.model_validate(bad)


class TestParquet:
    """Parquet, read as the same text as CSV."""

    def frame(self):
        pandas = pytest.importorskip("pandas")
        pytest.importorskip("pyarrow")
        return pandas.DataFrame(
            {
                "age": [30.5, None, 50.0, 70.1],
                "count": [1, 2, 3, 4],
                "ward": pandas.Categorical(["A", "B", "A", None]),
                "visit": pandas.to_datetime(
                    ["2000-01-02", "2000-01-03 06:00", None, "2000-01-11"], format="ISO8601"
                ),
                "smoker": [True, False, True, False],
                "dose": np.array([0.1, 0.2, 0.3, np.nan], np.float32),
                "died": ["no", "yes", "no", "yes"],
            }
        )

    def test_it_gives_the_data_of_its_csv(self, tmp_path):
        frame = self.frame()
        frame.to_parquet(tmp_path / "t.parquet")
        frame.to_csv(tmp_path / "t.csv", index=False)
        datasets = [
            read(data_settings(path=tmp_path / f"t.{name}", **KEYS)) for name in ("csv", "parquet")
        ]
        assert datasets[0].fingerprint == datasets[1].fingerprint
        of_csv, of_parquet = (data.learn(data, np.arange(4)) for data in datasets)
        assert of_csv.preprocessing == of_parquet.preprocessing
        assert (of_csv.columns, of_csv.others, of_csv.shift, of_csv.classes) == (
            of_parquet.columns, of_parquet.others, of_parquet.shift, of_parquet.classes,
        )  # fmt: skip
        answers = [
            read_inputs(tmp_path / f"t.{name}", metadata_of(of_csv)).x.tobytes()
            for name in ("csv", "parquet")
        ]
        assert answers == [of_csv.x.tobytes()] * 2

    def test_a_folder_has_training_and_test_rows(self, tmp_path):
        frame = self.frame()
        frame[:3].to_parquet(tmp_path / "train.parquet")
        frame[3:].to_parquet(tmp_path / "test.parquet")
        data = read(data_settings(name="table", path=tmp_path, **KEYS))
        assert (len(data), data.n_train) == (4, 3)
        frame.to_parquet(tmp_path / "train.pq")
        with pytest.raises(DataError, match=r"has train.parquet, train.pq; keep one"):
            read(data_settings(name="table", path=tmp_path, **KEYS))

    @pytest.mark.parametrize("harm", ["cut", "zeros", "text", "columns", "nested", "none"])
    def test_bad_files_are_one_line(self, tmp_path, harm):
        frame, path = self.frame(), tmp_path / "t.parquet"
        if harm == "nested":
            frame["age"] = [[1], [2], [3], [4]]
        if harm == "columns":
            frame = frame.drop(columns=["ward"])
        frame[: 0 if harm == "none" else 4].to_parquet(path)
        raw = path.read_bytes()
        if harm == "cut":
            path.write_bytes(raw[: len(raw) // 2])
        elif harm == "zeros":
            path.write_bytes(raw[:4] + bytes(300) + raw[304:])
        elif harm == "text":
            path.write_text("age,died\n1,0\n")
        with pytest.raises((DataError, ConfigError)) as fault:
            read(data_settings(name="table", path=path, **KEYS))
        message = str(fault.value)
        assert str(path) in message
        assert "\n" not in message
        messages = {
            "columns": "no column 'ward'",
            "nested": "holds lists or structures; leave it out",
            "none": "has no rows; add some",
        }
        assert messages.get(harm, "Parquet") in message


def test_every_way_of_asking_leaves_out_the_same_columns(tmp_path):
    for dates, drop in product((("visit",), (2,)), (("age",), (0,))):
        data = table(tmp_path, dates=dates, drop_columns=drop, header=True)
        assert data.preprocessing[0].names == ("ward", "visit", "smoker")
