"""How findings are put into words."""

import math

from directgp.experiments.methods import METHODS
from directgp.experiments.standings import SIGNIFICANT

TINY = 0.0001
"""What is smaller need not be told to a digit."""

_LEAST_P = 0.001
_DECIMALS = 6
"""More than that are told by a power of ten."""

_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def called(method: str) -> str:
    """``the ELBO``, ``log-loss DLM (joint)``."""
    name, comma, mode = METHODS[method].label.partition(", ")
    article = "the " if name.endswith("ELBO") else ""
    return f"{article}{name} ({mode})" if comma else f"{article}{name}"


def figure(value: float, digits: int = 3) -> str:
    """A number on its own: ``0.05``, ``13,828``, ``1.7·10⁻⁸``."""
    if math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if value == 0:
        return "0"
    decimals = digits - 1 - _exponent(value)
    if decimals > _DECIMALS:
        return f"{_fixed(value / 10.0 ** _exponent(value), digits - 1)}{_power(_exponent(value))}"
    text = _fixed(value, max(0, decimals))
    return text.rstrip("0").rstrip(".") if "." in text else text


def amount(value: float, error: float) -> str:
    """``0.431 ± 0.012``: as many digits as the error calls for; none told, none shown.

    One digit of the error is shown, and two where it is below 3.55, as physicists do.
    """
    if not (math.isfinite(value) and math.isfinite(error) and error > 0):
        return figure(value)
    exponent = _exponent(error)
    decimals = (error < 3.55 * 10.0**exponent) - exponent
    if decimals <= _DECIMALS:
        return f"{_fixed(value, decimals)} ± {_fixed(error, decimals)}"
    shared = _exponent(max(abs(value), error))
    scale, decimals = 10.0**shared, decimals + shared
    return (
        f"({_fixed(value / scale, decimals)} ± {_fixed(error / scale, decimals)}){_power(shared)}"
    )


def at_most_tiny(value: float, error: float) -> str:
    """The same of a size, where nothing below a ten-thousandth is of interest."""
    small = abs(value) + (error if math.isfinite(error) else 0.0) < TINY
    return f"less than {TINY:.4f}" if small else amount(value, error)


def p_text(p_value: float) -> str:
    """``p = 0.012``; near 0.05 with the digits that tell the side; nothing where there is none."""
    if math.isnan(p_value):
        return ""
    if p_value < _LEAST_P:
        return f"p < {_LEAST_P:g}"
    texts = (f"{p_value:.{digits}g}" for digits in range(2, 18))
    return f"p = {next((text for text in texts if float(text) != SIGNIFICANT), SIGNIFICANT)}"


def in_brackets(*remarks: str) -> str:
    """Those that say something, with a blank before the bracket."""
    said = ", ".join(remark for remark in remarks if remark)
    return f" ({said})" if said else ""


def _exponent(value: float) -> int:
    return math.floor(math.log10(abs(value)))


def _fixed(value: float, decimals: int) -> str:
    """With so many decimals, or rounded to tens, hundreds, …; a nought has no sign."""
    text = f"{round(value, decimals):,.{max(0, decimals)}f}"
    sign = "−" if text.startswith("-") and text.strip("-0.") else ""
    return sign + text.removeprefix("-")


def _power(exponent: int) -> str:
    return f"·10{str(exponent).translate(_RAISED)}"
