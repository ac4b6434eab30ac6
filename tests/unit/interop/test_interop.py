"""GPyTorch and BoTorch are imported only on first use."""

import subprocess
import sys

import pytest

import directgp

CODE = """
import sys
import directgp
import directgp.interop.gpytorch
assert "botorch" not in sys.modules and "directgp.estimators" not in sys.modules
print(directgp.interop.gpytorch.DirectLogLoss.__name__)
"""


def test_gpytorch_without_botorch_and_estimators() -> None:
    told = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "DirectLogLoss"


def test_by_name() -> None:
    assert directgp.interop.gpytorch.__name__ == "directgp.interop.gpytorch"
    assert directgp.interop.botorch.__name__ == "directgp.interop.botorch"
    with pytest.raises(AttributeError, match="no attribute 'gpflow'"):
        directgp.interop.gpflow  # noqa: B018
