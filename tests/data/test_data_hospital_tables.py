"""Tables as hospitals export them: rows without a label, other column orders, other forms of
names.
"""

import numpy as np
import pytest
from PIL import Image
from test_data_forms import table

import pomona
from pomona.config import resolve
from pomona.core.errors import ConfigError, DataError
from pomona.data import data_settings, read
from pomona.data.tables import tabular
from pomona.personal import PersonalModel, inputs

COMPOSED, DECOMPOSED = "K\u00f6ln", "Ko\u0308ln"


@pytest.mark.parametrize(
    ("labels", "settings", "expected"),
    [
        (("0", "", "1", "NA"), {}, [0, 1]),
        (("0", ".", "1", "."), {}, [0, 1]),  # as SAS and Stata print a gap
        (("0", "-9", "1", "?"), {"missing_values": {"*": (-9,)}}, [0, 1]),
        (("NA", "", "x", "n/a"), {"classes": ("x", "NA")}, [1, 0]),  # NA is a class by its name
        (("2.5", "", "-1", "."), {"targets": "regression"}, [[2.5], [-1.0]]),
        (("2.5", "", "-1", "nan"), {"label_above": 0}, [1, 0]),
        (("0", "-9", "1", "-9.0"), {"missing_values": {"*": (-9,)}}, [0, 1]),
        (
            ("2.5", "9", "-1", "9"),
            {"missing_values": {"*": (9,)}, "targets": "regression"},
            [[2.5], [-1.0]],
        ),
    ],
)
def test_rows_without_a_label_are_left_out_and_counted_where_asked(
    tmp_path, labels, settings, expected
):
    text = "age,died\n" + "".join(f"{age},{label}\n" for age, label in enumerate(labels))
    with pytest.raises(DataError, match=r"data\.unlabelled=drop"):
        table(tmp_path / "a.csv", text, **settings)
    data = table(tmp_path / "a.csv", text, unlabelled="drop", **settings)
    assert data.y.tolist() == expected
    stays = [age for age, label in enumerate(labels) if label in {"0", "1", "2.5", "-1", "x"}]
    stays = [0, 2] if "classes" in settings else stays
    assert data.x[:, 0].tolist() == stays
    assert "2 of 4 rows have no label and are left out" in data.notes


def test_a_table_without_any_label_is_refused_and_lines_are_named_as_they_are(tmp_path):
    with pytest.raises(DataError, match="none of 2 rows has a label"):
        table(tmp_path / "a.csv", "age,died\n1,\n2,NA\n", unlabelled="drop")
    with pytest.raises(DataError, match=r"first 'x' in line 4"):
        table(tmp_path / "a.csv", "age,died\n1,0\n2,\nx,1\n", unlabelled="drop")


def test_columns_of_clients_files_are_matched_by_name(tmp_path):
    (tmp_path / "a.csv").write_text("age,crp,ward,died\n20,1.5,icu,0\n30,2.5,er,1\n")
    (tmp_path / "b.csv").write_text("died,ward,crp,age\n1,er,3.5,40\n,icu,4.5,50\n")
    sites = [{"name": name, "train": tmp_path / f"{name}.csv"} for name in "ab"]
    settings = {
        "label_column": "died",
        "categories": ("ward",),
        "category_share": 0,
        "unlabelled": "drop",
    }
    data = read(data_settings(clients=sites, **settings))
    assert data.columns == ("age", "crp", "ward=er", "ward=icu")
    assert data.x.tolist() == [[20, 1.5, 0, 1], [30, 2.5, 1, 0], [40, 3.5, 1, 0]]
    assert (data.y.tolist(), data.owners.client.tolist()) == ([0, 1, 1], [0, 0, 1])
    (tmp_path / "b.csv").write_text("died,ward,crp,age\n1,er,?,40\n")
    with pytest.raises(
        DataError, match=r"b\.csv: column crp: 1 of 1 cells are gaps, first '\?' in line 2"
    ):
        read(data_settings(clients=sites, **settings))


