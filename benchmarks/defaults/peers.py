"""Other libraries, tuned as their documentation says and otherwise at their defaults.

Boosting stops early on held-out training rows. All use one thread and seed 0. A function fits a
method and returns a function that scores the test rows.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.stats import nbinom, poisson
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    StackingRegressor,
)
from sklearn.gaussian_process import GaussianProcessClassifier, GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.linear_model import BayesianRidge, LogisticRegression, PoissonRegressor
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from benchmarks.defaults.scores import (
    COVERAGE,
    Scores,
    count_scores,
    interval_scores,
    label_scores,
    normal_scores,
    poisson_or_wider,
)
from benchmarks.problems import Table

Array = NDArray[np.float64]
Judge = Callable[[], Scores]

HELD_OUT = 0.2
"""Share of the training rows for early stopping, noise or conformal intervals, where a library does
not choose it."""

_PATIENCE = {"ngboost": 20, "xgboost": 10, "catboost": 50}
"""Boosting rounds without progress on held-out rows."""

_EXACT_ROWS = 1000
_GP_INDUCING = 500
_GP_BATCH = 1024
_GP_EPOCHS = 300
_GP_EPOCH_ROWS = 5000
"""Larger tables have as many steps as this many rows."""

_DISPERSIONS = (1e-6, 1e2)
"""Bounds of a fitted dispersion; below the first the counts are Poisson."""


def fit(method: str, data: Table, device: str) -> Callable[[], tuple[Scores, dict[str, Any]]]:
    """Fit a method; return a function for its scores."""
    judge = _FITS[method](data)
    return lambda: (judge(), {})


def ngboost(data: Table) -> Judge:
    """NGBoost with normal, Bernoulli or Poisson distributions; it holds out a tenth itself."""
    from ngboost import NGBClassifier, NGBRegressor
    from ngboost.distns import Bernoulli, Normal, Poisson

    settings = {"verbose": False, "random_state": 0, "early_stopping_rounds": _PATIENCE["ngboost"]}
    if data.kind == "classification":
        classes = NGBClassifier(Dist=Bernoulli, **settings).fit(data.X, data.y.astype(int))
        best = {"max_iter": classes.best_val_loss_itr}
        return lambda: label_scores(data, classes.predict_proba(data.X_test, **best)[:, 1])
    counts = data.kind == "counts"
    y = data.y.astype(int) if counts else data.y
    model = NGBRegressor(Dist=Poisson if counts else Normal, **settings).fit(data.X, y)

    def judge() -> Scores:
        found = model.pred_dist(data.X_test, max_iter=model.best_val_loss_itr).params
        if counts:
            return count_scores(data, poisson(found["mu"]))
        return normal_scores(data, found["loc"], found["scale"])

    return judge


def xgb_distribution(data: Table) -> Judge:
    """XGBDistribution with normal or negative binomial distributions."""
    return _xgb(data, "negative-binomial" if data.kind == "counts" else "normal")


def xgb_poisson(data: Table) -> Judge:
    """XGBDistribution with Poisson distributions."""
    return _xgb(data, "poisson")


def _xgb(data: Table, distribution: str) -> Judge:
    """Use 500 trees at most and stop after 10 without progress, as in its documentation."""
    from xgboost_distribution import XGBDistribution

    X, X_held, y, y_held = _split(data)
    model = XGBDistribution(
        distribution=distribution,
        n_estimators=500,
        early_stopping_rounds=_PATIENCE["xgboost"],
        n_jobs=1,
        random_state=0,
    ).fit(X, y, eval_set=[(X_held, y_held)], verbose=False)

    def judge() -> Scores:
        found = model.predict(data.X_test)
        if distribution == "normal":
            return normal_scores(data, found.loc.astype(float), found.scale.astype(float))
        if distribution == "poisson":
            return count_scores(data, poisson(found.mu.astype(float)))
        return count_scores(data, nbinom(found.n.astype(float), found.p.astype(float)))

    return judge


def catboost(data: Table) -> Judge:
    """CatBoost with the losses RMSEWithUncertainty, Logloss or Poisson."""
    from catboost import CatBoostClassifier, CatBoostRegressor

    X, X_held, y, y_held = _split(data)
    losses = {"regression": "RMSEWithUncertainty", "counts": "Poisson", "classification": "Logloss"}
    kind = CatBoostClassifier if data.kind == "classification" else CatBoostRegressor
    model = kind(
        loss_function=losses[data.kind],
        early_stopping_rounds=_PATIENCE["catboost"],
        thread_count=1,
        random_seed=0,
        verbose=False,
        allow_writing_files=False,
    ).fit(X, y, eval_set=(X_held, y_held))

    def judge() -> Scores:
        if data.kind == "classification":
            return label_scores(data, model.predict_proba(data.X_test)[:, 1])
        if data.kind == "counts":
            mean = model.predict(data.X_test, prediction_type="Exponent")
            return count_scores(data, poisson(mean))
        mean, variance = model.predict(data.X_test, prediction_type="RMSEWithUncertainty").T
        return normal_scores(data, mean, np.sqrt(variance))

    return judge


def boosting(data: Table) -> Judge:
    """Histogram gradient boosting of scikit-learn, with early stopping.

    Held-out rows give the noise level, or the dispersion of negative binomial counts; then the
    model is trained on all rows.
    """
    settings = {"early_stopping": True, "random_state": 0}
    if data.kind == "classification":
        classes = HistGradientBoostingClassifier(**settings).fit(data.X, data.y)
        return lambda: label_scores(data, classes.predict_proba(data.X_test)[:, 1])
    loss = "poisson" if data.kind == "counts" else "squared_error"
    model = HistGradientBoostingRegressor(loss=loss, **settings)
    X, X_held, y, y_held = _split(data)
    held = model.fit(X, y).predict(X_held)
    model.fit(data.X, data.y)
    if data.kind == "counts":
        dispersion = fitted_dispersion(y_held, held)
        return lambda: count_scores(data, poisson_or_wider(model.predict(data.X_test), dispersion))
    std = np.full(len(data.y_test), np.sqrt(np.mean((y_held - held) ** 2)))
    return lambda: normal_scores(data, model.predict(data.X_test), std)


def stack(data: Table) -> Judge:
    """The trees of our stack as scikit-learn stacks them: a Bayesian ridge of their predictions.

    The ridge has the standardised features, too. Its predictions for training are out-of-fold.
    """
    trees = HistGradientBoostingRegressor(
        early_stopping=True, max_iter=500, min_samples_leaf=5, random_state=0
    )
    model = make_pipeline(
        StandardScaler(),
        StackingRegressor([("trees", trees)], BayesianRidge(), cv=5, passthrough=True),
    ).fit(data.X, data.y)
    return lambda: normal_scores(data, *model.predict(data.X_test, return_std=True))


def linear(data: Table) -> Judge:
    """Bayesian ridge, logistic regression, or a Poisson GLM with a fitted dispersion."""
    if data.kind == "classification":
        logistic = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
        logistic.fit(data.X, data.y)
        return lambda: label_scores(data, logistic.predict_proba(data.X_test)[:, 1])
    if data.kind == "counts":
        glm = make_pipeline(StandardScaler(), PoissonRegressor(alpha=1e-6, max_iter=1000))
        dispersion = fitted_dispersion(data.y, glm.fit(data.X, data.y).predict(data.X))
        return lambda: count_scores(data, poisson_or_wider(glm.predict(data.X_test), dispersion))
    ridge = make_pipeline(StandardScaler(), BayesianRidge()).fit(data.X, data.y)
    return lambda: normal_scores(data, *ridge.predict(data.X_test, return_std=True))


def mapie(data: Table) -> Judge:
    """Conformalised quantile regression (CQR) with LightGBM: intervals and medians."""
    from lightgbm import LGBMRegressor
    from mapie.regression import ConformalizedQuantileRegressor

    X, X_held, y, y_held = _split(data)
    trees = LGBMRegressor(objective="quantile", alpha=0.5, n_jobs=1, random_state=0, verbose=-1)
    model = ConformalizedQuantileRegressor(trees, confidence_level=COVERAGE).fit(X, y)
    model.conformalize(X_held, y_held)

    def judge() -> Scores:
        median, ends = model.predict_interval(data.X_test)
        return interval_scores(data, median, ends[:, 0, 0], ends[:, 1, 0])

    return judge


def exact_gp(data: Table) -> Judge:
    """Exact GP of scikit-learn with one lengthscale per feature, on 1000 rows at most."""
    X, y = data.X[:_EXACT_ROWS], data.y[:_EXACT_ROWS]
    kernel = ConstantKernel() * RBF(np.ones(X.shape[1]))
    if data.kind == "classification":
        classes = make_pipeline(StandardScaler(), GaussianProcessClassifier(kernel, random_state=0))
        classes.fit(X, y)
        return lambda: label_scores(data, classes.predict_proba(data.X_test)[:, 1])
    gp = GaussianProcessRegressor(kernel + WhiteKernel(), normalize_y=True, random_state=0)
    model = make_pipeline(StandardScaler(), gp).fit(X, y)
    return lambda: normal_scores(data, *model.predict(data.X_test, return_std=True))


def svgp(data: Table) -> Judge:
    """SVGP of GPyTorch, trained on the ELBO."""
    return _gpytorch(data, "VariationalELBO")


def ppgpr(data: Table) -> Judge:
    """The model of `svgp`, trained on GPyTorch's predictive log likelihood."""
    return _gpytorch(data, "PredictiveLogLikelihood")


