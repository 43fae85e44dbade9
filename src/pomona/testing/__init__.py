"""For authors of methods: conformance checks, and small problems to run methods on.

    import pytest
    from pomona.testing import conformance
    from mymodule import Mine

    @pytest.mark.parametrize("check", conformance(Mine(share=0.3)), ids=str)
    def test_conformance(check):
        check()

``Federation`` runs a method on ``quadratics``, or on ``class_points`` with features and classes,
round by round, with access to the states of both halves, for tests of the equations.
"""

from pomona.testing.conformance import Check, conformance
from pomona.testing.problems import (
    Federation,
    Points,
    Quadratics,
    a_round,
    class_points,
    quadratics,
)

__all__ = [
    "Check",
    "Federation",
    "Points",
    "Quadratics",
    "a_round",
    "class_points",
    "conformance",
    "quadratics",
]