@pytest.mark.parametrize(
    ("b", "facts"),
    [
        ("age,died\nx,0\n3,1\n", ["b.csv: column age: 1 of 2", "'x' in line 2"]),
        ("age,died\n2,0\n3,\n", ["b.csv: label column died", "line 3"]),
        ("age,died\nx,0\n3,\n", ["b.csv has 2 problems", "first 'x' in line 2", "line 3"]),
    ],
)
def test_an_error_of_one_file_of_several_starts_with_its_name(tmp_path, b, facts):
    (tmp_path / "a.csv").write_text("age,died\n20,0\n30,1\n")
    (tmp_path / "b.csv").write_text(b)
    sites = [{"name": name, "train": tmp_path / f"{name}.csv"} for name in "ab"]
    with pytest.raises(DataError) as caught:
        read(data_settings(clients=sites, label_column="died"))
    message = str(caught.value)
    assert message.startswith(f"{tmp_path}/b.csv")
    assert [fact for fact in facts if fact not in message] == []
    assert "a.csv" not in message


def test_an_error_of_two_files_names_each(tmp_path):
    for name in "ab":
        (tmp_path / f"{name}.csv").write_text("age,died\n20,0\nx,1\n")
    sites = [{"name": name, "train": tmp_path / f"{name}.csv"} for name in "ab"]
    with pytest.raises(DataError, match=r"column age: 2 of 4 .* 'x' in line 3 of .*a\.csv"):
        read(data_settings(clients=sites, label_column="died"))


@pytest.mark.parametrize(
    ("cells", "count"),
    [
        (["01.03.2024", "17.03.2024"], "2 of 2"),
        (["3/1/24", "3/17/24"], "2 of 2"),
        (["2024-03-01", "17.03.2024"], "1 of 2"),
        (["2024-03-01", ""], "1 of 2"),
        (["5", "in May"], "1 of 2"),
    ],
)
def test_times_in_another_form_are_refused_with_the_form_to_write(tmp_path, cells, count):
    text = "day,age,died\n" + "".join(f"{cell},{k},{k}\n" for k, cell in enumerate(cells))
    with pytest.raises(DataError, match=rf"time column day: {count}.*2024-03-01 \(year, month"):
        table(tmp_path / "a.csv", text, time_column="day")


def test_names_of_clients_and_of_folders_of_classes_are_in_one_form(tmp_path):
    (tmp_path / "a.csv").write_text("age,died\n20,0\n30,1\n")
    site = {"name": DECOMPOSED, "train": tmp_path / "a.csv"}
    assert read(data_settings(clients=[site], label_column="died")).owners.names == (COMPOSED,)
    second = {"name": COMPOSED, "train": tmp_path / "b.csv"}
    (tmp_path / "b.csv").write_text("age,died\n20,0\n30,1\n")
    with pytest.raises(DataError, match="without a name of their own"):
        read(data_settings(clients=[site, second], label_column="died"))
    for split, names in (("train", ("bonn", COMPOSED)), ("test", ("bonn", DECOMPOSED))):
        for level, name in enumerate(names):
            folder = tmp_path / "scans" / split / name
            folder.mkdir(parents=True)
            Image.fromarray(np.full((4, 4), level, np.uint8)).save(folder / "0.png")
    for order, classes in (((), (COMPOSED, "bonn")), (("bonn", DECOMPOSED), ("bonn", DECOMPOSED))):
        data = read(data_settings(name="images", path=tmp_path / "scans", classes=order))
        assert sorted(data.classes) == sorted(classes)
        cologne = next(k for k, name in enumerate(data.classes) if name != "bonn")
        assert data.x[data.y == cologne].mean(axis=(1, 2, 3)).tolist() == [1, 1]
        assert data.x[data.y != cologne].mean(axis=(1, 2, 3)).tolist() == [0, 0]


