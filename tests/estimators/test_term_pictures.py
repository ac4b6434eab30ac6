"""Which picture a term gets, and its numbers."""

from typing import Any

import matplotlib
import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot as plt

from directgp import SparseGPClassifier, SparseGPRegressor
from directgp.errors import InvalidInputError, UnsupportedError
from directgp.estimators.term_pictures import term_pictures
from directgp.plots.parts import (
    TermCloud,
    TermCurve,
    TermImage,
    TermLevels,
    TermLines,
    TermMap,
    TermPicture,
)

pytestmark = [
    pytest.mark.usefixtures("without_shape_checks"),
    pytest.mark.filterwarnings("ignore::directgp.errors.DirectGPWarning"),
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
]

N = 150
LIGHT: dict[str, Any] = {
    "objective": "elbo",
    "beta": 1.0,
    "likelihood": "gaussian",
    "num_inducing": 30,
    "max_iter": 3,
    "random_state": 0,
}


@pytest.fixture(autouse=True)
def agg() -> None:
    matplotlib.use("Agg")


def table() -> pd.DataFrame:
    random = np.random.default_rng(0)
    days = pd.to_timedelta(random.uniform(0, 1500, N), unit="D")
    return pd.DataFrame(
        {
            "x": random.uniform(5, 7, N),
            "z": random.normal(size=N),
            "date": pd.Timestamp("2019-05-01") + days,
            "city": random.choice(["Bern", "Chur", "Zug"], N),
            "shop": [f"shop {k}" for k in random.integers(0, 70, N)],
            "lat": random.uniform(46, 47, N),
            "lon": random.uniform(6, 10, N),
        }
    )


TABLE = table()
Y = np.random.default_rng(1).normal(size=N) + TABLE["x"] + (TABLE["city"] == "Zug") + TABLE["lat"]


def fitted(kernel: str) -> SparseGPRegressor:
    return SparseGPRegressor(kernel=kernel, columns={"shop": "group"}, **LIGHT).fit(TABLE, Y)


def pictures(kernel: str, coverage: float = 0.9) -> list[TermPicture]:
    return term_pictures(fitted(kernel), TABLE, coverage, 0)


@pytest.mark.parametrize(
    ("kernel", "kinds"),
    [
        ("RBF('x')", [TermCurve]),
        ("RBF('date')", [TermCurve]),
        ("Periodic('date', period='1y') * RBF('date')", [TermCurve, TermLines, TermCurve]),
        ("Periodic('x')", [TermCurve]),
        ("Periodic('x', period=0.5) * Matern52('x') + Linear('x')", [TermCurve] * 2 + [TermLines]),
        ("Group('shop')", [TermLevels]),
        ("Categorical('city')", [TermLevels]),
        ("Group('shop') * Categorical('city')", [TermLevels]),
        ("Group('city') * Linear('x')", [TermLevels]),
        ("Group('city') * Linear('date')", [TermLevels]),
        ("RBF('x', 'city')", [TermLines]),
        ("Group('shop') * RBF('date')", [TermLines]),
        ("Sphere('lat', 'lon')", [TermMap]),
        ("Sphere('lat', 'lon') * RBF('x')", [TermCloud]),
        ("RBF('x', 'date')", [TermImage]),
        ("RBF('x', 'z', 'date', 'city')", [TermCloud]),
        ("Additive('x', 'z', order=2)", [TermCurve] * 2 + [TermImage]),
    ],
)
def test_each_term_has_its_picture(kernel: str, kinds: list[type[TermPicture]]) -> None:
    drawn = pictures(kernel)
    names = sorted(type(picture).__name__ for picture in drawn)
    expected = sorted(kind.__name__ for kind in kinds)
    # A term of a share near 0 is left out.
    assert set(names) <= set(expected) and len(names) <= len(expected)
    if len(kinds) == 1:
        assert names == expected
    axes = fitted(kernel).plot_parts(TABLE)
    assert len(axes) == len(drawn)
    axes[0].figure.canvas.draw()


def test_a_curve_is_that_of_decompose() -> None:
    model = fitted("RBF('x') + Categorical('city')")
    curve = next(p for p in term_pictures(model, TABLE, 0.8, 0) if isinstance(p, TermCurve))
    rows = TABLE.iloc[[0] * len(curve.x)].assign(x=curve.x)
    part = model.decompose(rows, coverage=0.8)["effect of x"]
    np.testing.assert_allclose(curve.mean, part.mean, atol=1e-8)
    np.testing.assert_allclose(curve.upper, part.upper, atol=1e-8)
    assert curve.x[0] == pytest.approx(TABLE["x"].min())
    assert curve.x[-1] == pytest.approx(TABLE["x"].max())


