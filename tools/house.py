"""Print the size and shape of the package: files, lines, importers, class names, journeys.

``python tools/house.py [SRC]`` measures the package under ``SRC`` (default ``src``). A journey runs
a command or a call in a process of its own, with ``sys.setprofile``, and counts the files of the
package in which a function was called. Every module is imported before, so imports do not count.
"""

import argparse
import ast
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import NamedTuple

MODEL = ("likelihoods", "log_expectations", "numerics", "posteriors", "predictive")
"""Packages of the model itself: which of their files run depends on likelihood and kernel."""

TRAINING = (*MODEL, "estimators", "metrics", "objectives", "training")
"""Packages of training; the journeys of the command line are counted without them."""

PRELUDE = """
import importlib, json, pkgutil, sys, warnings
from pathlib import Path
import numpy as np
import directgp
ROOT = str(Path(directgp.__file__).parent)
SEEN = {}
def profile(frame, event, argument):
    code = frame.f_code
    if event == "call" and code.co_filename.startswith(ROOT):
        SEEN.setdefault(code.co_filename, code.co_name)
def program(*words):
    from directgp.cli.main import app
    sys.setprofile(profile)
    try:
        app(list(words), standalone_mode=False)
    except SystemExit as error:
        if error.code:
            raise
warnings.simplefilter("ignore")
for module in pkgutil.walk_packages(directgp.__path__, "directgp."):
    if "__main__" not in module.name and "interop" not in module.name:
        importlib.import_module(module.name)
random = np.random.default_rng(0)
X = random.normal(size=(200, 2))
y = np.sin(2 * X[:, 0]) + 0.1 * random.normal(size=200)
"""

EPILOGUE = """
sys.setprofile(None)
found = {str(Path(name).relative_to(ROOT)): function for name, function in SEEN.items()}
Path("visited.json").write_text(json.dumps(found))
"""

TABLE = """
import pyarrow, pyarrow.parquet
Path("data").mkdir()
table = pyarrow.table({"a": X[:, 0], "b": X[:, 1], "y": y})
pyarrow.parquet.write_table(table, "data/pol.parquet")
"""

MODEL_AND_DATA = """
import torch
from directgp.likelihoods import Gaussian
from directgp.posteriors import SparsePosterior
inputs, targets = torch.as_tensor(X), torch.as_tensor(y)
def seeded():
    return torch.Generator().manual_seed(0)
def run(**settings):
    posterior = SparsePosterior.from_data(inputs, num_inducing=10, generator=seeded())
    options = dict(beta=1.0, hyperparameters="joint", optimizer="lbfgs", **settings)
    return directgp.train(posterior, Gaussian(), inputs, targets, **options)
"""


class Journey(NamedTuple):
    """A call of the package, and the packages whose files are not counted."""

    script: str
    without: tuple[str, ...]


JOURNEYS = {
    "fit, from `fit` to the fitted model": Journey(
        "from directgp import SparseGPRegressor\n"
        "model = SparseGPRegressor(max_iter=5, random_state=0)\n"
        "sys.setprofile(profile)\n"
        "model.fit(X, y)\n",
        MODEL,
    ),
    "compare, from argv to the report": Journey(
        TABLE + 'program("compare", "data/pol.parquet", "--target", "y", "--repeats", "2", '
        '"--sizes", "40", "--max-iter", "3", "--jobs", "1", "--out", "out")\n',
        TRAINING,
    ),
    "claim C3, from the cell to the verdict": Journey(
        TABLE + 'program("reproduce", "--claim", "C3", "--dataset", "pol", "--scale", "smoke", '
        '"--data-dir", "data", "--no-download", "--engine", "inline", "--out", "out")\n',
        (*TRAINING, "cli", "datasets", "plots", "reports"),
    ),
    "resume of `train`": Journey(
        MODEL_AND_DATA + "from directgp.training import Checkpoints, Monitor\n"
        "class Kill(Monitor):\n"
        "    def __call__(self, progress):\n"
        "        if progress.step == 8:\n"
        "            raise RuntimeError\n"
        "    def reset(self):\n"
        "        pass\n"
        'kept = Checkpoints("run.ckpt", every=2)\n'
        "try:\n"
        "    run(checkpoints=kept, monitors=[Kill()])\n"
        "except RuntimeError:\n"
        "    sys.setprofile(profile)\n"
        "run(checkpoints=kept)\n",
        MODEL,
    ),
    "log E[p] of a Poisson count": Journey(
        "import torch\n"
        "from directgp.likelihoods import Poisson\n"
        "y, mean, variance = (torch.tensor([v]) for v in (3.0, 0.5, 0.3))\n"
        "sys.setprofile(profile)\n"
        "directgp.log_expectation(Poisson(), y, mean, variance)\n",
        (),
    ),
}