def test_a_decimal_point_that_is_set_leaves_no_comma_in_a_number(tmp_path):
    text = "leucocytes;died\n1,343;0\n2,5;1\n"
    # and a note
    assert table(tmp_path / "a.csv", text).x.tolist() == np.float32([[1.343], [2.5]]).tolist()
    with pytest.raises(
        DataError, match=r"first '2,5' in line 3: decimal commas\?.*if they separate thousands"
    ):
        table(tmp_path / "a.csv", text, decimal=".")
    integers = table(tmp_path / "a.csv", text.replace("2,5", "2"), decimal=".")
    assert integers.x.tolist() == [[1343], [2]]


def test_every_text_encoding_that_python_knows_is_read(tmp_path):
    (tmp_path / "a.csv").write_bytes("Größe €,died\n1,y\n2,n\n".encode("iso8859-15"))
    section = {"name": "table", "path": tmp_path / "a.csv", "label_column": "died"}
    data = read(data_settings(**section, encoding="latin9"))
    assert data.columns == ("Größe €",)
    for name in ("hex", "cp12522"):
        with pytest.raises(ConfigError, match=f"'{name}' is not a text encoding"):
            data_settings(**section, encoding=name)


def test_bytes_of_another_encoding_name_the_setting(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes("crp,died\n1,ä\n".encode("cp1252"))
    with pytest.raises(DataError, match=r"bytes that are not UTF-8 .*data\.encoding.*cp1252"):
        read(data_settings(name="table", path=path, label_column="died"))
    path.write_bytes(b"crp,died\n1,\x81\n")  # not defined in cp1252
    with pytest.raises(DataError, match=r"not CP1252 .*data\.encoding"):
        read(data_settings(name="table", path=path, label_column="died", encoding="cp1252"))


def test_a_manifest_is_written_as_other_tables_are(tmp_path):
    Image.fromarray(np.full((4, 4), 7, np.uint8)).save(tmp_path / "ä.png")
    path = tmp_path / "m.csv"
    path.write_bytes("path|label\nä.png|ill\n".encode("cp1252"))
    data = read(data_settings(name="images", path=path, separator="|", encoding="cp1252"))
    assert (data.x.max(), data.classes) == (7, ("ill",))


BOUNDS = "age,crp,died\n40,<5,0\n50,12.5,1\n60,>= 100,0\n70,\u22640.5,1\n"


def test_bounds_are_refused_with_their_remedy_and_read_as_the_number_behind_the_sign(tmp_path):
    with pytest.raises(
        DataError,
        match=r"column crp: 3 of 4 .*first '<5' in line 2: bounds\?(.|\n)*data\.censored=limit",
    ):
        table(tmp_path / "a.csv", BOUNDS)
    data = table(tmp_path / "a.csv", BOUNDS, censored="limit")
    assert data.x[:, 1].tolist() == [5.0, 12.5, 100.0, 0.5]
    assert "bounds such as <5, read as the number behind the sign: crp (3)" in data.notes
    comma = BOUNDS.replace(",", ";").replace("0.5", "0,5").replace("12.5", "12,5")
    assert table(tmp_path / "b.csv", comma, censored="limit").x.tolist() == data.x.tolist()


@pytest.mark.parametrize("cell", ["<", "5<", "<>5", "<five", "<5>", "<1e39", "< ", "--5"])
def test_what_is_no_bound_is_refused_with_bounds_too(tmp_path, cell):
    with pytest.raises(DataError, match="column crp: 1 of 4"):
        table(tmp_path / "a.csv", BOUNDS.replace("12.5", cell), censored="limit")


def test_a_table_without_bounds_is_the_same_whatever_is_said_of_them(tmp_path):
    text = "age,crp,died\n40,5,0\n50,12.5,1\n"
    a, b = table(tmp_path / "a.csv", text), table(tmp_path / "a.csv", text, censored="limit")
    assert np.array_equal(a.x, b.x)
    rows = np.arange(2)
    learnt = [d.learn(d, rows) for d in (a, b) if d.learn] or pytest.fail("nothing is learnt")
    assert learnt[-1].preprocessing[0].columns[1].censored
    assert not [note for note in learnt[-1].notes if "bounds" in note]


@pytest.mark.long
def test_predict_and_silos_read_bounds_as_training_did(tmp_path):
    lines = [f"{40 + k},{'<5' if k % 3 == 0 else k},{k % 2}" for k in range(60)]
    text = "\n".join(["age,crp,died", *lines, ""])
    plain = data_settings(name="table", path=tmp_path / "a.csv", label_column="died")
    data = table(tmp_path / "a.csv", text, censored="limit")
    (tmp_path / "numbers.csv").write_text(text.replace("<5", "5"))
    config = resolve(
        {"method": "separate", "rounds": 1, "clients": 2, "lr": 0.1},
        {
            "data": {
                "name": "table",
                "path": str(plain.path),
                "label_column": "died",
                "censored": "limit",
            }
        },
    )
    pomona.run(config, tmp_path / "run")
    metadata = PersonalModel.load(tmp_path / "run" / "models" / "client-00.safetensors").about
    a, b = (inputs.read(tmp_path / name, metadata).x for name in ("a.csv", "numbers.csv"))
    assert np.array_equal(a, b)
    recipe = metadata.preprocessing
    silo = tabular.with_agreed_features(read(tabular.settings_as_agreed(plain, recipe)), recipe)
    assert np.array_equal(silo.x, tabular.with_agreed_features(data, recipe).x)


def written_by_r(separator, quote='"'):
    """Lines of R's ``write.table``: row names without a name, quoted texts, a blank by default."""
    header = [f"{quote}{name}{quote}" for name in ("age", "died")]
    rows = [
        [f"{quote}{k}{quote}", str(20 + k), f"{quote}{'yn'[k % 2]}{quote}"] for k in range(1, 9)
    ]
    return "".join(separator.join(row) + "\n" for row in (header, *rows))


@pytest.mark.parametrize("separator", [" ", "\t", ";"])
@pytest.mark.parametrize("quote", ["", '"'])
def test_row_names_of_r_are_left_out_whatever_divides_the_cells(tmp_path, separator, quote):
    data = table(tmp_path / "r.txt", written_by_r(separator, quote))
    assert data.x[:, 0].tolist() == list(range(21, 29))
    assert data.classes == ("n", "y")
    assert any("row names" in note for note in data.notes)


def test_dates_in_another_form_are_to_be_written_anew_and_not_to_be_called_dates(tmp_path):
    for pattern in ("%02d.03.2023", "3/%d/23", "%02dMAR2023", "2023/03/%02d 10:00"):
        lines = [f"{pattern % (k + 1)},{k % 2}\n" for k in range(14)]
        for settings in ({}, {"dates": ("visit",)}):
            with pytest.raises(DataError, match="write them as 2024-03-01") as error:
                table(tmp_path / "a.csv", "visit,died\n" + "".join(lines), **settings)
            assert "data.dates=" not in str(error.value)
            assert "missing_values" not in str(error.value)


def test_points_that_may_part_thousands_are_noted_where_every_number_has_one(tmp_path):
    lines = [f"{k}.14{k};{k % 2}\n" for k in range(1, 9)]
    data = table(tmp_path / "a.csv", "platelets;died\n" + "".join(lines))
    assert any("platelets" in note and "data.decimal=comma" in note for note in data.notes)
    commas = "platelets,died\n" + "".join(lines).replace(";", ",")
    assert not table(tmp_path / "a.csv", commas).notes  # R and SAS write three decimals


def test_a_note_that_not_all_files_have_names_its_file(tmp_path):
    (tmp_path / "b.csv").write_text("age,died\n20,0\n30,1\n")
    (tmp_path / "c.csv").write_text("age;died\n20.123;0\n30.123;1\n")
    sites = [{"name": name, "train": tmp_path / f"{name}.csv"} for name in "bc"]
    data = read(data_settings(clients=sites, label_column="died"))
    assert any(n.startswith(f"{tmp_path / 'c.csv'}: column age") for n in data.notes)
