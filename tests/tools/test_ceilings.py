"""Names that say nothing are counted, and a size above its ceiling is named."""

import ast

import pytest

from ceilings import exceeded
from vague_names import bindings, vague


@pytest.mark.parametrize("name", ["found", "_what_is_left", "FOUND", "WhatItHolds"])
def test_words_that_fit_anything_are_vague(name):
    assert vague(name)


@pytest.mark.parametrize(
    "name", ["columns", "found_columns", "x", "_", "self", "first", "HTTPReply"]
)
def test_names_that_hold_a_noun_are_not(name):
    assert not vague(name)


def test_every_binding_counts():
    module = "def f(a, *b, c=0):\n  d = e: int = 0\nclass G:\n  h: int\n  def __init__(self): ...\n"
    module = module.replace("d = e: int = 0", "d = 0; e: int = 0; [k for k in a]; f.g = 1")
    assert sorted(bindings(ast.parse(module))) == [*"Gabcdefhk", "self"]


def test_what_exceeds_its_ceiling_or_has_none_is_named():
    faults = exceeded({"a": 3, "b": 2, "c": 1}, {"a": 2.5, "b": 2})
    assert [fault.split(":")[0] for fault in faults] == ["a", "c"]
