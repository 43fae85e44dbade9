"""What the README says works: every command and every block of code in it runs, in order, in an empty folder."""

import contextlib
import re
import shlex
from pathlib import Path

import numpy as np
from PIL import Image

from pomona.cli import main
from pomona.methods.pages import pages

README = Path(__file__).parents[2] / "README.md"
PLACES = re.compile(r"\]\(([^)#]+)\)")


def test_links_lead_somewhere():
    targets = [t for t in PLACES.findall(README.read_text()) if "://" not in t]
    assert [t for t in targets if not (README.parent / t).exists()] == []
    assert targets


def test_commands_and_code_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    draw = np.random.Generator(np.random.Philox(5))
    Image.fromarray(draw.integers(0, 256, (8, 8), dtype=np.uint8)).save("digit.png")
    table = ["age,dose,outcome,hospital"]
    table += [
        f"{draw.integers(20, 90)},{draw.random():.3f},{'ill' if k % 3 else 'well'},{'ABC'[k % 3]}{k % 2}"
        for k in range(240)
    ]
    Path("patients.csv").write_text("\n".join(table) + "\n")
    text = README.read_text()
    commands = [line.strip().partition("#")[0] for line in text.splitlines() if line.startswith("    pomona ")]
    assert len(commands) == 9
    for command in commands:
        with contextlib.suppress(SystemExit):
            main(shlex.split(command)[1:])
        assert "error[" not in capsys.readouterr().err, command
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        exec(compile(block, "README.md", "exec"), {})


def test_the_pages_of_the_methods_are_those_of_the_code():
    folder = README.parent / "docs/methods"
    assert {p.name: p.read_text() for p in folder.iterdir()} == pages(), "run: pomona methods --out docs/methods"
