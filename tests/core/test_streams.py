"""Random streams have addresses."""

import hashlib
import pickle
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pomona
from pomona.core.errors import ConfigError, PomonaError
from pomona.core.registry import Registry
from pomona.core.rng import number, stream

pytestmark = pytest.mark.long


@given(
    st.integers(0, 2**40),
    st.text("abc", min_size=1, max_size=5),
    st.integers(0, 99),
    st.integers(0, 99),
)
def test_an_address_always_gives_the_same_numbers(seed, purpose, round_number, client):
    first = stream(seed, purpose, round_number, client).random(3)
    assert np.array_equal(first, stream(seed, purpose, round_number, client).random(3))
    assert number(seed, purpose, round_number) == number(seed, purpose, round_number) < 2**63


def test_every_part_of_an_address_matters():
    addresses = [
        (0, "a", 1, 2),
        (1, "a", 1, 2),
        (0, "b", 1, 2),
        (0, "a", 2, 1),
        (0, "a", 12),
        (0, "a"),
    ]
    draws = {tuple(stream(s, p, *indices).integers(0, 2**62, 2)) for s, p, *indices in addresses}
    assert len(draws) == len(addresses)


def test_the_package_imports_without_torch_and_names_what_it_has():
    code = (
        "import sys, pomona; pomona.ConfigError; assert 'torch' not in sys.modules; "
        "print(pomona.Config().rounds)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "40"
    with pytest.raises(AttributeError, match="nothing"):
        pomona.nothing  # noqa: B018
    assert all(getattr(pomona, name) for name in pomona.__all__)


def test_a_registry_resolves_names_and_entry_points_and_suggests():
    registry = Registry("thing", {"join": "os.path:join"})
    assert registry.resolve("join") is registry.resolve("os.path:join")
    for name, message in (
        ("joan", "join"),
        ("os.path:nothing", "nothing"),
        ("no.such:thing", "no.such:thing"),
    ):
        with pytest.raises(ConfigError, match=message):
            registry.resolve(name)


def test_messages_are_one_line_with_kind_and_code():
    assert ConfigError("two\nlines").line() == "error[CONFIG]: two lines"
    several = ConfigError("a.csv has 2 problems", "line 1: no\nnumber", "line 2: \x1b]0;title\x07")
    assert (
        several.line() == "error[CONFIG]: a.csv has 2 problems: line 1: no number; line 2: ]0;title"
    )
    assert (
        several.text()
        == "error[CONFIG]: a.csv has 2 problems:\n  line 1: no number\n  line 2: ]0;title"
    )
    assert ConfigError("one").text() == "error[CONFIG]: one"
    assert str(pickle.loads(pickle.dumps(several))) == str(several)
    codes = [
        c.code
        for c in (pomona.ConfigError, pomona.DataError, pomona.LockedError, pomona.StorageError)
    ]
    assert codes == [2, 3, 5, 6]
    assert all(issubclass(c, PomonaError) for c in (pomona.ConfigError, pomona.DivergedError))


def test_a_stream_is_philoxs_of_the_digest_as_key():
    """As numpy makes it of a whole number, slowly."""
    digest = hashlib.blake2b(b"3/batches/5/7", digest_size=16).digest()
    philox = np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "little")))
    assert stream(3, "batches", 5, 7).permutation(99).tolist() == philox.permutation(99).tolist()
