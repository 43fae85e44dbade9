# ruff: noqa: RUF001 - signs that look like letters are what is tried
"""LaTeX tables: ASCII that pdflatex accepts for any name, and no wider than a column of article."""

import sys
from dataclasses import replace

import pytest

from pdflatex import compiled
from pomona.core.table import Table
from pomona.results.tables.latex import CELL, ROOM, escaped, latex, width
from small_table import TABLE

NAMES = [
    "CHASE_DB1 & 50 %", r"\input{x} $a^b$ #1 {~}", "[1] *", ("Zürich, Genève, Łódź, Ångström, "
                                                            "Žižkov"), "診療所 🏥", "10⁶ bytes",
    "p₀ ± 1 − μ·λ ≥ 3", "--rounds, “a” … ‘b’", "a|b<c>d", "Ǭ́ṩ", "\u202eabc\u0007\n\t", "x" * 300, "two words " * 30, "",
]  # fmt: skip
"""What names, notes and settings may hold."""
WIDE = Table(
    "wide", "Cost: 10⁶ bytes & more", ["Note of 100 %."], ["column", "method", *((f"seconds to {k} "
                                                                                 "% of _all_") for k in range(14))],
    [[NAMES[k % len(NAMES)], f"FedAvg-{k}", *(f"{k}{j}.25 ± 0.31 (5)" for j in range(14))] for k in range(70)],
    range(2), frozenset({(1, 2), (3, 0)}),
)  # fmt: skip


@pytest.mark.long
def test_every_sign_becomes_ascii_with_its_braces_closed():
    for sign in map(chr, range(sys.maxunicode)):
        text = escaped(sign)
        assert text.isascii()
        assert text.count("{") - text.count(r"\{") == text.count("}") - text.count(r"\}")
    assert escaped("Zürich 10⁶ 診 a\n b") == r"Z\"{u}rich 10$^6$ {[}U+8A3A{]} a b"
    assert escaped(r"\a{b}_1%") == r"\textbackslash{}a\{b\}\_1\%"
    assert escaped("--x") == "-{}-x"


def test_a_small_table_is_one_with_booktabs_rules():
    text = latex(TABLE)
    assert r"\caption{50 \% \& more. Note.}" in text
    assert (
        "\\label{tab:t}\n\\begin{tabular}{@{}lr@{}}\n\\toprule\na\\_b & n \\\\\n\\midrule\n" in text
    )
    assert "x\\textbar{}y & 1 $\\pm$ 2 \\\\\n" in text
    assert "z & \\textbf{3} \\\\\n" in text
    assert text.count(r"\begin{table}") == 1


def test_a_title_ends_in_one_mark():
    for title, text in (("Better?", "Better?"), ("Test accuracy in %", r"Test accuracy in \%.")):
        assert rf"\caption{{{text} Note.}}" in latex(replace(TABLE, title=title))


def test_a_wide_and_long_table_comes_in_parts_that_hold_every_cell_once():
    text = latex(WIDE)
    part_count = text.count(r"\begin{table}")
    assert part_count > 2
    assert text.count(r"\label") == 1
    assert f"part {part_count} of {part_count}." in text
    for k in range(70):
        for j in range(14):
            assert text.count(f"{k}{j}.25 $\\pm$ 0.31 (5)") == len(
                [1 for a in range(70) for b in range(14) if f"{a}{b}".endswith(f"{k}{j}")]
            )


def test_widths_are_no_less_than_those_of_computer_modern():
    assert width("0123456789") >= 50  # 5 pt a figure in cmr10
    assert width("MOON") >= 9.17 + 7.78 + 7.78 + 7.5
    assert (
        width("handwritten")
        >= 5.56 + 5 + 5.56 + 5.56 + 7.22 + 3.92 + 2.78 + 3.89 + 3.89 + 4.44 + 5.56
    )
    assert CELL < ROOM / 2


@pytest.mark.parametrize(
    "table", [TABLE, WIDE, Table("n", "Names", NAMES[:9], ["name"], [[n] for n in NAMES], (0,))]
)
def test_pdflatex_sets_it_within_the_column(table, tmp_path):
    compiled(latex(table), tmp_path)
