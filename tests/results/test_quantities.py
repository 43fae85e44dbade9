"""What a method reports of its rounds, by client."""

import numpy as np
import pytest

import pomona
from pomona.core.errors import PomonaError
from problems import tiny


def test_row_i_of_a_matrix_is_client_is(tmp_path):
    """In round 3 client 3 comes and half of the clients take part; who is away has no numbers."""
    overrides = {"membership": {"joins": {3: 3}}, "participation": 0.5, "rounds": 4}
    result = pomona.run(tiny("apple", **overrides), tmp_path / "run")
    read = pomona.load(tmp_path / "run")
    assert read.clients == 4
    for name in result.quantities:
        for (number, rows), (_, reloaded) in zip(
            result.matrices(name), read.matrices(name), strict=True
        ):
            row = result.rounds[number - 1]
            absent = [i for i in range(4) if i not in row.cohort]
            assert absent
            assert np.isnan(rows[absent]).all()
            for position, i in enumerate(row.cohort):
                assert rows[i].tolist() == row.info[name][position].tolist()
            np.testing.assert_array_equal(reloaded, rows)
    assert [len(rows) for _, rows in result.matrices("schedule")] == [4] * 4


def test_a_name_that_nobody_reports_is_told_what_there_is():
    result = pomona.run(tiny("apple", rounds=1))
    with pytest.raises(PomonaError, match=r"^apple reports dr, schedule; there is no 'relations'$"):
        result.matrices("relations")
    with pytest.raises(PomonaError, match=r"^separate reports nothing; there is no 'dr'$"):
        pomona.run(tiny("separate", rounds=1)).matrices("dr")
