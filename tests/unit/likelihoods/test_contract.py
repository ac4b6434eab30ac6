"""`Likelihood` stays a small contract: what one family needs is a part or a capability of it."""

from directgp.likelihoods import Likelihood

_OF_PYTHON = {"__module__", "__doc__", "__annotations__", "__abstractmethods__", "_abc_impl"}


def test_the_contract_is_small() -> None:
    members = vars(Likelihood).keys() - _OF_PYTHON
    assert len(members) <= 25, sorted(members)
