"""Format numbers for reports."""

import math
from collections.abc import Sequence
from statistics import median

_LARGE, _MOST_DECIMALS = 1e6, 6

_TOLD = 0.05
"""`SIGNIFICANT` of the standings, which are not needed to write a number."""

_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def decimals_of(values: Sequence[float], errors: Sequence[float]) -> int:
    """Those that show a typical error; without errors, four digits of a typical value.

    One digit of the error is shown, and two where it is below 3.55, as physicists do.
    """
    known = [error for error in errors if math.isfinite(error) and error > 0]
    if known:
        typical = median(known)
        exponent = _exponent(typical)
        return max(0, -exponent + (typical < 3.55 * 10.0**exponent))
    sizes = [abs(value) for value in values if math.isfinite(value) and value != 0]
    return max(0, 3 - _exponent(median(sizes))) if sizes else 0


def number(value: float, decimals: int) -> str:
    """A number with so many decimals; with a power of ten where that is too long to read."""
    if math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if value and (abs(value) >= _LARGE or decimals > _MOST_DECIMALS):
        return _scientific(value)
    return _signed(f"{value:,.{min(decimals, _MOST_DECIMALS)}f}")


def whole(n: int) -> str:
    """``12,346``."""
    return f"{n:,}"


def with_error(value: float, error: float, decimals: int) -> str:
    """``0.366 ± 0.012``; without the error where it is not known."""
    if not math.isfinite(value) or not math.isfinite(error):
        return number(value, decimals)
    return f"{number(value, decimals)} ± {number(error, decimals)}"


def short(value: float, digits: int = 3) -> str:
    """A number on its own, such as a β, with so many digits."""
    if value == 0 or not math.isfinite(value):
        return number(value, 0)
    if not 1e-3 <= abs(value) < 1e5:
        return _scientific(value)
    text = f"{value:,.{max(0, digits - 1 - _exponent(value))}f}"
    return _signed(text.rstrip("0").rstrip(".") if "." in text else text)


def percent(share: float, decimals: int = 1) -> str:
    """``0.906`` as ``90.6 %``."""
    return f"{number(100 * share, decimals)} %" if math.isfinite(share) else "–"


def duration(seconds: float) -> str:
    """In the unit that is easiest to read."""
    if not math.isfinite(seconds):
        return "–"
    if seconds < 60:
        return f"{short(seconds, 2)} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def p_value(p: float) -> str:
    """``p = 0.012``, or that it is below 0.001; near 0.05 with the digits that tell the side."""
    if p < 0.001:
        return "p < 0.001"
    texts = (f"{p:.{digits}g}" for digits in range(2, 18))
    return f"p = {next((text for text in texts if float(text) != _TOLD), _TOLD)}"


def _exponent(value: float) -> int:
    return math.floor(math.log10(abs(value)))


def _scientific(value: float) -> str:
    mantissa, exponent = f"{value:.2e}".split("e")
    return f"{_signed(mantissa)}·10{str(int(exponent)).translate(_RAISED)}"


def _signed(text: str) -> str:
    return text.replace("-", "−")
