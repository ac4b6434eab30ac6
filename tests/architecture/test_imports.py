"""Heavy libraries are imported on first use only, and those of extras are not needed at all."""

import subprocess
import sys

STEPS = """
import io, os, sys, tempfile
from contextlib import redirect_stderr
from importlib.machinery import PathFinder

ABSENT = {
    "botorch", "jinja2", "markupsafe", "matplotlib", "mpmath", "onnx", "onnxruntime", "openpyxl",
    "pandas", "polars", "psutil", "pyarrow", "ray", "rich", "typer"
}

class Finder(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name in ABSENT else super().find_spec(name, path, target)

sys.meta_path = [Finder if each is PathFinder else each for each in sys.meta_path]

def check(*absent):
    found = [name for name in absent if name in sys.modules]
    assert not found, found

def refused(action, *words):
    try:
        action()
    except directgp.errors.MissingExtraError as error:
        assert all(word in str(error) for word in words), error
    else:
        raise AssertionError(words)

import directgp
check("torch", "numpy", "sklearn", "pydantic")
import torch, directgp.interop.gpytorch
check("directgp.estimators", "directgp.datasets")
from directgp import SparseGPRegressor
check("sklearn.cluster", "sklearn.impute", "sklearn.linear_model", "directgp.datasets")

# torch.broadcast_shapes would import a compiler, for half a second of the first fit.
from directgp.likelihoods import Poisson
from directgp.posteriors import SparsePosterior
X = torch.linspace(0, 1, 20, dtype=torch.float64).reshape(-1, 1)
posterior = SparsePosterior.from_data(X, None, num_inducing=3)
bar = directgp.training.ProgressBar()
with redirect_stderr(io.StringIO()) as shown:
    found = directgp.train(
        posterior, Poisson(), X, torch.ones(20).double(), max_steps=2, monitors=[bar]
    )
assert "2/2 steps, loss" in shown.getvalue(), shown.getvalue()
found.posterior.predict(X)
check("sympy", "torch._dynamo")

with redirect_stderr(io.StringIO()) as shown:
    model = SparseGPRegressor(beta=1.0, max_iter=2, num_inducing=3, verbose=1, random_state=0)
    model.fit(X.numpy(), X[:, 0].numpy())
assert "runs, " in shown.getvalue(), shown.getvalue()
with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "model.safetensors")
    model.save(path)
    assert (directgp.load(path).predict(X.numpy()) == model.predict(X.numpy())).all()

refused(lambda: model.plot_predictions(X.numpy()), "A plot needs matplotlib.", "directgp[plots]")
refused(lambda: directgp.datasets, "directgp.datasets needs psutil and pyarrow.", "directgp[cli]")
refused(lambda: directgp.interop.botorch, "needs botorch.", "directgp[botorch]")

import directgp.__main__
with redirect_stderr(io.StringIO()) as shown:
    try:
        directgp.__main__.main()
    except SystemExit as ending:
        assert ending.code == 2
assert shown.getvalue() == (
    "The program directgp needs typer, rich, psutil, pyarrow, jinja2 and matplotlib. "
    "Run: pip install 'directgp[cli]'.\\n"
), shown.getvalue()
"""


def test_without_extras_the_library_works_and_names_the_extra_to_install() -> None:
    command = [sys.executable, "-W", "ignore", "-c", STEPS]
    found = subprocess.run(command, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
