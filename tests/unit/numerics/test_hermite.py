"""The Gauss–Hermite rule: exactness, weights of far nodes, precision."""

import math
from collections.abc import Iterator

import pytest
import torch

from directgp.errors import InvalidInputError
from directgp.numerics.gaussian import gauss_hermite
from tests.reference.hermite import node_and_log_weight


@pytest.fixture
def restored_default_dtype() -> Iterator[None]:
    before = torch.get_default_dtype()
    yield
    torch.set_default_dtype(before)


@pytest.mark.parametrize("num_nodes", [1, 2, 3, 5, 20, 50])
def test_exact_for_polynomials_up_to_degree_2k_minus_1(num_nodes: int) -> None:
    nodes, log_weights = gauss_hermite(num_nodes)
    for degree in range(2 * num_nodes):
        terms = torch.exp(log_weights) * nodes**degree
        moment = 0 if degree % 2 else math.prod(range(1, degree, 2))
        assert abs(float(terms.sum()) - moment) <= 1e-12 * float(terms.abs().sum())


@pytest.mark.parametrize("num_nodes", [1, 2, 5])
def test_not_exact_for_degree_2k(num_nodes: int) -> None:
    nodes, log_weights = gauss_hermite(num_nodes)
    moment = math.prod(range(1, 2 * num_nodes, 2))
    assert float((torch.exp(log_weights) * nodes ** (2 * num_nodes)).sum()) < 0.9 * moment


@pytest.mark.parametrize("num_nodes", [20, 101, 300])
def test_nodes_and_log_weights_against_mpmath(num_nodes: int) -> None:
    nodes, log_weights = gauss_hermite(num_nodes)
    for index in (0, num_nodes // 4, num_nodes // 2 - 1):
        node, log_weight = node_and_log_weight(num_nodes, nodes[index].item())
        assert abs(float(nodes[index].item() - node)) < 1e-14 * float(abs(node))
        assert abs(float(log_weights[index].item() - log_weight)) < 1e-11


@pytest.mark.parametrize("num_nodes", [300, 1000])
def test_many_nodes_do_not_underflow(num_nodes: int) -> None:
    nodes, log_weights = gauss_hermite(num_nodes)
    assert log_weights.isfinite().all()
    assert log_weights.min() < -500
    log_mean = torch.logsumexp(log_weights + 12 * nodes, 0)
    torch.testing.assert_close(log_mean.item(), 72.0, rtol=1e-12, atol=0)


def test_symmetric_and_ascending() -> None:
    nodes, log_weights = gauss_hermite(31)
    assert torch.equal(nodes, -nodes.flip(0))
    assert torch.equal(log_weights, log_weights.flip(0))
    assert (nodes.diff() > 0).all()


@pytest.mark.parametrize("default", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.usefixtures("restored_default_dtype")
def test_default_dtype_does_not_matter(default: torch.dtype) -> None:
    expected = gauss_hermite(17)
    torch.set_default_dtype(default)
    for tensor, reference in zip(gauss_hermite(17), expected, strict=True):
        assert tensor.dtype == torch.float64
        assert torch.equal(tensor, reference)


def test_float32_is_the_float64_rule_rounded() -> None:
    for single, double in zip(gauss_hermite(9, torch.float32), gauss_hermite(9), strict=True):
        assert single.dtype == torch.float32
        assert torch.equal(single, double.float())


def test_result_is_the_callers_own() -> None:
    gauss_hermite(6)[0].zero_()
    assert gauss_hermite(6)[0].abs().max() > 1


def test_refuses_an_empty_rule() -> None:
    with pytest.raises(InvalidInputError, match=r"num_nodes must be at least 1\. Got 0\."):
        gauss_hermite(0)
