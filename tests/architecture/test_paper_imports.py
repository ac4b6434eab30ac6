"""The paper's package uses public names of the library alone: names that are in `__all__`.

The library's tests use nothing of the paper's tests.
"""

import ast
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "paper" / "src" / "directgp_paper"
MODULES = sorted(SOURCE.rglob("*.py"))


def private_imports(code: str) -> Iterator[str]:
    """Yield the imports from directgp that are not of public names, as "module: name"."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.startswith("directgp."):
                    yield f"{alias.name}: the module itself"
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if module.partition(".")[0] == "directgp":
                public = () if module.count(".") > 1 else import_module(module).__all__
                for alias in node.names:
                    if alias.name not in public:
                        yield f"{module}: {alias.name}"


def named(path: Path) -> str:
    return str(path.relative_to(SOURCE))


def test_there_are_modules() -> None:
    assert len(MODULES) > 20


@pytest.mark.parametrize("path", MODULES, ids=named)
def test_only_public_names_are_imported(path: Path) -> None:
    assert list(private_imports(path.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize(
    "code",
    [
        "import directgp.experiments.store",
        "import directgp.experiments",
        "from directgp.experiments.store import Store",
        "from directgp.experiments import store",
        "from directgp.text import visible",
        "from directgp import registry",
        "def f():\n    from directgp.likelihoods.base import has",
    ],
)
def test_private_names_are_found(code: str) -> None:
    assert len(list(private_imports(code))) == 1


def test_public_names_are_not_found() -> None:
    code = "import directgp\nfrom directgp import train\nfrom directgp.experiments import Store"
    assert list(private_imports(code)) == []


def imported_modules(code: str) -> Iterator[str]:
    """Yield the names of all imported modules."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


def is_of_the_papers_tests(module: str) -> bool:
    return module.partition(".")[0] == "paper"


def test_the_librarys_tests_import_nothing_of_the_papers_tests() -> None:
    importers = [
        str(path.relative_to(ROOT))
        for folder in ("tests", "campaign", "benchmarks")
        for path in sorted((ROOT / folder).rglob("*.py"))
        if any(map(is_of_the_papers_tests, imported_modules(path.read_text(encoding="utf-8"))))
    ]
    assert importers == []


@pytest.mark.parametrize(
    "code",
    ["import paper.tests.reports.made", "def f():\n    from paper.tests.experiments import sweeps"],
)
def test_imports_of_the_papers_tests_are_found(code: str) -> None:
    assert any(map(is_of_the_papers_tests, imported_modules(code)))