def test_levels_are_sorted_and_at_most_sixty() -> None:
    (picture,) = pictures("Group('shop')")
    assert isinstance(picture, TermLevels)
    assert len(picture.levels) == 60 and picture.among == TABLE["shop"].nunique()
    assert (np.diff(picture.mean) >= 0).all()
    part = fitted("Group('shop')").decompose(TABLE.head(1).assign(shop=picture.levels[0]))
    assert part[0].mean[0] == pytest.approx(picture.mean[0])


def test_slopes_are_per_unit_and_for_dates_per_year() -> None:
    model = fitted("Group('city') * Linear('date', origin=18000.0)")
    (picture,) = term_pictures(model, TABLE, 0.9, 0)
    assert isinstance(picture, TermLevels) and picture.target == "y per year"
    moments = pd.Timestamp("1970-01-01") + pd.to_timedelta([18000, 18000 + 365.2425], unit="D")
    rows = TABLE.head(2).assign(city=picture.levels[0], date=moments)
    first, second = model.decompose(rows)[0].mean
    assert first == pytest.approx(0, abs=1e-9) and second == pytest.approx(picture.mean[0])


def test_periods_of_a_season_begin_with_the_year() -> None:
    drawn = pictures("Periodic('date', period='1y') * Matern12('date')")
    lines = next(p for p in drawn if isinstance(p, TermLines))
    assert lines.names == ("2019", "2020", "2022") and lines.dates == "%b"
    curve = next(p for p in drawn if isinstance(p, TermCurve) and "season" in p.title)
    inside = np.interp(lines.x[lines.x < 11323 + 365] + 365 * 19 + 5, curve.x, curve.mean)
    # 1 January 2020 is 6,939 days after that of 2001.
    assert 365 * 19 + 4 == (pd.Timestamp("2020-01-01") - pd.Timestamp("2001-01-01")).days
    assert np.corrcoef(inside, lines.means[1][: len(inside)])[0, 1] > 0.9


def test_without_rows_inducing_inputs_give_the_ranges() -> None:
    (picture,) = term_pictures(fitted("RBF('x')"), None, 0.9, 0)
    assert isinstance(picture, TermCurve)
    assert TABLE["x"].min() - 0.5 < picture.x[0] < picture.x[-1] < TABLE["x"].max() + 0.5


def test_a_surface_covers_the_hull_of_the_places() -> None:
    (picture,) = pictures("Sphere('lat', 'lon')")
    assert isinstance(picture, TermMap)
    assert 0.6 < np.isfinite(picture.surface).mean() < 1
    assert np.isnan(picture.surface[0, 0]) and np.isfinite(picture.surface[20, 20])
    # The surface at the middle is near the mean of the nearest place.
    gaps = (picture.latitude - picture.rows[20]) ** 2 + (
        picture.longitude - picture.columns[20]
    ) ** 2
    assert picture.surface[20, 20] == pytest.approx(picture.mean[gaps.argmin()], abs=0.3)


def test_arguments_are_checked() -> None:
    model = fitted("RBF('x')")
    _, mine = plt.subplots()
    assert model.plot_parts(TABLE, ax=mine) == [mine]
    with pytest.raises(InvalidInputError, match=r"ax of plot_parts must be one for each of 1"):
        model.plot_parts(TABLE, ax=[mine, mine])
    with pytest.raises(InvalidInputError, match=r"latent of SparseGPRegressor\.plot_parts"):
        model.plot_parts(TABLE, latent=1)
    several = SparseGPRegressor(kernel="rbf", ard=False, **LIGHT)
    several.fit(TABLE[["x", "z"]], np.column_stack([Y, Y]))
    with pytest.raises(UnsupportedError, match="plot_parts is for one output"):
        several.plot_parts()


def test_a_class_has_its_own_pictures() -> None:
    light = LIGHT | {"likelihood": "softmax", "kernel": "RBF('x') + RBF('z')"}
    model = SparseGPClassifier(**light).fit(TABLE[["x", "z"]], TABLE["city"])
    axes = model.plot_parts(latent=model.posterior_.num_latent - 1)
    assert "f of Softmax" in axes[0].get_ylabel().replace("\n", " ")
