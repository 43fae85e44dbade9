"""The registry of table formats: adapters by suffix, of the package and of other packages."""

from importlib.metadata import EntryPoint

import pyarrow as pa
import pytest

from pomona.core.errors import ConfigError, DataError
from pomona.data import formats
from pomona.data.formats import Format
from pomona.data.formats.columns import Columns


def numbers(path, settings):
    """A reader of a package of somebody else: numbers divided by blanks, one column."""
    if not path.read_text().strip():
        raise DataError(f"{path} is empty; write a number")
    array = pa.chunked_array([pa.array(map(float, path.read_text().split()))])
    return Columns(("n",), (array,), notes=(f"settings {settings}",))


@pytest.fixture
def outside(monkeypatch):
    """Register formats of another package."""

    def register(file_format):
        point = EntryPoint(".nums", f"{__name__}:FORM", formats.ENTRY_POINTS)
        monkeypatch.setattr(EntryPoint, "load", lambda self: file_format)
        monkeypatch.setattr(formats, "entry_points", lambda group: [point])
        formats.formats.cache_clear()

    yield register
    formats.formats.cache_clear()


def test_another_package_adds_a_format_by_an_entry_point(outside, tmp_path):
    outside(Format("Numbers", f"{__name__}:numbers"))
    path = tmp_path / "a.nums"
    path.write_text("1 2.5")
    (columns,) = formats.read([path], "none")
    assert columns.arrays[0].to_pylist() == [1.0, 2.5]
    assert (columns.names, columns.notes, len(columns)) == (("n",), ("settings none",), 2)
    path.write_text("")
    with pytest.raises(DataError, match="empty"):
        formats.read([path], "none")


def test_a_missing_library_is_named_with_its_extra(outside, tmp_path):
    outside(Format("Numbers", f"{__name__}:numbers", "no_such_library", "clinical"))
    (tmp_path / "a.nums").touch()
    with pytest.raises(ConfigError, match=r"Numbers needs no_such_library.*extra clinical"):
        formats.read([tmp_path / "a.nums"], None)


def test_several_files_are_read_in_order(tmp_path):
    paths = [tmp_path / f"{k}.csv" for k in range(3)]
    for k, path in enumerate(paths):
        path.write_text(f"x\n{k}\n")
    read = formats.read(paths, None)
    assert [columns.arrays[0].to_pylist() for columns in read] == [["x", str(k)] for k in range(3)]
