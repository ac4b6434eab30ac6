"""Processes that have the imports behind them: one fork server for all tests."""

import multiprocessing
import sys

import pytest

if sys.platform == "win32":
    pytest.skip("Windows has neither SIGKILL nor a fork server", allow_module_level=True)

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    [
        "tests.unit.experiments.cells",
        "tests.unit.training.killed",
        "tests.unit.training.torchrun_cases",
    ]
)
