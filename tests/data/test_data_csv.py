import gzip
import re

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.preprocessing import StandardScaler

from pomona.core.errors import ConfigError, DataError
from pomona.core.rng import stream
from pomona.data import data_settings, from_frame, read
from pomona.data.table_settings import CsvForm
from pomona.data.tables import source
from pomona.data.tables.tabular import moments
from pomona.data.text import first_share, tokens

TABLE = "age,site,sick,weight\n20,b,no,1.5\n30,a,yes,2.5\n\n40,b,no,-3e2\n"


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def table(path, text, **settings):
    return read(data_settings(name="table", path=write(path, text), **settings))


def test_columns_by_name(tmp_path):
    data = table(tmp_path / "a.csv", TABLE, label_column="sick", client_column="site")
    assert data.x.tolist() == [[20, 1.5], [30, 2.5], [40, -300]]
    assert (data.y.tolist(), data.classes, data.kind, data.n_train) == (
        [0, 1, 0],
        ("no", "yes"),
        "table",
        3,
    )
    assert data.owners is not None
    assert (data.owners.names, data.owners.client.tolist(), data.owners.role.tolist()) == (
        ("a", "b"),
        [1, 0, 1],
        [0, 0, 0],
    )


def test_names_of_columns_are_kept_where_the_file_has_them(tmp_path):
    data = table(tmp_path / "a.csv", TABLE, label_column="sick", client_column="site")
    assert (data.columns, data.others, data.labels) == (("age", "weight"), ("site", "sick"), ())
    data = table(tmp_path / "a.csv", "a,b\n1,2.5\n3,4\n", label_column="b", targets="regression")
    assert (data.columns, data.others, data.labels) == (("a",), ("b",), ("b",))
    data = table(tmp_path / "b.csv", "1,2,10\n3,4,9\n", label_column=-1)
    assert (data.columns, data.others, data.labels) == ((), (), ())
    texts = {"text_columns": ("body", "title"), "label_column": "mood", "sequence_length": 3}
    path = write(tmp_path / "t.csv", "id,title,body,mood\n1,a,b,up\n2,c,d,down\n")
    data = read(data_settings(name="text", path=path, **texts))
    assert (data.columns, data.others) == (("body", "title"), ("id", "mood"))


GROUPED = "age,sex,sick\n20,f,no\n30,,yes\n40,m,no\n50,f,yes\n"


def test_a_column_tells_results_apart(tmp_path):
    roles = {"label_column": "sick", "subgroup_column": "sex", "drop_columns": ["sex"]}
    data = table(tmp_path / "a.csv", GROUPED, **roles)
    assert data.columns == ("age",)
    column, names, number = data.subgroups
    assert (column, names, number.tolist()) == ("sex", ("(missing)", "f", "m"), [1, 0, 2, 1])
    as_number = table(tmp_path / "b.csv", "20,1,no\n30,2,yes\n", label_column=2, subgroup_column=1)
    assert as_number.x.shape == (2, 2)  # a feature, too
    assert as_number.subgroups.names == ("1", "2")
    texts = {"text_columns": ("age",), "label_column": "sick", "subgroup_column": "sex"}
    assert (
        read(data_settings(name="text", path=tmp_path / "a.csv", **texts)).subgroups.names == names
    )
    assert table(tmp_path / "c.csv", "a,b\n1,2\n", label_column="b").subgroups is None


def test_an_identifier_is_no_column_of_subgroups(tmp_path):
    rows = "".join(f"{i},a{i},{i % 2}\n" for i in range(51))
    with pytest.raises(
        ConfigError, match=r"subgroup_column: column who of .* has 51 values; .* at most 50"
    ):
        table(
            tmp_path / "a.csv",
            f"x,who,y\n{rows}",
            label_column="y",
            subgroup_column="who",
            drop_columns=["who"],
        )


