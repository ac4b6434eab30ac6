"""Rules against each other, by the learning curves of joint log-loss DLM."""

from collections.abc import Callable, Collection, Iterable

from directgp.experiments.paper.cells import CurveCell, PaperCell
from directgp.experiments.paper.claims.contests import Contest
from directgp.experiments.paper.claims.curves import Chosen, Duel, duels
from directgp.experiments.paper.claims.fits import absence
from directgp.experiments.paper.results import Results
from directgp.experiments.paper.rules import RuleFacts


def rule(name: str, samples: int = 0) -> RuleFacts:
    """A rule by its name."""
    return RuleFacts.model_validate({"name": name, "samples": samples})


def is_joint(cell: CurveCell, datasets: Collection[str], beta: float | None = None) -> bool:
    """Whether a curve is of joint log-loss DLM on these data sets; of one β, if given."""
    joint = (cell.objective, cell.hyperparameters) == ("log_loss", "joint")
    return joint and cell.dataset in datasets and beta in (None, cell.beta)


def rule_duels(results: Results, of: Chosen, one: RuleFacts, other: RuleFacts) -> list[Duel]:
    """Curves that differ in nothing but the rule."""
    return duels(
        results,
        lambda cell: of(cell) and cell.rule == one,
        lambda cell: of(cell) and cell.rule == other,
        {"rule"},
    )


def rule_contest(
    results: Results, dataset: str, beta: float | None, one: RuleFacts, other: RuleFacts
) -> Contest:
    """At the end of the largest curves that there are."""
    found = rule_duels(results, lambda cell: is_joint(cell, (dataset,), beta), one, other)
    return as_contest(results, dataset, found[0] if found else None, one, other, beta)


def as_contest(
    results: Results,
    dataset: str,
    duel: Duel | None,
    one: RuleFacts,
    other: RuleFacts,
    beta: float | None = None,
) -> Contest:
    """Of a duel, if there is one."""
    if duel is None:
        wanted = uses_curves(lambda cell: is_joint(cell, (dataset,), beta), (one, other))
        why = absence(results, wanted)
        setting = "" if beta is None else f"β = {beta:g}"
        return Contest(dataset, setting, one.label, other.label, "NLL", None, why)
    evidence = duel.at_the_end()
    return Contest(dataset, duel.setting, one.label, other.label, "NLL", evidence, "")


def uses_curves(of: Chosen, rules: Iterable[RuleFacts]) -> Callable[[PaperCell], bool]:
    """Whether a cell is a curve of these, by one of these rules."""
    wanted = frozenset(rules)
    return lambda cell: isinstance(cell, CurveCell) and of(cell) and cell.rule in wanted
