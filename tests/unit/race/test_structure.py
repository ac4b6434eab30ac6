"""The search of structures on tables whose structure is known."""

from itertools import islice

import numpy as np
import pytest
import torch

from directgp.kernels import ColumnFacts
from directgp.likelihoods.gaussian import Gaussian
from directgp.posteriors.sparse import SparsePosterior
from directgp.race import structure
from directgp.race.structure import StructureSearch, Trial, rough_split
from directgp.training.data import Data
from directgp.training.validation import Folds, Forward, Split, Validation, split

pytestmark = pytest.mark.usefixtures("without_shape_checks")


@pytest.fixture(autouse=True)
def _small_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """Train for a few steps with few inducing inputs."""
    monkeypatch.setattr(structure, "_STEPS", 10)
    monkeypatch.setattr(structure, "_INDUCING", 20)


def splits_of(X: torch.Tensor, y: torch.Tensor, validation: Validation) -> list[Split]:
    """Return splits of rows for a Gaussian model."""
    likelihood = Gaussian(noise=0.1)
    posterior = SparsePosterior.from_data(X, y, num_inducing=5)
    generator = torch.Generator().manual_seed(0)
    parts = split(validation, Data(X, y, None), posterior, likelihood, generator)
    return [rough_split(part, likelihood) for part in parts]


def leaves(trial: Trial) -> set[str]:
    """Return the names of the parts."""
    return {type(leaf).__name__ for leaf in trial.expression.leaves()}


def test_a_series_with_a_trend_and_a_season_has_both() -> None:
    n = 96
    days = 30.44 * np.arange(n)
    season = np.sin(2 * np.pi * days / 365.2425)
    y = 0.02 * np.arange(n) + season + 0.1 * np.random.default_rng(0).normal(size=n)
    shift, scale = days.mean(), days.std()
    X = torch.tensor((days - shift) / scale).reshape(-1, 1)
    values = torch.tensor((y - y.mean()) / y.std())
    date = ColumnFacts("date", kind="time", shift=shift, scale=scale, unit="days")
    search = StructureSearch(splits_of(X, values, Forward(0, number=2, share=0.25)), [date])
    best, *_ = search.run()
    assert "Periodic" in leaves(best)
    assert "Linear" in leaves(best)
    assert "period='1y'" in repr(best.expression)
    # Noise of 0.1 in units of the deviation of y, and no more than a fifth above it.
    deviation = 0.1 / y.std()
    lowest = 0.5 * np.log(2 * np.pi * np.e * deviation**2)
    assert best.loss < lowest + 0.2
    assert search.decisions[0].startswith("Kernel: ")
    assert "date" in search.decisions[0]


def test_groups_and_categories_are_found_among_numbers() -> None:
    rng = np.random.default_rng(1)
    n = 200
    x = rng.normal(size=n)
    person = rng.integers(0, 20, n)
    effects = rng.normal(size=20)
    y = np.sin(2 * x) + effects[person] + 0.1 * rng.normal(size=n)
    X = torch.tensor(np.column_stack([x, person]))
    columns = [ColumnFacts("x"), ColumnFacts("person", kind="group", num_levels=20)]
    search = StructureSearch(splits_of(X, torch.tensor(y), Folds(2)), columns)
    best, *_ = search.run()
    assert "Group" in leaves(best)
    assert {"Matern52"} <= leaves(best)
    (first,) = islice(best.expression.leaves(), 1)
    alone = search.trial(first)
    assert alone is not None
    assert best.loss < alone.loss


def test_noise_has_no_more_than_one_part() -> None:
    rng = np.random.default_rng(2)
    X = torch.tensor(np.column_stack([rng.normal(size=120), rng.integers(0, 5, 120)]))
    y = torch.tensor(rng.normal(size=120))
    columns = [ColumnFacts("x"), ColumnFacts("c", kind="category", num_levels=5)]
    search = StructureSearch(splits_of(X, y, Folds(2)), columns)
    trials = search.run()
    assert all(len(trial.expression.terms()) == 1 for trial in trials)
    assert len(search.decisions) == 1


def test_no_further_structure_is_tried_after_the_deadline() -> None:
    rng = np.random.default_rng(3)
    X = torch.tensor(np.column_stack([rng.normal(size=60), rng.integers(0, 3, 60)]))
    y = torch.tensor(rng.normal(size=60))
    columns = [ColumnFacts("x"), ColumnFacts("g", kind="group", num_levels=3)]
    search = StructureSearch(splits_of(X, y, Folds(2)), columns, deadline=0.0)
    # The plain kernel is the first and only one.
    assert search.run() == []
    assert len(search.decisions) == 1
