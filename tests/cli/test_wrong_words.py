"""A wrong option or file is answered before PyTorch, Arrow or SciPy are imported."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.long
PROGRAM = """
import sys
from pomona.cli import main
try:
    main(sys.argv[1:])
except SystemExit as end:
    print(end.code, sorted({"torch", "pyarrow", "scipy"} & sys.modules.keys()))
"""


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["run", "apple", "--lr", "0.1"], "A setting is written lr=VALUE"),
        (["run", "absent.toml"], "no file absent.toml"),
        (["run", "apple", "cut.toml"], "cut.toml: Unclosed array"),
        (["run"], "requires an argument"),
        (["demo", "--seed", "x"], "--seed"),
        (["data", "show", "absent.toml"], "no file absent.toml"),
        (["compare", "absent"], "absent does not exist"),
        (["coefficients", "absent"], "absent does not exist"),
        (["report", "absent"], "absent does not exist"),
        (["elsewhere", "absent"], "absent does not exist"),
        (["trajectory", "absent"], "absent does not exist"),
        (["privacy-audit", "absent"], "absent does not exist"),
        (["predict", "absent", "rows.csv"], "absent does not exist"),
        (["export", "absent", "--client", "A", "--to", "onnx"], "absent does not exist"),
    ],
)
def test_a_wrong_word_loads_no_pytorch(words, part, tmp_path):
    (tmp_path / "cut.toml").write_text("lr_milestones = [1\n")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"{6 if 'absent' in words else 2} []\n"
    assert part in done.stderr
