#!/usr/bin/env bash
# One would guess: 7 with a raised footnote mark 2 is no number to a library, as 7* and 7a are none.
# What happens: openpyxl 3.1.5 and python-calamine 0.9.1 join a cell's runs of text without their formats: "72". pandas
# 3.1.1 makes the number 72 of it, in a column of whole numbers.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
python3 -m pip install -q --target "$folder" xlsxwriter==3.2.9 openpyxl==3.1.5 python-calamine==0.9.1 \
    pandas==3.1.1 numpy==2.4.6
cd "$folder" && PYTHONPATH=$folder python3 - <<'PY'
import openpyxl, pandas as pd, python_calamine, xlsxwriter
with xlsxwriter.Workbook("a.xlsx") as book:
    sheet, raised = book.add_worksheet(), book.add_format({"font_script": 1})
    sheet.write_column(0, 0, ["crp", 5, 6])
    sheet.write_rich_string(3, 0, "7", raised, "2")
read = {
    "openpyxl": [cell.value for cell in openpyxl.load_workbook("a.xlsx").active["A"]][1:],
    "calamine": [row[0] for row in python_calamine.load_workbook("a.xlsx").get_sheet_by_index(0).to_python()][1:],
    "pandas": pd.read_excel("a.xlsx", engine="openpyxl")["crp"].tolist(),
}
print(read)
assert read == {"openpyxl": [5, 6, "72"], "calamine": [5, 6, "72"], "pandas": [5, 6, 72]}
PY