def _gpytorch(data: Table, objective: str) -> Judge:
    """Train a variational GP as in GPyTorch's SVGP example.

    Constant mean, scaled RBF kernel with one lengthscale, the first rows as inducing inputs (a
    quarter of the rows, 500 at most), which are trained, batches of 1024 rows, Adam with rate 0.01,
    float32. The example has 4 epochs for half a million rows. Here there are 300 epochs up to 5000
    rows, and as many steps as for 5000 rows above. Inputs, and targets of a regression, are
    standardised.
    """
    import torch
    from gpytorch import distributions, kernels, likelihoods, means, mlls, models, variational

    class Model(models.ApproximateGP):
        def __init__(self, Z: torch.Tensor) -> None:
            q = variational.CholeskyVariationalDistribution(len(Z))
            super().__init__(variational.VariationalStrategy(self, Z, q))
            self.mean, self.kernel = means.ConstantMean(), kernels.ScaleKernel(kernels.RBFKernel())

        def forward(self, x: torch.Tensor) -> Any:
            return distributions.MultivariateNormal(self.mean(x), self.kernel(x))

    torch.manual_seed(0)
    labels = data.kind == "classification"
    scaler = StandardScaler().fit(data.X)
    shift, scale = (0.0, 1.0) if labels else (data.y.mean(), data.y.std())
    X = torch.tensor(scaler.transform(data.X), dtype=torch.float32)
    y = torch.tensor((data.y - shift) / scale, dtype=torch.float32)
    model = Model(X[: min(_GP_INDUCING, len(X) // 4)].clone())
    likelihood = (likelihoods.BernoulliLikelihood if labels else likelihoods.GaussianLikelihood)()
    loss = getattr(mlls, objective)(likelihood, model, num_data=len(y))
    adam = torch.optim.Adam([*model.parameters(), *likelihood.parameters()], lr=0.01)
    for _ in range(_GP_EPOCHS * min(len(y), _GP_EPOCH_ROWS) // len(y)):
        for rows in torch.randperm(len(y)).split(_GP_BATCH):
            adam.zero_grad()
            (-loss(model(X[rows]), y[rows])).backward()
            adam.step()

    def judge() -> Scores:
        model.eval()
        likelihood.eval()
        X_test = torch.tensor(scaler.transform(data.X_test), dtype=torch.float32)
        with torch.no_grad():
            found = [likelihood(model(x)) for x in X_test.split(_GP_BATCH)]
        mean = torch.cat([each.mean for each in found]).double().numpy()
        if labels:
            return label_scores(data, mean)
        std = torch.cat([each.stddev for each in found]).double().numpy()
        return normal_scores(data, shift + scale * mean, scale * std)

    return judge


def fitted_dispersion(y: Array, mean: Array) -> float:
    """Return the dispersion with the largest negative binomial likelihood, 0 if it is tiny."""

    def nll(log: float) -> float:
        return -float(poisson_or_wider(mean, np.exp(log)).logpmf(y).sum())

    low, high = np.log(_DISPERSIONS)
    found = minimize_scalar(nll, bounds=(low, high), method="bounded")
    return 0.0 if found.x < low + 1 else float(np.exp(found.x))


def _split(data: Table) -> tuple[Array, Array, Array, Array]:
    """Return the inputs and targets of the training rows, without and with those held out."""
    X, X_held, y, y_held = train_test_split(data.X, data.y, test_size=HELD_OUT, random_state=0)
    return X, X_held, y, y_held


_FITS: dict[str, Callable[[Table], Judge]] = {
    "NGBoost": ngboost,
    "XGBDistribution": xgb_distribution,
    "XGBDistribution Poisson": xgb_poisson,
    "CatBoost": catboost,
    "HistGradientBoosting": boosting,
    "scikit-learn stack": stack,
    "MAPIE": mapie,
    "GPyTorch SVGP": svgp,
    "GPyTorch PPGPR": ppgpr,
    "scikit-learn GP": exact_gp,
    "linear": linear,
}