@pytest.mark.parametrize("label", [-1, 2, "2", "-1"])
def test_columns_by_number(tmp_path, label):
    data = table(tmp_path / "a.csv", "1,2,10\n3,4,9\n", label_column=label)
    assert (data.x.tolist(), data.y.tolist(), data.classes) == (
        [[1, 2], [3, 4]],
        [1, 0],
        ("9", "10"),
    )
    with_header = table(
        tmp_path / "b.csv", "a,b,c\n1,2,10\n3,4,9\n", label_column=label, header=True
    )
    assert with_header.fingerprint == data.fingerprint


@pytest.mark.parametrize("key", [1, "1"])
def test_a_number_that_is_a_name_is_that_column(tmp_path, key):
    data = table(
        tmp_path / "a.csv", "1,2,007,y\n5,6,7,a\n8,9,7,b\n", label_column="y", drop_columns=(key,)
    )
    assert (data.columns, data.x.tolist()) == (("2", "007"), [[6, 7], [9, 7]])
    assert data.notes == ("1 is the column named '1', which has number 0",)
    by_name = table(
        tmp_path / "a.csv", "1,2,007,y\n5,6,7,a\n", label_column="y", drop_columns=("007",)
    )
    assert by_name.columns == ("1", "2")
    framed = read(from_frame(pd.DataFrame({1: [5, 8], 2: [6, 9], 3: [0, 1]}), label_column=3, drop_columns=(key,)))  # fmt: skip
    assert (framed.columns, framed.x.tolist()) == (("2",), [[6], [9]])


def test_a_first_line_that_is_read_as_a_row_is_told(tmp_path):
    header, rows = "a,b,y\n", "1,2,0\n3,4,1\n"
    message = "line 1 is a row, since no column is given by name; .* data.header=true"
    with pytest.raises(DataError, match=message):
        table(tmp_path / "a.csv", header + rows, label_column=2)
    assert any(
        re.match(message, note) for note in table(tmp_path / "a.csv", rows, label_column=2).notes
    )
    for settings in (
        {"label_column": 2, "header": False},
        {"label_column": "y", "columns": list("aby")},
    ):
        assert not table(tmp_path / "a.csv", rows, **settings).notes
    assert not table(tmp_path / "a.csv", header + rows, label_column="y").notes


def test_train_and_test_files(tmp_path):
    write(tmp_path / "test.csv", "x,c,y\n100,k,1\n")
    write(tmp_path / "train.csv", "x,c,y\n1,k,0\n3,j,1\n")
    data = read(data_settings(name="table", path=tmp_path, label_column="y", client_column="c"))
    assert (data.n_train, data.x.tolist(), data.shift, data.scale) == (
        2,
        [[1], [3], [100]],
        (2.0,),
        (1.0,),
    )
    assert data.owners is not None
    assert (data.owners.client.tolist(), data.owners.role.tolist()) == ([1, 0, 1], [0, 0, 2])


def test_regression_and_named_classes(tmp_path):
    data = table(tmp_path / "a.csv", "1,2.5\n3,-1\n", label_column=1, targets="regression")
    assert (data.y.tolist(), data.y.dtype, data.classes) == ([[2.5], [-1]], np.float32, ())
    data = table(tmp_path / "a.csv", "1,b\n3,a\n", label_column=1, classes=("b", "c", "a"))
    assert (data.y.tolist(), data.classes) == ([0, 2], ("b", "c", "a"))


def test_quotes_and_byte_order_mark(tmp_path):
    data = table(
        tmp_path / "a.csv", '\ufeffx,"the ""y"""\n"1","line\none"\n2,b\n', label_column='the "y"'
    )
    assert (data.x.tolist(), data.classes) == ([[1], [2]], ("b", "line\none"))


