#!/usr/bin/env bash
# One would guess: of a SAS transport file with two data sets, as SAS's COPY procedure writes a library, the first is read.
# What happens: pyreadstat 1.3.7 reads the headers of the second data set, and its rows, as rows of the first. No warning.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
python3 -m pip install -q --target "$folder" pyreadstat==1.3.7 numpy==2.4.6
cd "$folder" && PYTHONPATH=$folder python3 - <<'PY'
import struct
import pyreadstat
record = lambda text: text.encode().ljust(80)
header = lambda name, digits="0" * 30: record(f"HEADER RECORD*******{name:8}HEADER RECORD!!!!!!!{digits}")
padded = lambda content: content + b" " * (-len(content) % 80)
def member(name):  # one numeric column X with the values 1 and 2 in IBM's floating point
    entry = struct.pack(">4h8s40s8s3h2s8s2hl52s", 1, 0, 8, 1, b"X".ljust(8), b" " * 40, b" " * 8, 0, 0, 0, b"", b" " * 8, 0, 0, 0, b"")
    return b"".join([header("MEMBER", "000000000000000001600000000140"), header("DSCRPTR"),
        record(f"SAS     {name:8}SASDATA 9.4     X64_10PR"), record("01MAR24:10:00:00"),
        header("NAMESTR", "0000000001" + "0" * 20), padded(entry), header("OBS"),
        padded(bytes.fromhex("41100000000000004120000000000000"))])
start = header("LIBRARY") + record("SAS     SAS     SASLIB  9.4     X64_10PR") + record("01MAR24:10:00:00")
read = {}
for count in (1, 2):
    with open("a.xpt", "wb") as file:
        file.write(start + b"".join(map(member, ["DM", "LB"][:count])))
    read[count] = pyreadstat.read_xport("a.xpt", output_format="dict")[0]["X"]
print("pyreadstat", pyreadstat.__version__, "one data set:", read[1], "two:", len(read[2]), "rows", read[2][:12])
assert read[1] == [1.0, 2.0]
assert len(read[2]) > 60 and read[2][:2] == [1.0, 2.0]
PY
