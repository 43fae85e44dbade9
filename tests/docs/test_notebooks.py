"""The notebooks of the documents do what they show."""

import tempfile
from pathlib import Path

import nbformat
import pytest

from notebooks import code, differences, executed, read
from representatives import drawn

ROOT = Path(__file__).parents[2]


NOTEBOOKS = read()


@pytest.mark.parametrize("path", drawn(NOTEBOOKS, 2), ids=lambda path: path.stem)
def test_a_notebook_gives_the_outputs_that_it_shows(path):
    new = executed({path: NOTEBOOKS[path]})
    assert differences(NOTEBOOKS[path], new[path]) == []


def test_outputs_are_kept_small_and_name_no_folder_of_the_machine():
    assert len(NOTEBOOKS) >= 5
    for path, notebook in NOTEBOOKS.items():
        text = path.read_text()
        assert any(cell.outputs for cell in code(notebook)), path.name
        assert len(text) < 150_000, path.name
        for folder in (tempfile.gettempdir(), str(Path.home()), str(ROOT)):
            assert f"{folder}/" not in text, (path.name, folder)


def notebook(*texts):
    outputs = [nbformat.v4.new_output("stream", text=text) for text in texts]
    return nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("", outputs=outputs)])


@pytest.mark.parametrize(
    ("old", "new", "alike"),
    [
        ("92.73 %", "92.45 %", True),
        ("92.73 %", "89.10 %", False),
        ("gain 0.01", "gain 0.03", True),
        ("gain 0.01", "gain 0.11", False),
        ("+2.8 points, better", "+2.5 points, better", True),
        ("+2.8 points, better", "+2.8 points, worse", False),
        ("8 clients", "7 clients", False),
        ("20/20 0:02 left 0:00", "20/20 1:00:09 left 0:01", True),
        ("note: engine = native\n9 %", "9 %", True),
        ("note: the metric is the Dice\n9 %", "9 %", False),
    ],
)
def test_numbers_may_differ_by_rounding_and_words_by_nothing(old, new, alike):
    assert (differences(notebook(old), notebook(new)) == []) is alike