BAD = {
    "short row": ("1,2,0\n3,0\n", {}, "line 2: 2 cells, not 3"),
    "long row": ("1,2,0\n\n3,4,5,0\n", {}, "line 3: 4 cells, not 3"),
    "no number": ("1,2,0\n3,x,0\n", {}, "column 1: 1 of 2 are not finite numbers, first 'x' in line 2"),
    "underscores": ("1,2,0\n3,1_2,0\n", {}, "first '1_2' in line 2"),
    "empty cell": ("1,,0\n", {}, "column 1: 1 of 1 cells are gaps, first '' in line 1"),
    "nan": ("1,nan,0\n", {}, "column 1: 1 of 1 cells are gaps, first 'nan' in line 1"),
    "infinite": ("1,-inf,0\n", {}, "column 1: 1 of 1 are not finite numbers, first '-inf' in line 1"),
    "too large": ("1,1e39,0\n", {}, "not finite numbers, first '1e39'"),
    "no label": ("1,2,\n", {}, "label column 2: 1 of 1 are empty, first in line 1; every row needs a label"),
    "unknown class": (
        "1,2,no\n1,2,yas\n",
        {"classes": ("no", "yes")},
        "label column 2: 1 of 2 are 'yas', first in line 2; an unknown class, did you mean yes?",
    ),
    "target no number": (
        "1,2,1\n1,2,a\n",
        {"targets": "regression"},
        "label column 2: 1 of 2 are not finite numbers, first 'a'",
    ),
    "empty file": ("", {}, "is empty"),
    "header only": ("a,b,c\n", {"header": True}, "bad.csv names its columns but has no rows; add some"),
    "a long cell": (
        f"{'1' * 131_073},2,3\n",  # one character more than csv.field_size_limit()
        {},
        "a cell of more than 131072 characters; shorten it",
    ),
    "header repeated": (
        "a,b,a\n1,2,3\n",
        {"label_column": "a", "exact": ConfigError},
        ".csv has several columns named 'a'; give the number of one",
    ),
    "named column in a cell": (
        "a,b,c\n1,2,z\n",
        {"label_column": "c", "header": False, "exact": ConfigError},
        "no column 'c'",
    ),
    "only a label": ("1\n2\n", {"label_column": 0}, "no features next to labels"),
    "open quote": ('1,2,"0\n', {}, "not CSV ("),
    "no such column": (
        "a,b,c\n1,2,3\n",
        {"label_column": "sick", "exact": ConfigError},
        "no column 'sick'; known: a, b, c",
    ),
    "no such number": ("1,2,3\n", {"label_column": 3, "exact": ConfigError}, "columns are 0 to 2"),
    "no label column": ("1,2,3\n", {"label_column": None, "exact": ConfigError}, "set data.label_column"),
    "no flag": (
        "1,2,3\n",
        {"targets": "multilabel"},
        "label column 2: 1 of 1 are not flags 0 or 1, first '3' in line 1",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_tables(tmp_path, case):
    text, settings, message = BAD[case]
    settings = {"label_column": 2} | settings
    error = settings.pop("exact", DataError)
    with pytest.raises(error) as caught:
        table(tmp_path / "bad.csv", text, **settings)
    assert message in str(caught.value)
    assert "bad.csv" in str(caught.value)


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("mark", [",", ";"])
def test_utf_16_with_its_mark_is_read_as_utf_8_is(tmp_path, encoding, mark):
    text = "größe,site,sick\n20,Zürich,no\n30,東京,yes\n".replace(",", mark)
    (tmp_path / "wide.csv").write_bytes(("\ufeff" + text).encode(encoding))
    settings = {"label_column": "sick", "client_column": "site"}
    wide = read(data_settings(name="table", path=tmp_path / "wide.csv", **settings))
    plain = table(tmp_path / "a.csv", text, **settings)
    assert wide.x.tolist() == plain.x.tolist() == [[20], [30]]
    assert (wide.columns, wide.classes) == (("größe",), ("no", "yes"))
    (opened,) = source.opened([tmp_path / "wide.csv"], CsvForm(), True)
    assert opened.names == ("größe", "site", "sick")
    assert [opened.cells(i)[1].as_py() for i in range(3)] == ["30", "東京", "yes"]
    for content in (text.encode(encoding), text.encode("utf-32")):
        (tmp_path / "wide.csv").write_bytes(content)
        assert source.opened([tmp_path / "wide.csv"], CsvForm(), True)[0].names == opened.names
    (tmp_path / "wide.csv").write_bytes(text.encode(encoding))
    utf_16 = CsvForm(encoding="utf-16")
    assert source.opened([tmp_path / "wide.csv"], utf_16, True)[0].names == opened.names
    (tmp_path / "wide.csv").write_bytes(("\ufeff" + text).encode(encoding)[:-1])
    with pytest.raises(DataError, match=r"wide.csv, after line 2: bytes that are not UTF-16 "):
        source.opened([tmp_path / "wide.csv"], CsvForm(), True)


def test_bad_files(tmp_path):
    (tmp_path / "latin.csv").write_bytes("1,2,é\n".encode("latin-1"))
    with pytest.raises(DataError, match="UTF-8"):
        read(data_settings(name="table", path=tmp_path / "latin.csv", label_column=2))
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"1,2,3\n")[:-9])
    with pytest.raises(DataError, match=r"a.csv.gz .*ended before"):
        read(data_settings(name="table", path=tmp_path / "a.csv.gz", label_column=2))
    (tmp_path / "latin.csv").unlink()
    (tmp_path / "a.csv.gz").unlink()
    with pytest.raises(DataError, match=r"no train.csv"):
        read(data_settings(name="table", path=tmp_path, label_column=2))
    write(tmp_path / "train.csv", "a,b\n1,2\n")
    write(tmp_path / "test.csv", "a,c\n1,2\n")
    with pytest.raises(
        DataError, match=r"only .*test.csv has c; only .*train.csv has b\); give both the same"
    ):
        read(data_settings(name="table", path=tmp_path, label_column="a"))
    write(tmp_path / "train.csv", "a;b\n1|2\n")
    with pytest.raises(ConfigError, match=r"no column 'a'; known: a;b; .*set data.separator$"):
        read(data_settings(name="table", path=tmp_path / "train.csv", label_column="a"))


