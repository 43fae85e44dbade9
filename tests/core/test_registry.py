"""Names of custom code: its folders are searched only for names that a person has given."""

import builtins
import sys
import threading

import pytest

from pomona.core import registry
from pomona.core.errors import ConfigError
from pomona.core.registry import (
    Registry,
    code_sha256,
    import_own_code,
    importable,
    importing_from,
    load,
    own_code_folders,
)

SIBLINGS = """
import sibling
def later():
    import latecomer
VALUE = sibling.VALUE + 1
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "_homes", [])
    for name, text in (
        ("mine", SIBLINGS),
        ("sibling", "VALUE = 1"),
        ("latecomer", ""),
        ("pomona_trap", "1 / 0"),
    ):
        (tmp_path / f"{name}.py").write_text(text)
    yield tmp_path
    for name in ("mine", "sibling", "latecomer", "pomona_trap"):
        sys.modules.pop(name, None)


def test_what_a_setting_names_is_found_in_the_folder_and_what_it_imports_too(folder):
    path_before = list(sys.path)
    with pytest.raises(ConfigError, match="cannot load"):
        import_own_code("mine:VALUE")
    with importing_from(folder):
        assert import_own_code("mine:VALUE") == 2
        assert Registry("number", {}).resolve("mine:VALUE") == 2
        assert len(code_sha256("sibling:VALUE")) == 64
    assert (sys.path, own_code_folders()) == (path_before, ())


def test_what_nobody_has_named_is_not_looked_for_there(folder):
    """A folder that somebody sent may hold a pydicom.py."""
    importable(folder)
    assert own_code_folders() == (folder,)
    assert import_own_code("mine:VALUE") == 2
    for name in ("pomona_trap:x", "sibling_2:x"):
        with pytest.raises(ConfigError, match="No module named"):
            load(name)
    with pytest.raises(ModuleNotFoundError):
        import_own_code("mine:later")()
    assert str(folder) not in sys.path


def test_a_folder_that_was_on_the_path_before_stays_there(folder, monkeypatch):
    monkeypatch.syspath_prepend(folder)
    importable(folder)
    assert import_own_code("mine:VALUE") == 2
    assert sys.path[0] == str(folder)


def test_the_folder_is_searched_until_the_last_of_several_threads_is_done(folder):
    (folder / "mine.py").write_text(
        "import threading\nHERE.set()\nassert GO.wait(30)\nimport sibling\n"
    )
    importing, proceed, values = threading.Event(), threading.Event(), []
    builtins.HERE, builtins.GO = importing, proceed
    try:
        importable(folder)
        thread = threading.Thread(
            target=lambda: values.append(import_own_code("mine:sibling").VALUE)
        )
        thread.start()
        assert importing.wait(30)
        assert import_own_code("sibling:VALUE") == 1
        sys.modules.pop("sibling")
        proceed.set()
        thread.join(30)
    finally:
        del builtins.HERE, builtins.GO
    assert values == [1]
    assert str(folder) not in sys.path
