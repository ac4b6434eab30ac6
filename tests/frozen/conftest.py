"""Fixtures of the frozen tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder, so that relative paths are the same on every machine."""
    monkeypatch.chdir(tmp_path)
    for name in ("DIRECTGP_DATA", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def one_thread() -> Iterator[None]:
    """More threads add sums in another order."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
