"""Likelihoods as modules, and the targets and parameters that they reject."""

import copy
import io
import pickle
import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import directgp
from directgp.errors import InvalidInputError
from directgp.likelihoods import (
    Beta,
    Gamma,
    Gaussian,
    GaussianKnownNoise,
    Likelihood,
    LogNormal,
    NegativeBinomial,
    StudentT,
    Tobit,
)
from directgp.likelihoods.counts import CountLikelihood
from tests.properties.tables import LIKELIHOODS, LikelihoodRow, columns, marked, ordinary
from tests.properties.test_accuracy import named


def predictions(likelihood: Likelihood, row: LikelihoodRow) -> Tensor:
    return directgp.log_expectation(likelihood, *columns(ordinary(row))).detach()


def changed(row: LikelihoodRow) -> Likelihood:
    """The likelihood with other parameters than it was made with."""
    likelihood = row.make()
    with torch.no_grad():
        for parameter in likelihood.parameters():
            parameter.add_(0.5)
    return likelihood


@pytest.mark.parametrize("row", marked(LIKELIHOODS), ids=named)
def test_state_dict_round_trip(row: LikelihoodRow) -> None:
    source, target = changed(row), row.make()
    assert len(source.state_dict()) == len(row.theta)
    target.load_state_dict(source.state_dict())
    assert torch.equal(predictions(target, row), predictions(source, row))


@pytest.mark.parametrize("row", marked(LIKELIHOODS), ids=named)
def test_weights_only_file(row: LikelihoodRow) -> None:
    file = io.BytesIO()
    torch.save(changed(row).state_dict(), file)
    file.seek(0)
    target = row.make()
    target.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(predictions(target, row), predictions(changed(row), row))


@pytest.mark.parametrize("row", marked(LIKELIHOODS), ids=named)
def test_copies_keep_predictions(row: LikelihoodRow) -> None:
    source = changed(row)
    for twin in (copy.deepcopy(source), pickle.loads(pickle.dumps(source))):
        assert type(twin) is type(source)
        assert torch.equal(predictions(twin, row), predictions(source, row))


@pytest.mark.parametrize("row", LIKELIHOODS[3:6], ids=named)
def test_copies_keep_exposures(row: LikelihoodRow) -> None:
    likelihood = changed(row)
    assert isinstance(likelihood, CountLikelihood)
    source = likelihood.with_exposure(torch.tensor([0.5, 1.0, 2.0, 7.0]))
    for twin in (copy.deepcopy(source), pickle.loads(pickle.dumps(source))):
        assert torch.equal(predictions(twin, row), predictions(source, row))
    assert not torch.equal(predictions(likelihood, row), predictions(source, row))


@pytest.mark.parametrize("row", marked(LIKELIHOODS), ids=named)
def test_taking_shares_parameters(row: LikelihoodRow) -> None:
    likelihood = row.make()
    taken = likelihood.take(torch.tensor([0, 2]))
    for mine, other in zip(taken.parameters(), likelihood.parameters(), strict=True):
        assert mine is other
    assert bool(likelihood.learned()) == bool(row.theta)


@pytest.mark.parametrize("row", marked(LIKELIHOODS), ids=named)
def test_what_is_not_trained_gets_no_gradient(row: LikelihoodRow) -> None:
    likelihood = row.make().requires_grad_(False)
    assert not likelihood.learned()
    assert not directgp.log_expectation(likelihood, *columns(ordinary(row))).requires_grad


@pytest.mark.parametrize("row", marked(LIKELIHOODS), ids=named)
def test_a_module_in_float32_still_works(row: LikelihoodRow) -> None:
    """`model.float()` rounds the parameters and nothing else."""
    got = predictions(row.make().float(), row)
    torch.testing.assert_close(got, predictions(row.make(), row), rtol=1e-5, atol=1e-6)


NAN, INF = float("nan"), float("inf")
REAL = [([0.0, NAN, 1.0], "nan at index 1"), ([INF, 0.0], "inf at index 0")]
LABEL = [
    *[([0.0, 1.0, 2.0], "2.0 at index 2"), ([-1.0, 1.0], "-1.0 at index 0")],
    *[([0.5], "0.5 at index 0"), ([0.0, NAN, NAN], "nan at index 1 (and 1 more)")],
]
COUNT = [
    *[([3.0, 0.5], "0.5 at index 1"), ([-1.0, -2.0, 3.0], "-1.0 at index 0 (and 1 more)")],
    *[([0.0, INF], "inf at index 1"), ([NAN], "nan at index 0")],
]


