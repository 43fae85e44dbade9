"""The guide to own data: it can be followed twice, and the message that it shows is the actual
one.
"""

import re
from pathlib import Path

import pytest
from docs_blocks import Runner, blocks

from pomona.core.errors import DataError
from pomona.data import data_settings, read

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "own-data.md"


def test_its_files_are_made_a_second_time_in_the_same_folder(tmp_path, monkeypatch):
    """By those blocks of Python that need no run before them."""
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        runner = Runner()
        for block in blocks(GUIDE):
            if block.language == "python" and not block.condition and "runs/" not in block.text:
                runner.run(block)


def test_the_message_on_a_hospitals_table_is_the_one_shown(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runner = Runner()
    for block in [block for block in blocks(GUIDE) if block.language == "python"][:2]:
        runner.run(block)
    (message,) = re.findall(
        r"^```text\n(error.*?)^```$", GUIDE.read_text(), flags=re.DOTALL | re.MULTILINE
    )
    with pytest.raises(DataError) as caught:
        read(data_settings(name="table", path="ward.csv", label_column="outcome"))
    assert f"{caught.value.text()}\n" == message
