"""Versions of libraries."""

from importlib.metadata import version

import pytest

from directgp import environment


def test_a_library_that_is_not_installed_has_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "_LIBRARIES", ("torch", "directgp-that-is-not-there"))
    versions = environment.versions.__wrapped__()
    assert versions["torch"] == version("torch")
    assert versions["directgp-that-is-not-there"] == "not installed"
