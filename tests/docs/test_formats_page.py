"""``docs/formats.md``: its table of libraries is the package's; tables of formats have tests of
their own (``format_lines``).
"""

import re
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest
from format_lines import DOCUMENT

from pomona.core.errors import ConfigError
from pomona.data import formats

PROJECT = tomllib.loads((DOCUMENT.parents[1] / "pyproject.toml").read_text())["project"]
ROWS = re.findall(r"^\| (L\d+) \| (.*?) \| (.*?) \| (.*?) \|$", DOCUMENT.read_text(), flags=re.M)


@pytest.mark.parametrize(
    ("files", "library", "extra"), [row[1:] for row in ROWS], ids=[r[0] for r in ROWS]
)
def test_a_library_is_that_of_the_package(files, library, extra):
    extras = PROJECT["optional-dependencies"]
    assert library in (extras[extra] if extra else PROJECT["dependencies"])
    registry = formats.formats()
    for suffix in re.findall(r"`(\.\w+)`", files):
        if suffix in registry:
            assert registry[suffix].extra == extra


def test_a_missing_library_is_one_line_with_its_extra(monkeypatch, tmp_path):
    monkeypatch.setattr(formats, "find_spec", lambda name: None)
    for suffix, entry in formats.formats().items():
        path = tmp_path / f"a{suffix}"
        path.touch()
        if entry.library and find_spec(entry.library):
            with pytest.raises(ConfigError, match=rf"needs {entry.library}.*extra {entry.extra}$"):
                formats.read([Path(path)], None)
