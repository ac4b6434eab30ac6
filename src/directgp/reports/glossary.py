"""Words of the page that need saying."""

from directgp.experiments.standings import SIGNIFICANT
from directgp.metrics import Score
from directgp.reports.numbers import percent
from directgp.reports.scoreboard import CLOSE

PAPER = (
    "Yadi Wei, Rishit Sheth and Roni Khardon. Direct Loss Minimization for Sparse Gaussian "
    "Processes. Proceedings of AISTATS 2021, PMLR 130."
)

_ALWAYS = {
    "β": (
        "The weight of the KL term, which holds q(u) near the prior. The ELBO has β = 1; the "
        "others are trained for every β of a grid, and the one with the lowest loss on the "
        "validation rows is kept."
    ),
    "DLM": (
        "Direct loss minimization: training for the loss of the predictions themselves, such as "
        "the log loss, in place of a bound on the marginal likelihood."
    ),
    "joint, fixed": (
        "Joint trains kernel, noise and inducing inputs with the rest; fixed keeps those of the "
        "ELBO and trains q(u) alone."
    ),
    "repeat": (
        "One random split into rows to train on, to choose β by, and to judge by. All methods of "
        "a repeat have the same rows."
    ),
    f"bold, {CLOSE}": (
        f"Bold is the best mean of a column. {CLOSE} marks what cannot be told from it: the paired "
        f"test over the repeats has p ≥ {percent(SIGNIFICANT, 0)}. It is the corrected resampled "
        "t-test of Nadeau and Bengio (2003), which allows for splits that share rows. Many "
        "comparisons are made, so a single p just below the line is weak evidence."
    ),
}

_LONGER = {
    "nll": (
        "Negative log-likelihood: the mean of −log of the probability (or density) that was "
        "predicted for what came, in nats. Lower is better; it judges the mean and the "
        "uncertainty together, and a difference of 0.1 is a factor of 1.1 in probability."
    ),
    "crps": (
        "The distance of the predicted distribution from what came, in the units of the target. "
        "Lower is better, and it is more patient with outliers than NLL."
    ),
    "coverage": (
        "The share of test rows inside their central 90 % interval. Near 90 % is right; more says "
        "that the intervals are too wide, less that they are too narrow."
    ),
}


def glossary(scores: tuple[Score, ...]) -> dict[str, str]:
    """Each word, and what it means."""
    return {score.label: _LONGER.get(score.name, score.about) for score in scores} | _ALWAYS
