"""How findings are put into words."""

import math

from directgp.experiments.methods import METHODS
from directgp.experiments.paper.claims.base import Part
from directgp.experiments.standings import SIGNIFICANT

_TINY = 0.0001


def called(method: str) -> str:
    """``the ELBO``, ``log-loss DLM (joint)``."""
    name, comma, mode = METHODS[method].label.partition(", ")
    article = "the " if name.endswith("ELBO") else ""
    return f"{article}{name} ({mode})" if comma else f"{article}{name}"


def figure(value: float) -> str:
    """A number on its own, of three digits."""
    if math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    return _plain(value, 3)


def amount(value: float, error: float) -> str:
    """``0.431 ± 0.012``: as many digits as the error calls for; none told, none shown."""
    if not (math.isfinite(value) and math.isfinite(error) and error > 0):
        return figure(value)
    last = math.floor(math.log10(error)) - 1
    return f"{_rounded(value, last)} ± {_rounded(error, last)}"


def p_text(p_value: float) -> str:
    """``(p = 0.012)`` with a blank before it; nothing where there is no test."""
    if math.isnan(p_value):
        return ""
    if p_value < _TINY:
        return f" (p < {_TINY})"
    digits = 4 if abs(p_value - SIGNIFICANT) < 0.1 * SIGNIFICANT else 2
    return f" (p = {p_value:.{digits}g})"


def told(part: Part) -> str:
    """``0.43 ± 0.02 (p = 0.0003)``: the size of an effect, without its sign."""
    return amount(abs(part.effect), part.error) + p_text(part.p_value)


def _rounded(value: float, last: int) -> str:
    """To the power of ten that is last shown."""
    if last < -6:
        return _plain(value, 3)
    return f"{round(value, -last):,.{max(0, -last)}f}".replace("-", "−")


def _plain(value: float, digits: int) -> str:
    return f"{value:.{digits}g}".replace("-", "−")
