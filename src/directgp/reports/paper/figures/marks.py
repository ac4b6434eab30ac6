"""Colours, markers and lines of the rules and of values of β."""

from dataclasses import replace

from directgp.estimators.plots.canvas import BLUE, GREEN, ORANGE
from directgp.experiments.methods import METHODS
from directgp.experiments.paper.rules import RuleFacts
from directgp.reports.figures.inks import INK, PURPLE, Mark, mark_of

_RULES = {
    "exact": Mark(INK, "D", "-"),
    "bmc": Mark(ORANGE, "s", "-"),
    "smooth-bmc": Mark(PURPLE, "o", "-", filled=False),
    "ups": Mark(BLUE, "^", "-"),
    "ups-mixed": Mark(GREEN, "v", "-"),
}
"""The colour and the marker say which rule; the line how many samples."""

_DASHES = {1: ":", 10: "--", 100: "-"}
_OTHERWISE = "-."

_BETA_MARKERS = {0.1: "v", 1.0: "o", 10.0: "^"}


def mark_of_rule(rule: RuleFacts) -> Mark:
    """The same in every picture."""
    dash = "-" if rule.name == "exact" else _DASHES.get(rule.samples, _OTHERWISE)
    return replace(_RULES[rule.name], line=dash)


def mark_of_beta(method: str, beta: float) -> Mark:
    """Colour and line of the method, the marker of β."""
    return replace(mark_of(METHODS[method]), marker=_BETA_MARKERS.get(beta, "s"))
