"""The tables are complete and agree with the declarations of the rules."""

import importlib
import inspect
import pkgutil

import pytest

import directgp
from directgp.likelihoods import HeteroscedasticGaussian, Likelihood, RobustMax, Softmax
from directgp.log_expectations import Rule
from tests.properties.tables import INTERNAL_LIKELIHOODS, LIKELIHOODS, RULES, RuleRow


def concrete(base: type) -> set[type]:
    """Every class of the package below `base` that can be instantiated."""
    for module in pkgutil.walk_packages(directgp.__path__, "directgp."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    found: set[type] = set()
    waiting = [base]
    while waiting:
        cls: type
        for cls in waiting.pop().__subclasses__():
            waiting.append(cls)
            if not inspect.isabstract(cls) and cls.__module__.startswith("directgp."):
                found.add(cls)
    return found


def test_every_likelihood_has_a_row() -> None:
    rows = {type(row.make()) for row in LIKELIHOODS}
    # Those of several latents have tests of their own, in tests/unit/likelihoods.
    several = {HeteroscedasticGaussian, RobustMax, Softmax}
    assert concrete(Likelihood) == rows | several | INTERNAL_LIKELIHOODS


def test_every_rule_has_a_row() -> None:
    assert concrete(Rule) == {type(row.rule) for row in RULES}


@pytest.mark.parametrize("row", RULES, ids=lambda row: row.name)
def test_rules_declare_what_the_table_says(row: RuleRow) -> None:
    assert row.rule.deterministic == row.deterministic
    assert row.rule.unbiased_gradient == row.unbiased_gradient
