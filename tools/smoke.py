"""Install the wheel of `make build` into new environments, and use it as a user would.

``python tools/smoke.py dist``: first without extras (README's snippet, a saved model, packages, the
sentence for a missing extra), then with the extra `cli` (compare, fit and predict on a CSV; how to
install the paper's package), then with directgp-paper (its experiments, a report from the committed
results). Prints sizes and times. Nothing of the source tree can be imported there. Options of pip,
such as ``-c constraints.txt`` or an index, follow the folder.
"""

import os
import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

WITHOUT_EXTRAS = """
import subprocess, sys, time
began = time.perf_counter()
import directgp
imported = time.perf_counter()
from directgp import SparseGPCountRegressor, SparseGPClassifier, SparseGPRegressor, load, train
seconds = time.perf_counter() - imported
print(f"import directgp: {imported - began:.2f} s, then an estimator: {seconds:.2f} s")
import directgp.diagnostics, directgp.interop.gpytorch, directgp.metrics, directgp.plots
import directgp.likelihoods, directgp.log_expectations, directgp.objectives, directgp.posteriors
import directgp.predictive, directgp.training
import numpy as np
X = np.linspace(0, 6, 40)[:, None]
model = SparseGPRegressor(beta=1.0, random_state=0).fit(X, np.sin(X[:, 0]))
model.save("model.safetensors")
assert (load("model.safetensors").predict(X) == model.predict(X)).all()
for absent, use in (("matplotlib", lambda: model.plot_predictions(X)),
                    ("pyarrow", lambda: directgp.datasets)):
    try:
        use()
    except directgp.errors.MissingExtraError as error:
        assert absent in str(error) and "pip install 'directgp[" in str(error), error
    else:
        raise SystemExit(f"{absent} is not missing")
"""


def main() -> None:
    """Run the three stages."""
    folder, options = Path(sys.argv[1]).resolve(), sys.argv[2:]
    (wheel,) = folder.glob("directgp-*.whl")
    (paper,) = folder.glob("directgp_paper-*.whl")
    with tempfile.TemporaryDirectory() as place:
        here = Path(place)
        (here / "data.csv").write_text(table())
        venv.create(here / "env", with_pip=True)
        install(here, str(wheel), options)
        print("Without extras:", sizes(here))
        run(here, "python", "-c", WITHOUT_EXTRAS)
        run(here, "python", "-c", snippet((ROOT / "README.md").read_text(encoding="utf-8")))
        missing = run(here, "directgp", "--help", code=2)
        expect(missing.startswith("The program directgp needs ") and "Traceback" not in missing)
        install(here, f"{wheel}[cli]", options)
        print("With [cli]:", sizes(here))
        methods = ("--methods", "elbo,log-fixed", "--repeats", "2")
        shown = run(here, "directgp", "compare", "data.csv", "--target", "y", *methods)
        expect("index.html" in shown)
        run(here, "directgp", "fit", "data.csv", "--target", "y", "--out", "model")
        run(here, "directgp", "predict", "model", "data.csv", "--out", "predictions.csv")
        expect((here / "predictions.csv").read_text().count("\n") == ROWS + 1)
        print("compare, fit and predict work.")
        missing = run(here, "directgp", "reproduce", "--list", code=2)
        expect("pip install 'directgp[paper]'" in missing and "Traceback" not in missing)
        # An index may have no directgp of this version, which is installed.
        install(here, str(paper), [*options, "--no-deps"])
        expect("C14" in run(here, "directgp", "reproduce", "--list"))
        results = ROOT / "paper" / "docs" / "reproduction" / "results.parquet"
        only = ("--report-only", "--merge", str(results), "--out", "again")
        expect("index.html" in run(here, "directgp", "reproduce", *only))
        print("With directgp-paper: reproduce lists its experiments, and reports the results.")


ROWS = 60


def table() -> str:
    """Return a small CSV: y is a curve of x with a regular scatter."""
    rows = [f"{x / 10},{(x / 10 - 3) ** 2 + (x * 7 % 5) / 5}" for x in range(ROWS)]
    return "\n".join(["x,y", *rows]) + "\n"


def snippet(text: str) -> str:
    """Return the first python block of a page, which checks what it says that it prints."""
    block = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    expect(block is not None)
    code = block[1] if block else ""
    printed = re.findall(r"# prints: (.*)", code)
    expect(bool(printed))
    check = f"assert shown.getvalue().split() == {' '.join(printed).split()!r}, shown.getvalue()"
    start = (
        "import io, contextlib\nshown = io.StringIO()\nwith contextlib.redirect_stdout(shown):\n"
    )
    return start + "".join(f"    {line}\n" for line in code.splitlines()) + check


def install(here: Path, what: str, options: list[str]) -> None:
    """Install a wheel with pip."""
    run(here, "python", "-m", "pip", "install", "--quiet", *options, what)


def run(here: Path, program: str, *words: str, code: int = 0) -> str:
    """Run a program of the environment, and return what it printed."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    command = [str(here / "env" / "bin" / program), *words]
    ended = subprocess.run(command, cwd=here, env=clean, capture_output=True, text=True)
    if ended.returncode != code:
        raise SystemExit(f"{program} ended with {ended.returncode}:\n{ended.stdout}{ended.stderr}")
    if program == "python":
        print(ended.stdout, end="")
    return ended.stdout + ended.stderr


def sizes(here: Path) -> str:
    """Return the size of the installed packages."""
    (packages,) = (here / "env" / "lib").glob("python*/site-packages")
    megabytes = {path.name: size(path) for path in packages.iterdir()}
    torch = sum(
        value for name, value in megabytes.items() if name.startswith(("torch", "nvidia", "triton"))
    )
    own = megabytes["directgp"]
    whole = sum(megabytes.values())
    return f"{whole:.0f} MB, {whole - torch:.0f} without torch, directgp itself {own:.1f}"


def size(path: Path) -> float:
    """Return the size of a file or folder in MB."""
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file()) / 1e6


def expect(condition: bool) -> None:
    """Stop unless the condition holds."""
    if not condition:
        raise SystemExit("The smoke test failed.")


if __name__ == "__main__":
    main()
