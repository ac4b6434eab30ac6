"""Heavy libraries are imported on first use only."""

import subprocess
import sys

STEPS = """
import sys, torch

def check(*absent):
    found = [name for name in absent if name in sys.modules]
    assert not found, found

import directgp, directgp.interop.gpytorch
check("botorch", "directgp.estimators")

import directgp.plots
check("matplotlib", "botorch")

# torch.broadcast_shapes would import a compiler, for half a second of the first fit.
from directgp.likelihoods import Poisson
from directgp.posteriors import SparsePosterior
X = torch.linspace(0, 1, 20, dtype=torch.float64).reshape(-1, 1)
posterior = SparsePosterior.from_data(X, None, num_inducing=3)
found = directgp.train(posterior, Poisson(), X, torch.ones(20).double(), max_steps=2)
found.posterior.predict(X)
check("sympy", "torch._dynamo", "matplotlib")
"""


def test_heavy_libraries_are_imported_on_first_use() -> None:
    found = subprocess.run([sys.executable, "-c", STEPS], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
