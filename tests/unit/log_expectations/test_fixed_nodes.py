"""A number of nodes that stays: learnt, given to all, and watched."""

import torch

from directgp.likelihoods import Probit
from directgp.log_expectations.elbo_term import FixedNodes, fixed_nodes, gibbs_term

CPU = torch.device("cpu")
Y, MEAN = torch.ones(4, dtype=torch.float64), torch.tensor([-2.0, 0.0, 1.0, 6.0]).double()


def term(variance: float) -> torch.Tensor:
    return gibbs_term(Probit(), Y, MEAN, torch.full_like(MEAN, variance))


def test_the_same_integral_with_the_nodes_that_were_learnt() -> None:
    nodes, expected = FixedNodes(), term(0.5)
    token = fixed_nodes.set(nodes)
    try:
        torch.testing.assert_close(term(0.5), expected, rtol=1e-15, atol=0)
        assert nodes.number > 16 and not nodes.recording
        nodes.record(CPU)
        number = nodes.number
        torch.testing.assert_close(term(0.5), expected, rtol=1e-9, atol=1e-11)
        assert nodes.number == number and not nodes.exceeded()
        term(400.0)
        term(0.5)
        assert nodes.exceeded(), "once too few is remembered"
    finally:
        fixed_nodes.reset(token)


def test_a_least_number_is_kept() -> None:
    nodes = FixedNodes(at_least=500)
    nodes.note(torch.tensor([10.0]))
    assert nodes.number == 500
