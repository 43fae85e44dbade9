#!/usr/bin/env bash
# One would guess: whole numbers that a double holds exactly come back from a workbook as they were written.
# What happens: openpyxl 3.1.5 and XlsxWriter 3.3.1 write 16 digits: 12345678901234568, 12345678901234570 and
# 12345678901234572 become one number, so that identifiers of patients are equal. Below 10^16 nothing is lost.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
python3 -m pip install -q --target "$folder" openpyxl==3.1.5 XlsxWriter==3.3.1
cd "$folder" && PYTHONPATH=$folder python3 - <<'PY'
import openpyxl, xlsxwriter
identifiers = [12345678901234568, 12345678901234570, 12345678901234572]
assert [int(float(number)) for number in identifiers] == identifiers
book = openpyxl.Workbook()
book.active.append(identifiers)
book.save("openpyxl.xlsx")
with xlsxwriter.Workbook("xlsxwriter.xlsx") as book:
    book.add_worksheet().write_row(0, 0, identifiers)
for name, version in (("openpyxl", openpyxl.__version__), ("xlsxwriter", xlsxwriter.__version__)):
    (row,) = openpyxl.load_workbook(f"{name}.xlsx").active.iter_rows(values_only=True)
    print(name, version, [int(number) for number in row])
    assert {*row} == {12345678901234570}
PY
