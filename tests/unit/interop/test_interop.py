"""The packages of `directgp.interop` are found by their names."""

import pytest

import directgp


def test_packages_are_found_by_name() -> None:
    assert directgp.interop.gpytorch.__name__ == "directgp.interop.gpytorch"
    assert directgp.interop.botorch.__name__ == "directgp.interop.botorch"
    with pytest.raises(AttributeError, match="no attribute 'gpflow'"):
        directgp.interop.gpflow  # noqa: B018
