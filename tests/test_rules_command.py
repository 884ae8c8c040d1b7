"""`streammem rules`: what it measures is true, and the docstrings say the same."""

import inspect
import re

import pytest
import torch

from apps import cli, rules
from apps.cost import operations
from apps.rules import Widths, chunk_form, state_bytes, step_cost
from streammem.rules import RULES

SAID = {"Chunk form exact": "exact", "Chunk form of frozen gradients": "frozen", "No chunk form": "none"}


@pytest.mark.parametrize("name", RULES)
def test_every_docstring_says_its_chunk_form_or_that_there_is_none(name):
    words = " ".join(inspect.cleandoc(RULES[name].__doc__).split())
    said = [form for phrase, form in SAID.items() if phrase in words]
    assert said == [chunk_form(name)]


def test_every_rule_is_a_line_with_figures(capsys):
    assert cli.main(["rules", "--keys", "8", "--values", "8", "--heads", "2"]) == 0
    said = capsys.readouterr().out.splitlines()
    for name in RULES:
        (line,) = [x for x in said if x.startswith(f"{name} ")]
        assert re.match(rf"{name} +[\d,]+ (B|KiB) +[\d,]+ k +(exact|frozen|none) +\w", line), line


def test_the_state_is_measured_at_the_widths_that_are_given():
    widths = Widths(keys=8, values=6, heads=3)
    assert state_bytes("delta", widths) == 4 * 3 * 8 * 6
    assert state_bytes("kalman", widths) == 4 * 3 * 8 * 6 + 8 * 3 * 8 * 8  # the covariance is float64
    assert state_bytes("titans", widths) == 2 * 4 * 3 * (8 * 8 + 8 * 6)  # the memory and its momentum
    assert state_bytes("ttt_linear", widths) is None and state_bytes("ttt_linear", Widths(8, 8, 3)) > 0


def test_the_cost_is_that_of_the_equations():
    keys, values, heads = 8, 6, 3
    products = 2 * keys * values * heads
    assert step_cost("frozen", Widths(keys, values, heads)) == products
    # an outer product, its sum with the memory, a read; and the prediction, which the general form makes for both
    for name in ("hebbian", "delta"):
        assert step_cost(name, Widths(64, 64, 1)) == pytest.approx(4 * 2 * 64 * 64, rel=0.05)
    narrow, wide = (step_cost("kalman", Widths(width, width, 1)) for width in (32, 64))
    assert 3.5 < wide / narrow < 4.5  # the square of the width: no product of two covariances is left


def test_operations_are_counted():
    a, b = torch.ones(2, 3, 4), torch.ones(2, 4, 5)
    assert operations(lambda: a @ b) == 2 * 2 * 3 * 4 * 5
    assert operations(lambda: a + 1) == 24 and operations(lambda: a.sum()) == 24
    assert operations(lambda: a.mT[:1].expand(3, 4, 3)) == 0
    square = torch.eye(3).expand(2, 3, 3).contiguous()
    assert operations(lambda: torch.linalg.solve_ex(square, torch.ones(2, 3, 5))) >= 2 * (18 + 90)
    assert operations(lambda: a[0, 0] @ b[0]) == 2 * 4 * 5


def test_one_rule_is_said_whole(capsys):
    assert cli.main(["rules", "kalman"]) == 0
    said = capsys.readouterr().out
    assert "G = P' k^T s^{-1}" in said and "chunk form: none" in said and repr(RULES["kalman"]()) in said


def test_an_unknown_rule_gets_the_names(capsys):
    assert cli.main(["rules", "deltaa"]) == 2
    assert "no rule 'deltaa'; known: frozen, last_frame" in capsys.readouterr().err
    assert cli.main(["rules", "--keys", "0"]) == 2


def test_the_markdown_table_has_a_row_a_rule():
    head, line, *rows = rules.table()
    assert len(rows) == len(RULES) and len({row.count("|") for row in (head, line, *rows)}) == 1
