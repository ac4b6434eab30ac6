"""A fit, in one thread or in several at once, leaves the state of the process as it was."""

import locale
import logging
import os
import signal
import sys
import threading
import warnings
from typing import Any

import matplotlib
import numpy as np
import pytest
import torch

from directgp import SparseGPRegressor
from directgp.errors import DirectGPWarning
from directgp.posteriors.inducing import choose_inducing


def state() -> dict[str, Any]:
    return {
        "filters of warnings": list(warnings.filters),
        "showwarning": warnings.showwarning,
        # Not through `rcParams`, which would choose a backend.
        "matplotlib": dict(dict.items(matplotlib.rcParams)),
        "numpy errors": np.geterr(),
        "numpy numbers": np.random.get_state(),  # noqa: NPY002
        "torch numbers": torch.get_rng_state().tolist(),
        "threads": torch.get_num_threads(),
        "dtype": torch.get_default_dtype(),
        "gradients": torch.is_grad_enabled(),
        "Ctrl-C": signal.getsignal(signal.SIGINT),
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "locale": locale.getlocale(),
        "logging": logging.getLogger().level,
        "recursion": sys.getrecursionlimit(),
    }


def _fit(outputs: int) -> SparseGPRegressor:
    random_numbers = np.random.default_rng(outputs)
    X, y = random_numbers.normal(size=(40, 2)), random_numbers.normal(size=(40, outputs))
    model = SparseGPRegressor(beta=1.0, kernel="rbf", num_inducing=5, max_iter=2, random_state=0)
    return model.fit(X, y if outputs > 1 else y[:, 0])


@pytest.mark.filterwarnings("ignore")
def test_fit() -> None:
    before = state()
    for outputs in (1, 2):
        _fit(outputs).predict(np.zeros((1, 2)))
    after = state()
    changed = {name for name in before if str(before[name]) != str(after[name])}
    assert not changed


@pytest.mark.filterwarnings("ignore")
@pytest.mark.slow
def test_fits_in_threads() -> None:
    before = state()
    threads = [threading.Thread(target=_fit, args=(1 + k % 2,)) for k in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    after = state()
    changed = {name for name in before if str(before[name]) != str(after[name])}
    assert not changed


def test_filters_after_clusterings_that_overlap(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first to begin is not the first to end: saved and restored in turns, one would stay."""
    first_is_inside, second_has_ended = threading.Event(), threading.Event()

    class Clustering:
        def __init__(self, number: int, **_: Any) -> None:
            self.number = number

        def fit(self, rows: np.ndarray) -> None:
            if self.number == 2:
                first_is_inside.set()
                # With one thread inside at a time, the second cannot begin: no longer than this.
                second_has_ended.wait(0.2)
            else:
                second_has_ended.wait(0.4)
            self.cluster_centers_ = rows[: self.number]

    monkeypatch.setattr("sklearn.cluster.KMeans", Clustering)
    before, X = list(warnings.filters), torch.arange(10.0)[:, None]
    first = threading.Thread(target=choose_inducing, args=(X, 2))
    first.start()
    first_is_inside.wait()
    second = threading.Thread(target=choose_inducing, args=(X, 3))
    second.start()
    first.join()
    second.join()
    assert list(warnings.filters) == before


@pytest.mark.filterwarnings("ignore:.*Training has not converged")
def test_a_warning_of_an_output_names_it() -> None:
    X, y = np.random.default_rng(0).normal(size=(30, 2)), np.zeros((30, 2))
    X[:, 1] = 5.0
    y[:, 0] = X[:, 0]
    y[:, 1] = -X[:, 0]
    model = SparseGPRegressor(
        objective="elbo", beta=1.0, likelihood="gaussian", kernel="rbf", ard=True, max_iter=1
    )
    with pytest.warns(DirectGPWarning, match=r"Output \d: The same value") as caught:
        model.fit(X, y)
    texts = sorted(str(each.message)[:26] for each in caught if "same value" in str(each.message))
    assert texts == ["Output 0: The same value i", "Output 1: The same value i"]
