"""What is predicted of each row, by task, as columns of a table."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from directgp.cli.model_card import ModelCard
from directgp.likelihoods.counts import exposed
from directgp.predictive import predictive_variance
from directgp.shapes import Marginals

Column = NDArray[np.float64]
Columns = dict[str, pa.Array]
NUMBERS = ("mean", "sd", "lower", "upper")
PREDICTED = "predicted"


def schema_of(card: ModelCard) -> pa.Schema:
    """Names and types of the columns that `predicted_columns` makes."""
    names = NUMBERS if card.classes is None else _probabilities(card.classes)
    fields = [pa.field(name, pa.float64()) for name in names]
    return pa.schema(fields if card.classes is None else [*fields, (PREDICTED, pa.string())])


def predicted_columns(
    model: Any, card: ModelCard, X: Any, exposure: Column | None, coverage: float
) -> Columns:
    """Mean, deviation and interval of y, or probabilities of the classes and the predicted one."""
    return _BY_TASK[card.task](model, card, X, exposure, coverage)


def _real(model: Any, card: ModelCard, X: Any, exposure: Column | None, coverage: float) -> Columns:
    mean, sd = model.predict(X, return_std=True)
    return _numbers(mean, sd, *model.predict_interval(X, coverage))


def _count(
    model: Any, card: ModelCard, X: Any, exposure: Column | None, coverage: float
) -> Columns:
    mean = model.predict(X, exposure)
    return _numbers(
        mean, _deviation(model, X, exposure), *model.predict_interval(X, coverage, exposure)
    )


def _labels(
    model: Any, card: ModelCard, X: Any, exposure: Column | None, coverage: float
) -> Columns:
    classes = card.classes or ("0", "1")
    probabilities = model.predict_proba(X)
    columns = dict(zip(_probabilities(classes), map(pa.array, probabilities.T), strict=True))
    predicted = model.decision_function(X) > 0
    return {**columns, PREDICTED: pa.array(np.array(classes, dtype=object)[predicted.astype(int)])}


_BY_TASK: dict[str, Callable[..., Columns]] = {
    "regression": _real,
    "classification": _labels,
    "count": _count,
}


def _numbers(*columns: Column) -> Columns:
    return dict(zip(NUMBERS, map(pa.array, columns), strict=True))


def _probabilities(classes: tuple[str, str]) -> list[str]:
    return [f"p_{name}" for name in classes]


def _deviation(model: Any, X: Any, exposure: Column | None) -> Column:
    """Standard deviation of counts, from the marginals of f."""
    device = model.posterior_.Z.device
    mean, sd = (torch.as_tensor(each, device=device) for each in model.predict_latent(X))
    over = None if exposure is None else torch.as_tensor(exposure, device=device)
    with torch.no_grad():
        variance = predictive_variance(exposed(model.likelihood_, over), Marginals(mean, sd**2))
    found: Column = variance.sqrt().cpu().numpy()
    return found
