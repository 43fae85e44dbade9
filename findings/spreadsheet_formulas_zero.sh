#!/usr/bin/env bash
# One would guess: the result of a formula in a file of XlsxWriter is missing until a spreadsheet has computed it.
# What happens: XlsxWriter 3.2.9 stores 0 as its result, which python-calamine, openpyxl and pandas return as a number;
# only the workbook's fullCalcOnLoad tells. openpyxl's own formulas come as "" or None.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
python3 -m pip install -q --target "$folder" python-calamine==0.9.1 openpyxl==3.1.5 XlsxWriter==3.2.9
cd "$folder" && PYTHONPATH=$folder python3 - <<'PY'
import zipfile
import openpyxl, python_calamine, xlsxwriter
book = xlsxwriter.Workbook("a.xlsx")
sheet = book.add_worksheet()
sheet.write_row(0, 0, ["weight", "height", "bmi"])
sheet.write_row(1, 0, [80, 1.8])
sheet.write_formula("C2", "=A2/B2^2")
book.close()
read = python_calamine.load_workbook("a.xlsx").get_sheet_by_index(0).to_python()[1]
other = openpyxl.load_workbook("a.xlsx", data_only=True).active["C2"].value
print("XlsxWriter", xlsxwriter.__version__, "python-calamine:", read, "openpyxl:", other, "right:", 80 / 1.8**2)
assert read == [80, 1.8, 0] and other == 0
assert b'fullCalcOnLoad="1"' in zipfile.ZipFile("a.xlsx").read("xl/workbook.xml")
PY