@pytest.mark.parametrize("n", [1, 2, 70_000])
def test_moments_against_scikit_learn(n):
    x = (stream(1, "table").normal(size=(n, 3)) * [1, 1e-3, 100] + [0, 5, 1e4]).astype(np.float32)
    x[:, 0] = np.float32(0.1)  # constant, and no power of two
    scaler = StandardScaler().fit(x.astype(np.float64))
    shift, scale = moments(x, np.arange(n))
    np.testing.assert_allclose(shift, scaler.mean_, rtol=1e-10)
    np.testing.assert_allclose(scale, scaler.scale_, rtol=1e-6)
    assert scale[0] == 1


def text(path, content, **settings):
    return read(data_settings(name="text", path=write(path, content), **settings))


def test_words():
    words = ["don", "t", "panic", "42", "caf\u00e9s", "snake_case"]
    assert tokens("Don't PANIC: 42 caf\u00e9s, snake_case") == words
    assert tokens("Don't PANIC: 42 cafe\u0301s, snake_case") == words  # as macOS writes accents
    hindi = "\u092c\u0941\u0916\u093e\u0930"  # fever; its vowels are marks
    chakma = "\U00011107\U00011127\U00011101"
    assert tokens(f"{hindi}, {chakma} \u2764\ufe0f") == [hindi, chakma]
    joined = "\u0645\u06cc\u200c\u0631\u0648\u0645"  # Persian: a joiner within a word counts
    bengali = "\u09b0\u200d\u09cd\u09af"  # here before a mark
    assert tokens(f"{joined}\u200c {bengali} 1\ufe0f\u20e3") == [joined, bengali, "1"]


