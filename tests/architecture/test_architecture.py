"""Rules for every module of the package."""

import ast
import re
from pathlib import Path

import pytest

import directgp

ROOT = Path(directgp.__file__).parent
MODULES = sorted(ROOT.rglob("*.py"))


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def calls(path: Path) -> set[str]:
    """What the module calls, as it is written: `eval`, `torch.load`."""
    return {ast.unparse(node.func) for node in ast.walk(tree(path)) if isinstance(node, ast.Call)}


def imported(path: Path) -> set[str]:
    """The modules that the module imports."""
    names = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {node.module or ""} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


FORBIDDEN_CALLS = {"eval", "exec", "compile", "torch.load", "yaml.load", "joblib.load", "os.system"}
FORBIDDEN_IMPORTS = {"pickle", "dill", "joblib", "torch.load", "yaml.load", "__future__"}


def test_there_are_modules() -> None:
    assert len(MODULES) > 20


@pytest.mark.parametrize("path", MODULES, ids=named)
def test_nothing_runs_what_it_reads(path: Path) -> None:
    assert not calls(path) & FORBIDDEN_CALLS
    assert not imported(path) & FORBIDDEN_IMPORTS


@pytest.mark.parametrize("path", MODULES, ids=named)
def test_nothing_seeds_or_configures_torch_for_everyone(path: Path) -> None:
    everyones = {"torch.manual_seed", "torch.seed", "torch.set_default_dtype", "np.random.seed"}
    assert not calls(path) & everyones
    # A worker is a process of our own, which nobody else configures; `one_thread` of arrays is a
    # context manager, which restores the number of threads.
    if named(path) not in ("experiments/workers.py", "numerics/arrays.py"):
        assert not re.search(r"set_num_threads|use_deterministic_algorithms", path.read_text())


@pytest.mark.parametrize("path", MODULES, ids=named)
def test_every_module_says_what_it_is(path: Path) -> None:
    docstring = ast.get_docstring(tree(path))
    assert docstring and docstring.splitlines()[0].endswith((".", "…"))


def exports(path: Path) -> list[str] | None:
    """`__all__`, where the module has one."""
    for node in tree(path).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    return None


def isort(name: str) -> tuple[int, str]:
    """Constants, then classes, then functions, as ruff sorts `__all__`."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2, name)


@pytest.mark.parametrize("path", [path for path in MODULES if exports(path)], ids=named)
def test_exports_are_sorted_and_exist(path: Path) -> None:
    names = exports(path)
    assert names is not None and names == sorted(names, key=isort)
    defined = {name.rsplit(".", 1)[-1] for name in imported(path)}
    for node in tree(path).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            defined.add(node.name)
        elif isinstance(node, ast.Assign):
            defined.add(ast.unparse(node.targets[0]))
        elif isinstance(node, ast.AnnAssign):
            defined.add(ast.unparse(node.target))
    assert set(names) <= defined


@pytest.mark.parametrize("path", sorted(ROOT.rglob("__init__.py")), ids=named)
def test_a_room_that_imports_exports(path: Path) -> None:
    own = {name for name in imported(path) if name.startswith("directgp")}
    checks = {"directgp.errors", "directgp.errors.require_extra"}
    assert not own - checks or exports(path)


def final_families() -> dict[str, str]:
    """Every final class of a likelihood, a point loss or a rule, with its package."""
    return {
        node.name: path.relative_to(ROOT).parts[0]
        for path in MODULES
        if path.relative_to(ROOT).parts[0] in ("likelihoods", "objectives", "log_expectations")
        for node in tree(path).body
        if isinstance(node, ast.ClassDef) and node.bases
        if "final" in map(ast.unparse, node.decorator_list)
    }


def test_no_package_asks_for_a_concrete_likelihood_loss_or_rule_of_another() -> None:
    families = final_families()
    assert {"Gaussian", "SquareLoss", "ClosedForm"} <= families.keys()
    found = [
        f"{named(path)}:{node.lineno}"
        for path in MODULES
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "isinstance"
        for name in ast.walk(node.args[1])
        if isinstance(name, ast.Name)
        if families.get(name.id, named(path).split("/")[0]) != named(path).split("/")[0]
    ]
    assert not found
