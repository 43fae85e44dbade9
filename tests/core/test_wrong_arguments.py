"""First attempts of Python users: they work, or one line says what to write."""

import json

import numpy as np
import pytest

import pomona
from pomona.core.errors import ConfigError, StorageError
from pomona.experiments import load
from problems import tiny


def test_a_name_in_the_place_of_a_config_and_a_function_as_callback_are_refused_in_a_line():
    with pytest.raises(ConfigError, match="takes a Config or keywords, not str; write "):
        pomona.run("apple")
    with pytest.raises(ConfigError, match=r"not both \(rounds\); write "):
        pomona.run(tiny("separate", rounds=1), rounds=2)
    with pytest.raises(ConfigError, match=r"unknown key 'rouns'; did you mean rounds\?"):
        pomona.run(rouns=2)
    with pytest.raises(ConfigError, match="builtin_function_or_method has none of on_run_begin"):
        pomona.run(tiny("separate", rounds=1), callback=print)


@pytest.mark.parametrize("data", [np.zeros((4, 2)), (np.zeros((4, 2)), [0, 1, 0, 1])])
def test_bare_arrays_are_told_the_way(data):
    with pytest.raises(ConfigError, match=r"^data = .*: pass data in memory with from_arrays, "):
        pomona.run(data=data)


def test_a_bench_is_read_from_a_path_in_text(tmp_path):
    with pytest.raises(StorageError, match="holds no readable bench"):
        load(str(tmp_path))


def test_rounds_of_a_frame_can_be_queried():
    """A column ``round`` would be taken for numexpr's function of that name, and no row be
    found.
    """
    frame = pomona.run(tiny("separate", rounds=2)).to_frame()
    assert set(frame.query("round_number == 2")["round_number"]) == {2}
    assert "round" not in frame.columns


def test_json_of_methods_holds_records_not_their_text_in_python(capsys):
    from pomona.cli.report import methods

    methods(json=True)
    stdout = capsys.readouterr().out
    card = json.loads(stdout)["apple"]
    assert card["presentation"]["title"] == "APPLE"
    assert all(isinstance(gradient, dict) for gradient in card["privacy"]["gradients"])
    assert "(title=" not in stdout