def test_texts(tmp_path):
    content = "y,title,body\n1,The cat,sat\n0,the dog,\n"
    settings = {"label_column": "y", "text_columns": ("title", "body"), "sequence_length": 2}
    data = text(tmp_path / "a.csv", content, **settings)
    # as read, all words by the alphabet: cat, dog, sat, the
    assert (data.x.tolist(), data.vocabulary, data.kind, data.x.dtype) == (
        [[5, 2], [5, 3]],
        6,
        "text",
        np.int32,
    )
    assert data.y.tolist() == [1, 0]
    padded = learnt(text(tmp_path / "a.csv", content, **settings | {"sequence_length": 4}), [0, 1])
    # by frequency: the 2 times; cat, dog, sat once each, in this order
    assert (padded.x.tolist(), padded.words) == (
        [[2, 3, 5, 0], [2, 4, 0, 0]],
        ("the", "cat", "dog", "sat"),
    )
    small = learnt(text(tmp_path / "a.csv", content, **settings | {"vocabulary_size": 3}), [0, 1])
    assert (small.x.tolist(), small.vocabulary) == ([[2, 1], [2, 1]], 3)


def learnt(data, rows):
    return data.learn(data, np.array(rows))


def test_the_vocabulary_knows_training_rows_only(tmp_path):
    write(tmp_path / "train.csv", "0,seen\n1,seen words\n")
    write(tmp_path / "test.csv", "0,unseen unseen seen\n")
    unlearnt = read(
        data_settings(
            name="text", path=tmp_path, label_column=0, text_columns=(1,), sequence_length=3
        )
    )
    data = learnt(unlearnt, [0, 1])
    assert (data.x.tolist(), data.n_train, data.vocabulary) == (
        [[2, 0, 0], [2, 3, 0], [1, 1, 2]],
        2,
        4,
    )
    assert data.words == ("seen", "words")
    assert learnt(unlearnt, []).x.tolist() == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
    assert unlearnt.words == ("seen", "unseen", "words")  # another partition learns from it again


def test_texts_need_columns(tmp_path):
    with pytest.raises(ConfigError, match=r"data.text_columns"):
        text(tmp_path / "a.csv", "1,a\n", label_column=0)
    with pytest.raises(ConfigError, match=r"data.text_columns: .* no column 5"):
        text(tmp_path / "a.csv", "1,a\n", label_column=0, text_columns=(5,))


def news(labels):
    return "".join(f'"{label}","Title {i}","Body, of {i}"\n' for i, label in enumerate(labels))


def test_ag_news(tmp_path):
    write(tmp_path / "ag_news" / "train.csv", news([1, 2, 3, 4, 4]))
    write(tmp_path / "ag_news" / "test.csv", news([4, 1]))
    data = read(data_settings(name="ag-news", dir=tmp_path))
    assert (data.name, data.n_train, data.y.tolist()) == ("ag-news", 5, [0, 1, 2, 3, 3, 3, 0])
    assert data.classes == ("World", "Sports", "Business", "Sci/Tech")
    assert data.x.shape == (7, 200)


def test_ag_news_without_its_training_file(tmp_path):
    path = write(tmp_path / "ag_news" / "test.csv", news([1, 2] * 5))
    data = read(data_settings(name="ag-news", dir=tmp_path))
    assert (data.name, data.n_train) == ("ag-news (test file only)", 8)
    assert data.y.tolist() == [0, 1] * 4 + [0, 1]
    data = learnt(data, np.arange(8))
    assert (data.x[8:] == 1).any(axis=1).all()  # the numbers of held-out rows are unknown words
    write(path, news([1, 5]))
    with pytest.raises(DataError, match=r"test.csv: .* are .5., first in line 2; an unknown class"):
        read(data_settings(name="ag-news", dir=tmp_path))


@given(st.lists(st.integers(0, 3), max_size=30), st.floats(0, 1))
def test_first_share(labels, share):
    y = np.array(labels, int)
    order, n_front = first_share(y, share)
    assert sorted(order) == list(range(len(y)))
    front, back = order[:n_front], order[n_front:]
    assert (np.diff(front) > 0).all()
    assert (np.diff(back) > 0).all()
    for label in range(4):
        rows = [i for i, value in enumerate(labels) if value == label]
        assert [i for i in front if labels[i] == label] == rows[: int(share * len(rows))]
