"""Test that every name on the API page can be imported."""

import importlib
import re
from pathlib import Path

import pytest

TEXT = (Path(__file__).parents[2] / "docs" / "api.md").read_text(encoding="utf-8")
OBJECTS = re.findall(r"^\.\. auto(?:class|exception|function):: ([\w.]+)", TEXT, re.MULTILINE)
MODULES = re.findall(r"^\.\. automodule:: ([\w.]+)", TEXT, re.MULTILINE)


@pytest.mark.parametrize("name", OBJECTS)
def test_objects_exist(name: str) -> None:
    module, _, attribute = name.rpartition(".")
    assert hasattr(importlib.import_module(module), attribute)


@pytest.mark.parametrize("name", MODULES)
def test_modules_exist(name: str) -> None:
    assert importlib.import_module(name).__all__
