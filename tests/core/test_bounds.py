"""Bounded types: accepted and refused values."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from pomona.core import bounds
from pomona.core.errors import ProtocolError


@given(st.text(), st.integers(4, 40))
def test_a_line_has_no_character_that_a_terminal_obeys(text, length):
    line = bounds.plain(text, length)
    assert len(line) <= length
    assert line.isprintable()
    assert bounds.plain(line, length) == line


@pytest.mark.parametrize(
    "text", ["\x1b]0;title\x07", "a\nb\rc", "\u202eabc", "\u2028x", "a\x00b\x9bm"]
)
def test_escape_sequences_and_forged_lines_become_blanks(text):
    assert set(bounds.plain(text)) <= set("]0;title abcxm")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0" * 63,
        "0" * 65,
        "A" * 64,
        "../../keys/silo.key",
        "/etc/passwd",
        "0" * 64 + "\n",
        "\n" + "0" * 64,
        "é" * 64,
    ],
)
def test_a_hash_is_64_hex_digits_and_nothing_else(text):
    adapter = TypeAdapter(bounds.Sha256)
    assert adapter.validate_python("0123456789abcdef" * 4)
    with pytest.raises(ValidationError):
        adapter.validate_python(text)


@pytest.mark.parametrize(
    ("number_type", "largest"),
    [(bounds.Count, 2**53 - 1), (bounds.Number, 10**6), (bounds.ClientId, 10**4 - 1)],
)
def test_numbers_have_limits_on_both_sides(number_type, largest):
    adapter = TypeAdapter(number_type)
    assert adapter.validate_json(str(largest)) == largest
    for bad in (-1, largest + 1, 10**400):
        with pytest.raises(ValidationError):
            adapter.validate_json(str(bad))


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        "[" * 66 + "]" * 66,
        "NaN",
        "-Infinity",
        "1e999",
        "[-1e309]",
        "1" * 5000,
        "{",
        b"\xff",
    ],
)
def test_what_is_no_bounded_json_is_the_readers_own_error(text):
    with pytest.raises(ProtocolError, match=r"not JSON|nested"):
        bounds.parse(text, ProtocolError)


def test_length_is_looked_at_before_anything_else():
    with pytest.raises(ProtocolError, match="12 bytes; the limit is 10"):
        bounds.parse('"0123456789"', ProtocolError, max_bytes=10)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(), lambda x: st.lists(x, max_size=3)
    )
)
def test_what_fits_comes_through_unchanged(value):
    assert bounds.parse(json.dumps(value), ProtocolError) == value


def test_punctuation_after_a_path_stays():
    assert bounds.without_paths("not in /a/b.json; restore '/c/d', or call") == (
        "not in (path); restore (path), or call"
    )
