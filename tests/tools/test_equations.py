"""Plain equations become TeX that Matplotlib can parse, and that Markdown does not read as its
own.
"""

import re

import pytest
from matplotlib.mathtext import MathTextParser

from equations import typeset
from method_pages import pages


@pytest.mark.parametrize(
    ("plain", "expected"),
    [
        ("w <- sum_i n_i / n w_i", r"$w \leftarrow \sum_{i} n_{i} / n w_{i}$"),
        (
            "min_{v_i} F_i(v_i) + lambda / 2 ||v_i - w*||^2",
            r"$\min_{v_{i}} F_{i}(v_{i}) + \lambda / 2 \Vert v_{i} - w^{*} \Vert^{2}$",
        ),
        ("<g, c_j> > 0 for i<j", r"$\langle g, c_{j} \rangle > 0$ for $i < j$"),
        ("b^|p_ij|, b = max(1.5, r M / N)", r"$b^{\vert p_{ij} \vert}, b = \max(1.5, r M / N)$"),
        ("dF_i(t_i)/dt * (w - w_i)", r"$dF_{i}(t_{i}) / dt \odot(w - w_{i})$"),
        ("sqrt((1 - a) / 2) > gamma", r"$\sqrt{(1 - a) / 2} > \gamma$"),
        ("w_n = L_i(theta_i') - 1e-3", r"$w_{n} = L_{i}(\theta_{i}^{\prime}) - 10^{-3}$"),
        ("c_i+ = c_i - c", r"$c_{i}^{+} = c_{i} - c$"),
        (
            "a client's w is a copy of the sum, (eqs. 8, 9)",
            r"a client's $w$ is a copy of the sum, (eqs. 8, 9)",
        ),
        ("takes a ``mu`` of 0.1 <or more>: 3 * 4", r"takes a `mu` of 0.1 &lt;or more>: 3 \* 4"),
        ("F_i is L-smooth. With A the rows", r"$F_{i}$ is $L$-smooth. With $A$ the rows"),
    ],
)
def test_what_is_mathematics_is_typeset_and_prose_is_not(plain, expected):
    assert typeset(plain) == expected


@pytest.mark.long
def test_all_formulas_of_the_pages_are_tex_that_markdown_leaves_alone():
    formulas = [
        formula for page in pages().values() for formula in re.findall(r"\$([^$]*)\$", page)
    ]
    assert len(formulas) > 500
    parser = MathTextParser("path")
    for formula in formulas:
        parser.parse(f"${formula}$")
        assert not re.search(r"\\[^A-Za-z ]|\}_|[|]", formula), formula
