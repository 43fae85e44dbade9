"""Tables as Markdown and CSV: text stays text, numbers stay numbers, and no name becomes a
formula.
"""

import csv
import io
import re
from pathlib import Path

import pomona
from pomona.core.table import Table, csv_text, markdown, of_records
from small_table import TABLE

NAMES = [
    '=HYPERLINK("http://a.example","x")',
    "+1+cmd",
    "-2+3",
    "@SUM(A1)",
    "\t=1",
    "\r=1",
    "Ward 3",
    "-",
    "ü=1",
]
SAFE = ["'" + name.replace("\r", " ") for name in NAMES[:6]] + ["Ward 3", "'-", "ü=1"]


def read(text):
    return list(csv.DictReader(io.StringIO(text)))


def test_a_name_is_never_a_formula():
    assert [row["name"] for row in read(csv_text([{"name": name} for name in NAMES]))] == SAFE
    assert csv_text([{"=1": 2}]) == "'=1\n2\n"


def test_numbers_are_left_as_they_are():
    rows = [{"a": -0.5, "b": "-1e-3", "c": 7, "d": None, "e": "+2.50", "f": "-inf", "g": True}]
    assert csv_text(rows) == "a,b,c,d,e,f,g\n-0.5,-1e-3,7,,+2.50,-inf,True\n"


def test_the_files_of_a_run_hold_no_formula(tmp_path):
    lines = [
        f'"{name}",{k % 11},{(5 * k + i) % 13},{k % 2}'
        for i, name in enumerate(NAMES[1:4])
        for k in range(20)
    ]
    (tmp_path / "own.csv").write_text("\n".join(["site,a,b,y", *lines]) + "\n")
    data = {
        "name": "table",
        "path": str(tmp_path / "own.csv"),
        "label_column": "y",
        "client_column": "site",
    }
    config = pomona.Config(
        data=data, rounds=1, lr=0.1, model={"name": "mlp", "hidden": [4]}, workers=1
    )
    result = pomona.run(config, tmp_path / "run")
    assert result.about["clients"] == NAMES[1:4]
    names = {row["name"] for row in read((tmp_path / "run/clients.csv").read_text())}
    assert names == {"'" + name for name in NAMES[1:4]}


def test_nothing_else_in_the_package_writes_csv():
    source = Path(pomona.__file__).parent
    writers = [
        p.name
        for p in source.rglob("*.py")
        if "templates" not in p.parts and re.search(r"csv\w*\.(writer|DictWriter)", p.read_text())
    ]
    assert writers == ["table.py"]


def test_markdown_keeps_pipes_out_of_the_way():
    lines = markdown(TABLE).splitlines()
    assert lines[2:6] == ["| a_b | n |", "| --- | ---: |", r"| x\|y | 1 ± 2 |", "| z | **3** |"]


def test_markdown_holds_no_markup_of_names():
    text = markdown(Table("t", "<b>", ["![x](http://x)"], ["`", "n"], [["<script>", "[a](b)"]]))
    assert text == (
        "## \\<b>\n\n| \\` | n |\n| --- | ---: |\n| \\<script> | \\[a](b) |\n\n!\\[x](http://x)\n"
    )


def test_records_become_a_table_with_words_to_the_left():
    table = of_records(
        [{"who_is_it": "a", "n": 1, "share": 0.123456}, {"who_is_it": "b", "n": None, "share": 2.0}]
    )
    assert table.header == ["who is it", "n", "share"]
    assert table.rows == [["a", "1", "0.1235"], ["b", "-", "2"]]
    assert [column in table.words for column in range(3)] == [True, False, False]
    assert of_records([]).rows == []
