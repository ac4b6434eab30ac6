"""Expressions: text and back, multiplication, errors."""

import copy
import pickle

import pytest
from sklearn.base import clone

from directgp import SparseGPRegressor
from directgp.errors import InvalidInputError
from directgp.kernels import RBF, Group, Linear, Matern52, Periodic, Sum, parse
from tests.unit.kernels.columns import EXPRESSIONS, PARTS


@pytest.mark.parametrize("text", [*PARTS, *EXPRESSIONS])
def test_text_gives_the_same_expression_again(text: str) -> None:
    expression = parse(text)
    assert repr(expression) == text
    assert parse(repr(expression)) == expression


def test_operators_make_the_expression_of_the_text() -> None:
    made = Matern52("x", "z") + Periodic("date", period="1y") * RBF("date") + Group("patient")
    text = 'Matern52("x", "z") + Periodic("date", period="1y") * RBF("date") + Group("patient")'
    assert made == parse(text)
    assert made != parse(text.replace("1y", "1w"))
    assert hash(made) == hash(parse(text))


def test_products_of_sums_are_multiplied_out() -> None:
    expression = (RBF("a") + Linear("b")) * (Group("c") + Periodic("d")) + RBF("e")
    assert expression.terms() == [(0, 2), (0, 3), (1, 2), (1, 3), (4,)]
    assert [type(leaf).__name__ for leaf in expression.leaves()] == [
        "RBF",
        "Linear",
        "Group",
        "Periodic",
        "RBF",
    ]


def test_sums_of_sums_are_one_sum() -> None:
    first = RBF("a") + (RBF("b") + RBF("c"))
    assert isinstance(first, Sum)
    assert first == (RBF("a") + RBF("b")) + RBF("c")


def test_copies_are_equal() -> None:
    expression = parse(EXPRESSIONS[0])
    assert copy.deepcopy(expression) == expression
    assert pickle.loads(pickle.dumps(expression)) == expression
    assert clone(SparseGPRegressor(kernel=expression)).kernel == expression


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("RBF('x') - RBF('y')", "RBF('x') - RBF('y')"),
        ("RBF('x') + 2", "'2'"),
        ("Gauss('x')", "Gauss"),
        ("RBF('x', width=2)", "'width'"),
        ("__import__('os').system('true')", "__import__"),
        ("RBF(open('x'))", "open"),
        ("RBF(['x'])", "['x']"),
        ("RBF('x'", "RBF('x'"),
        ("", "''"),
        ("Periodic('a', 'b')", "2"),
        ("Periodic()", "0"),
        ("Periodic('a', period='1 fortnight')", "fortnight"),
        ("Periodic('a', period=-1.0)", "a positive number"),
        ("Sphere('lat')", "1"),
        ("Sphere('lat', 'lon', nu=3.0)", "nu of Sphere"),
        ("RBF('x', 'x')", "different"),
        ("Additive('x', order=3)", "order of Additive"),
        ("Categorical('c', rank=0)", "rank of Categorical"),
        ("(" * 500 + "RBF('x')" + ")" * 500, "kernel"),
        (" + ".join(["RBF('x')"] * 101), "100 parts"),
        ("RBF('" + "x" * 100_000 + "')", "100,000"),
        (" * ".join(["(RBF('x') + RBF('z'))"] * 40), "100 terms"),
        ("RBF(0) + " * 10_000 + "RBF(0)", "RBF(0) + RBF(0)"),
        ("RBF(" + "-" * 90_000 + "1)", "---"),
        ("Gauss('" + "x" * 90_000 + "')", "'Gauss'"),
    ],
)
def test_wrong_text_raises_an_error_with_the_place(text: str, words: str) -> None:
    with pytest.raises(InvalidInputError) as raised:
        parse(text)
    assert words in str(raised.value)
    assert len(str(raised.value)) < 1000
