"""Words of the page that need saying."""

GLOSSARY = {
    "ELBO, β-ELBO": (
        "Training by the evidence lower bound; β-ELBO weighs its KL term by a β that is chosen by "
        "validation rows."
    ),
    "FITC": "The fully independent training conditional, by its own marginal likelihood.",
    "DLM": (
        "Direct loss minimization: the log loss (or square loss) of predictions plus β·KL. Joint "
        "trains everything, fixed keeps kernel, noise and inducing inputs of the ELBO."
    ),
    "exact, bMC, smooth-bMC, uPS": (
        "Ways to the gradient of the log loss: by a formula or quadrature; by samples of f inside "
        "the logarithm, which is biased; the same with a small constant added; and by samples of "
        "the product of q(f) and the likelihood, which is not biased. The number of samples "
        "follows the name."
    ),
    "NLL": "Mean negative log probability (or density) of test rows, of normalised targets.",
    "effect": (
        "The first minus the second, a mean over the repeats (or over test rows or draws, as its "
        "note says) with its standard error; or how much is lacking of what is claimed. Where the "
        "first has to be lower, negative is as claimed. p is two-sided, of no difference; where "
        "two have to be equal, the interval and the margin decide, not p."
    ),
    "repeat": "One random split into training, validation and test rows, shared by all methods.",
    "cell": "One training or one study: data, size, method, rule, β or grid, and repeat.",
}
"""Each word, and what it means."""
