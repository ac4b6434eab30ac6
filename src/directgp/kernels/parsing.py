"""Read an expression of kernels from text, without running any code."""

import ast
from math import prod
from typing import Any, NoReturn

from directgp.errors import InvalidInputError, refuse
from directgp.kernels.expression import Expression, Leaf, Product, Sum
from directgp.kernels.parts import PARTS
from directgp.text import one_line

_WHO = "kernel"

MAX_TEXT = 100_000
"""Characters of an expression: positions of ten thousand columns."""

_MAX_LEAVES = 100
"""Parts of an expression."""

_MAX_TERMS = 100
"""Terms of the sum that remains when products are multiplied out."""

_MAX_SHOWN = 300
"""Characters of a text in an error."""

_ALLOWED = "a sum or product of parts such as RBF('x') + Periodic('date', period='1y')"


def parse(text: str) -> Expression:
    """Return the expression of a text: the inverse of `repr`.

    Examples
    --------
    >>> parse('Matern52("x", "z") + Periodic("t", period="1y") * RBF("t")')
    Matern52('x', 'z') + Periodic('t', period='1y') * RBF('t')
    """
    if len(text) > MAX_TEXT:
        refuse(_WHO, f"of at most {MAX_TEXT:,} characters", f"{len(text):,}")
    try:
        tree = ast.parse(text.strip(), mode="eval")
        expression = _expression(tree.body, text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        if isinstance(error, InvalidInputError):
            raise
        _refuse(text, text)
    if sum(1 for _ in expression.leaves()) > _MAX_LEAVES:
        refuse(_WHO, f"of at most {_MAX_LEAVES} parts", "more of them")
    # Count before anything multiplies out: a product of n sums has 2ⁿ terms.
    if _num_terms(expression) > _MAX_TERMS:
        refuse(_WHO, f"of at most {_MAX_TERMS} terms", "a product of sums with more of them")
    return expression


def _num_terms(expression: Expression) -> int:
    """Return how many terms remain when products are multiplied out."""
    if isinstance(expression, Sum):
        return sum(map(_num_terms, expression.kernels))
    if isinstance(expression, Product):
        return prod(map(_num_terms, expression.kernels))
    return 1


def _expression(node: ast.expr, text: str) -> Expression:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Mult):
        sides = _expression(node.left, text), _expression(node.right, text)
        return Sum(*sides) if isinstance(node.op, ast.Add) else Product(*sides)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return _leaf(node, node.func.id, text)
    _refuse(ast.get_source_segment(text.strip(), node) or text, text)


def _leaf(node: ast.Call, name: str, text: str) -> Leaf:
    make = PARTS.get(name)
    if make is None:
        refuse(_WHO, f"made of the parts {', '.join(PARTS)}", f"{name!r} in {_shown(text)}")
    columns = [_constant(argument, text) for argument in node.args]
    make.check_names(tuple(columns))
    options: dict[str, Any] = {}
    names = [*make.defaults()]
    for keyword in node.keywords:
        if keyword.arg not in names:
            allowed = f"among {', '.join(names)}" if names else "left out: there are none"
            refuse(f"options of {name}", allowed, f"{keyword.arg!r}")
        options[keyword.arg] = _constant(keyword.value, text)
    return make(*columns, **options)


def _constant(node: ast.expr, text: str) -> Any:
    try:
        value = ast.literal_eval(node)
    except ValueError:
        value = ...
    if not isinstance(value, str | int | float | bool | None):
        _refuse(ast.get_source_segment(text.strip(), node) or text, text)
    return value


def _refuse(segment: str, text: str) -> NoReturn:
    where = "" if segment == text else f" in {_shown(text)}"
    refuse(_WHO, _ALLOWED, f"{_shown(segment)}{where}")


def _shown(text: str) -> str:
    """Return the start of a text, in quotes."""
    return repr(one_line(text, _MAX_SHOWN))
