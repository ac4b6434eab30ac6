"""Fixtures of the frozen tests."""

from pathlib import Path

import pytest


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder, so that relative paths are the same on every machine."""
    monkeypatch.chdir(tmp_path)
    for name in ("DIRECTGP_DATA", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path
