"""A client's fault has its name once."""

import pytest

from pomona.federation.exchange import with_name


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ("client 1, step 3: the loss is nan", "silo-1, step 3: the loss is nan"),
        ("client 1", "silo-1"),
        ("client 12 is another", "silo-1: client 12 is another"),
        ("silo-1: no rows", "silo-1: no rows"),
        ("silo-12 is another", "silo-1: silo-12 is another"),
        ("", "silo-1: "),
    ],
)
def test_a_fault_has_its_clients_name_once(fault, expected):
    assert with_name(fault, 1, "silo-1") == expected
