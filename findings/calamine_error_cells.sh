#!/usr/bin/env bash
# One would guess: a cell with #N/A or #DIV/0! is told from an empty one, or is an error, as in pandas with openpyxl.
# What happens: python-calamine 0.9.1 returns "" for all of them, and has no way to ask.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
python3 -m pip install -q --target "$folder" python-calamine==0.9.1 openpyxl==3.1.5
cd "$folder" && PYTHONPATH=$folder python3 - <<'PY'
from importlib.metadata import version
import openpyxl, python_calamine
book = openpyxl.Workbook()
for cell in ("crp", "#N/A", "#DIV/0!", None, 5):
    book.active.append([cell])
book.save("a.xlsx")
read = python_calamine.load_workbook("a.xlsx").get_sheet_by_index(0).to_python(skip_empty_area=False)
other = [cell.value for cell in openpyxl.load_workbook("a.xlsx").active["A"]]
print("python-calamine", version("python-calamine"), read)
print("openpyxl", openpyxl.__version__, other)
assert read == [["crp"], [""], [""], [""], [5.0]] and other[1:3] == ["#N/A", "#DIV/0!"]
PY