POSITIVE = [
    *[([3.0, 0.0], "0.0 at index 1"), ([-1.0, -2.0, 3.0], "-1.0 at index 0 (and 1 more)")],
    *[([1.0, INF], "inf at index 1"), ([NAN], "nan at index 0")],
]
PROPORTION = [
    *[([0.5, 0.0, 1.0], "0.0 at index 1 (and 1 more)"), ([0.5, 30.0], "30.0 at index 1")],
    *[([NAN], "nan at index 0")],
]
CLASS = [
    *[([0.0, 4.0], "4.0 at index 1"), ([-1.0, 1.0], "-1.0 at index 0")],
    *[([0.5], "0.5 at index 0"), ([3.0, NAN], "nan at index 1")],
]
CASES = {
    **{"real": REAL, "censored": REAL, "label": LABEL, "count": COUNT, "share": COUNT},
    **{"positive": POSITIVE, "proportion": PROPORTION, "class": CLASS},
}


@pytest.mark.parametrize("row", LIKELIHOODS, ids=named)
def test_targets_outside_the_support(row: LikelihoodRow) -> None:
    name = type(row.make()).__name__
    for y, got in CASES[row.target_kind]:
        with pytest.raises(InvalidInputError) as caught:
            row.make().check_targets(torch.tensor(y))
        assert str(caught.value).startswith(f"y of {name} must be ")
        assert f"Got {got}." in str(caught.value)


def test_the_index_of_a_batch_is_a_pair() -> None:
    y = torch.tensor([[0, 1], [1, 7]])
    with pytest.raises(InvalidInputError, match=re.escape("Got 7 at index (1, 1).")):
        LIKELIHOODS[1].make().check_targets(y)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int32, torch.uint8])
@pytest.mark.parametrize("row", marked(LIKELIHOODS), ids=named)
def test_targets_within_the_support(row: LikelihoodRow, dtype: torch.dtype) -> None:
    some = {"positive": [3, 1, 1], "proportion": []}.get(row.target_kind, [0, 1, 1])
    row.make().check_targets(torch.tensor(some, dtype=dtype))
    row.make().check_targets(torch.zeros(0, dtype=dtype))


def test_labels_may_be_booleans() -> None:
    for row in LIKELIHOODS[1:3]:
        row.make().check_targets(torch.tensor([True, False]))


@pytest.mark.parametrize("bad", [0.0, -2.0, NAN, INF])
@pytest.mark.parametrize("row", LIKELIHOODS[3:6], ids=named)
def test_an_exposure_that_is_not_positive_is_refused(row: LikelihoodRow, bad: float) -> None:
    likelihood = row.make()
    assert isinstance(likelihood, CountLikelihood)
    allowed = "positive, from 1e-150 to 1e+150"
    message = f"exposure of {type(likelihood).__name__} must be {allowed}. Got {bad!r} at"
    with pytest.raises(InvalidInputError, match=re.escape(message)):
        likelihood.with_exposure(torch.tensor([1.0, bad]))


PARAMETERS: list[tuple[str, Callable[[float | Tensor], Likelihood]]] = [
    ("noise of Gaussian", lambda value: Gaussian(noise=value)),
    ("df of StudentT", lambda value: StudentT(df=value)),
    ("scale of StudentT", lambda value: StudentT(scale=value)),
    ("dispersion of NegativeBinomial", lambda value: NegativeBinomial(dispersion=value)),
    ("extra of GaussianKnownNoise", lambda value: GaussianKnownNoise(extra=value)),
    ("shape of Gamma", lambda value: Gamma(shape=value)),
    ("noise of LogNormal", lambda value: LogNormal(noise=value)),
    ("precision of Beta", lambda value: Beta(precision=value)),
    ("noise of Tobit", lambda value: Tobit(noise=value)),
]


@pytest.mark.parametrize("bad", [0.0, -1.0, NAN, INF])
@pytest.mark.parametrize(("who", "make"), PARAMETERS, ids=[who for who, _ in PARAMETERS])
def test_parameters(who: str, make: Callable[[float | Tensor], Likelihood], bad: float) -> None:
    for value in (bad, torch.tensor([1.0, bad])):
        with pytest.raises(InvalidInputError, match=f"{who} must be positive and finite"):
            make(value)


@pytest.mark.parametrize("value", [1e-12, 1e-3, 0.3, 1.0, 39.0, 41.0, 1e8])
@pytest.mark.parametrize(("who", "make"), PARAMETERS, ids=[who for who, _ in PARAMETERS])
def test_parameters_keep_their_value(
    who: str, make: Callable[[float | Tensor], Likelihood], value: float
) -> None:
    name = who.split()[0]
    kept = getattr(make(value), name)
    assert kept.dtype == torch.float64
    assert kept.item() == pytest.approx(value, rel=1e-12)