def main() -> None:
    """Print every figure, and with ``--files`` the files of each journey."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("src", nargs="?", default="src", type=Path, help="folder of the package")
    parser.add_argument("--files", action="store_true", help="name the files of each journey")
    parser.add_argument("--static", action="store_true", help="run no journey")
    options = parser.parse_args()
    root = options.src / "directgp"
    trees = {p: ast.parse(p.read_text(encoding="utf-8")) for p in sorted(root.rglob("*.py"))}
    for name, value in static_figures(root, trees):
        print(f"{name:44} {value}")
    for name, journey in {} if options.static else JOURNEYS.items():
        visited = run_journey(options.src, journey)
        counted = [f for f in visited if f.split("/")[0] not in journey.without]
        print(f"{name:44} {len(counted)} files ({len(visited)} with all packages)")
        for file in visited if options.files else ():
            print(f"    {'' if file in counted else '· '}{file}:{visited[file]}")


def static_figures(root: Path, trees: dict[Path, ast.Module]) -> Iterator[tuple[str, object]]:
    """Return the figures that need no run, each with its name."""
    lines = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in trees}
    yield "files", len(lines)
    yield "lines", sum(lines.values())
    yield "median lines of a file", round(median(lines.values()))
    longest = max(lines, key=lambda path: lines[path])
    yield "longest file", f"{lines[longest]} ({longest.relative_to(root)})"
    functions = {
        node.end_lineno - node.lineno + 1: f"{path.relative_to(root)}:{node.name}"
        for path, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.end_lineno is not None
    }
    yield "longest function, with its docstring", f"{max(functions)} ({functions[max(functions)]})"
    single = list(single_importers(root, trees))
    yield "modules with one importer, in their package", f"{len(single)} {' '.join(single)}"
    duplicates = sorted(name for name, count in Counter(public_classes(trees)).items() if count > 1)
    yield "public class names that occur twice", f"{len(duplicates)} {' '.join(duplicates)}"
    checks = list(concrete_checks(root, trees))
    yield "isinstance checks on concrete families", f"{len(checks)} {' '.join(checks)}"


def module_name(root: Path, path: Path) -> str:
    """Return the dotted name of a file."""
    parts = path.relative_to(root.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(tree: ast.Module) -> Iterator[str]:
    """Yield the dotted names that a module imports, of modules or of their contents."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def single_importers(root: Path, trees: dict[Path, ast.Module]) -> Iterator[str]:
    """Yield the modules that one module of their own package imports, and no other."""
    importers = defaultdict(set)
    for path, tree in trees.items():
        for name in set(imported(tree)):
            importers[name].add(module_name(root, path))
    for path in trees:
        name = module_name(root, path)
        if path.name == "__init__.py" or len(importers[name]) != 1:
            continue
        (importer,) = importers[name]
        if importer.rpartition(".")[0] == name.rpartition(".")[0]:
            yield name.partition(".")[2]


def public_classes(trees: dict[Path, ast.Module]) -> Iterator[str]:
    """Yield the name of every class that does not begin with an underscore."""
    for tree in trees.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                yield node.name


def concrete_checks(root: Path, trees: dict[Path, ast.Module]) -> Iterator[str]:
    """Yield the `isinstance` checks on a likelihood, loss or rule outside of its package."""
    families = dict(concrete_families(root, trees))
    for path, tree in trees.items():
        package = path.relative_to(root).parts[0]
        for node in ast.walk(tree):
            if not (isinstance(node, ast.Call) and ast.unparse(node.func) == "isinstance"):
                continue
            named = {n.id for n in ast.walk(node.args[1]) if isinstance(n, ast.Name)}
            if any(families.get(name, package) != package for name in named):
                yield f"{path.relative_to(root)}:{node.lineno}"


def concrete_families(root: Path, trees: dict[Path, ast.Module]) -> Iterator[tuple[str, str]]:
    """Yield every exported final class of likelihoods, losses and rules, with its package."""
    for path, tree in trees.items():
        package = path.relative_to(root).parts[0]
        if package not in ("likelihoods", "objectives", "log_expectations"):
            continue
        for node in tree.body:
            decorators = getattr(node, "decorator_list", ())
            if isinstance(node, ast.ClassDef) and "final" in map(ast.unparse, decorators):
                if node.bases and not node.name.startswith("_"):
                    yield node.name, package


def run_journey(src: Path, journey: Journey) -> dict[str, str]:
    """Return the files that a journey visits, each with the first function called there."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "PYTHONPATH": str(src.resolve()), "OMP_NUM_THREADS": "1"}
        script = PRELUDE + journey.script + EPILOGUE
        subprocess.run(
            [sys.executable, "-c", script],
            cwd=folder,
            env=environment,
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        visited: dict[str, str] = json.loads(Path(folder, "visited.json").read_text())
    return visited


if __name__ == "__main__":
    main()
