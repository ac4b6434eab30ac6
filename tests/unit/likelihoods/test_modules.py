"""Likelihoods are modules: state, copies, files and shared parameters."""

import copy
import io
import pickle

import pytest
import torch
from torch import Tensor

import directgp
from directgp.likelihoods import Likelihood
from directgp.likelihoods.counts import CountLikelihood
from tests.properties.tables import LIKELIHOODS, LikelihoodRow, columns, ordinary
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


@pytest.mark.parametrize("row", LIKELIHOODS, ids=named)
def test_state_dict_round_trip(row: LikelihoodRow) -> None:
    source, target = changed(row), row.make()
    assert len(source.state_dict()) == len(row.theta)
    target.load_state_dict(source.state_dict())
    assert torch.equal(predictions(target, row), predictions(source, row))


@pytest.mark.parametrize("row", LIKELIHOODS, ids=named)
def test_weights_only_file(row: LikelihoodRow) -> None:
    file = io.BytesIO()
    torch.save(changed(row).state_dict(), file)
    file.seek(0)
    target = row.make()
    target.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(predictions(target, row), predictions(changed(row), row))


@pytest.mark.parametrize("row", LIKELIHOODS, ids=named)
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


@pytest.mark.parametrize("row", LIKELIHOODS, ids=named)
def test_taking_shares_parameters(row: LikelihoodRow) -> None:
    likelihood = row.make()
    taken = likelihood.take(torch.tensor([0, 2]))
    for mine, other in zip(taken.parameters(), likelihood.parameters(), strict=True):
        assert mine is other
    assert likelihood.trainable == bool(row.theta)


@pytest.mark.parametrize("row", LIKELIHOODS, ids=named)
def test_what_is_not_trained_gets_no_gradient(row: LikelihoodRow) -> None:
    likelihood = row.make().requires_grad_(False)
    assert not likelihood.trainable
    assert not directgp.log_expectation(likelihood, *columns(ordinary(row))).requires_grad


@pytest.mark.parametrize("row", LIKELIHOODS, ids=named)
def test_a_module_in_float32_still_works(row: LikelihoodRow) -> None:
    """`model.float()` rounds the parameters and nothing else."""
    got = predictions(row.make().float(), row)
    torch.testing.assert_close(got, predictions(row.make(), row), rtol=1e-5, atol=1e-6)
