"""Wrong words, files and settings are answered, and settings explained, without PyTorch."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.long
# an import of one of them ends in a traceback, which names the module with the import at its head
PROGRAM = """
import sys
sys.modules |= dict.fromkeys(("torch", "pyarrow", "scipy", "matplotlib"))
from pomona.cli import main
main(sys.argv[1:])
"""
READERS = ("compare", "coefficients", "report", "elsewhere", "privacy-audit")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["run", "apple", "--lr", "0.1"], "A setting is written lr=VALUE"),
        (["run", "absent.toml"], "no file absent.toml"),
        (["run", "apple", "cut.toml"], "cut.toml: not valid TOML: Unclosed array"),
        (["run"], "pomona run: METHOD is missing."),
        (["run", "apple", "clinets=3"], "unknown key 'clinets'; did you mean clients?"),
        (["run", "apple", "clients=three", "--data", "digits"], "clients = 'three'"),
        (["run", "apple", "method.bugdet=3"], "did you mean method.budget?"),
        (["run", "wrong.toml"], "did you mean lr_milestones?"),
        (["run", "aple"], "apple"),
        (["bench", "digits", "clinets=3"], "did you mean clients?"),
        (["rnu"], 'Did you mean "run"?'),
        (["demo", "--seed", "x"], "--seed"),
        (["data", "show", "absent.toml"], "no file absent.toml"),
        *(([command, "absent"], "absent does not exist") for command in READERS),
        (["predict", "absent", "rows.csv"], "absent does not exist"),
        (["export", "absent", "--client", "A", "--to", "onnx"], "absent does not exist"),
    ],
)
def test_a_wrong_word_loads_no_pytorch(argv, message, tmp_path):
    (tmp_path / "cut.toml").write_text("lr_milestones = [1\n")
    (tmp_path / "wrong.toml").write_text("method = 'apple'\nlr_milestone = [1]\n")
    process = run(argv, tmp_path)
    assert process.returncode == (6 if "absent" in argv else 2)
    assert message in process.stderr


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--help"], "privacy-audit"),
        (["settings"], "dr_lr"),
        (["methods"], "fedavg"),
        (["commands"], "privacy-audit"),
        (["data", "list"], "digits"),
        (["run", "--help"], "clients"),
        (["run", "apple", "--dry-run"], "core_step"),
    ],
)
def test_settings_and_listings_load_no_pytorch(argv, message, tmp_path):
    assert message in (process := run(argv, tmp_path)).stdout, process.stderr


def run(argv, folder):
    command = [sys.executable, "-c", PROGRAM, *argv]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
