"""The packages of `directgp.interop` are found by their names."""

import importlib
import sys

import pytest

import directgp
from directgp.errors import MissingExtraError


def test_packages_are_found_by_name() -> None:
    assert directgp.interop.gpytorch.__name__ == "directgp.interop.gpytorch"
    assert directgp.interop.botorch.__name__ == "directgp.interop.botorch"
    with pytest.raises(AttributeError, match="no attribute 'gpflow'"):
        directgp.interop.gpflow  # noqa: B018


def test_without_botorch_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [each for each in sys.modules if each.partition(".")[0] == "botorch"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "directgp.interop.botorch", raising=False)
    # None in place of a module makes its import fail.
    monkeypatch.setitem(sys.modules, "botorch", None)
    words = r"interop.botorch needs botorch. Run: pip install 'directgp\[botorch\]'"
    with pytest.raises(MissingExtraError, match=words) as caught:
        importlib.import_module("directgp.interop.botorch")
    assert isinstance(caught.value, ImportError)
