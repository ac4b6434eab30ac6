"""Damaged and forged model files, checkpoints and model folders: refused, or as good as before.

A damaged file has other bytes; a forged one has another entry or tensor, and a right checksum.
"""

import contextlib
import copy
import hashlib
import io
import json
import math
import os
import random
import shutil
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gpytorch.kernels import PeriodicKernel, RBFKernel, ScaleKernel
from safetensors.torch import save as packed

import directgp
from campaign.trials import FOLDER, HELD, Trial
from directgp import SparseGPClassifier, SparseGPCountRegressor, SparseGPRegressor
from directgp.errors import CheckpointError, DirectGPError, ModelFileError
from directgp.io import CHECKSUM, Contents, FileKind, digest, read_file
from directgp.likelihoods import Gaussian, StudentT
from directgp.log_expectations import BiasedMonteCarlo
from directgp.objectives import LogLoss, PinballLoss
from directgp.persistence import MODEL
from directgp.posteriors import SparsePosterior
from directgp.training import Checkpoints, TrainingResult
from directgp.training.checkpoint import CHECKPOINT

SUMS = ("refused", "loaded")

_CORPUS = FOLDER / "corpus"
"""Sound files, written once."""

# Sound files


def _data() -> tuple[Any, Any]:
    draw = np.random.default_rng(0)
    X = draw.normal(size=(30, 2))
    return X, np.sin(2 * X[:, 0]) + 0.1 * draw.normal(size=30)


def _fits() -> dict[str, Callable[[], Any]]:
    """Return a fit of each kind of model, by name."""
    X, y = _data()
    counts, classes = np.round(np.exp(y)), np.digitize(y, [-0.5, 0.5])
    two = np.where(y > 0, "yes", "no")
    quick = {"num_inducing": 4, "max_iter": 2, "random_state": 0}
    chosen = quick | {"beta": 1.0, "hyperparameters": "joint"}
    positive, share = np.exp(y), 1 / (1 + np.exp(-y))
    named = _table(X, ["width", "höhe"])
    holes = np.where(np.arange(60).reshape(30, 2) % 7 == 0, np.nan, X)
    kernel = ScaleKernel(PeriodicKernel()) + RBFKernel(ard_num_dims=2)

    def numbers(likelihood: Any, target: Any = y, rows: Any = None, **more: Any) -> Any:
        model = SparseGPRegressor(likelihood=likelihood, **chosen | more)
        return model.fit(X, target, **rows or {})

    def counted(likelihood: str, **rows: Any) -> Any:
        return SparseGPCountRegressor(likelihood=likelihood, **chosen).fit(X, counts, **rows)

    def labelled(likelihood: str, target: Any = classes) -> Any:
        return SparseGPClassifier(likelihood=likelihood, **chosen).fit(X, target)

    hours = np.linspace(0.5, 2, 30)
    return {
        "gaussian": lambda: numbers("gaussian", dtype="float32"),
        "student_t": lambda: numbers(StudentT()),
        "pinball": lambda: numbers(Gaussian(0.1), objective=PinballLoss(0.7)),
        "heteroscedastic": lambda: numbers("heteroscedastic"),
        "gamma": lambda: numbers("gamma", positive),
        "beta": lambda: numbers("beta", share),
        "log_normal": lambda: numbers("log_normal", positive, kernel=kernel),
        "known noise": lambda: numbers("gaussian_known_noise", rows={"noise": hours}),
        "tobit": lambda: numbers("tobit", rows={"upper": y + (y > 0.5)}),
        "searched": lambda: SparseGPRegressor(**quick).fit(named, y),
        "imputed": lambda: SparseGPRegressor(missing="impute", **chosen).fit(holes, y),
        "outputs": lambda: SparseGPRegressor(**chosen).fit(
            named, _table(np.stack([y, positive], axis=1), ["a", "b"])
        ),
        "probit": lambda: SparseGPClassifier(likelihood="probit", **quick).fit(named, two),
        "logistic": lambda: SparseGPClassifier(
            objective=LogLoss(BiasedMonteCarlo(5)), likelihood="logistic", **chosen
        ).fit(X, y > 0),
        "softmax": lambda: labelled("softmax"),
        "robust_max": lambda: labelled("robust_max"),
        "ordinal": lambda: labelled("ordinal", classes.astype(float)),
        "poisson": lambda: counted("poisson"),
        "negative_binomial": lambda: counted("negative_binomial", exposure=hours),
        "com_poisson": lambda: counted("com_poisson"),
        "binomial": lambda: counted("binomial", trials=counts + 2),
        "zero_inflated_poisson": lambda: counted("zero_inflated_poisson"),
    }


def _table(values: Any, names: list[str]) -> Any:
    import pandas as pd

    return pd.DataFrame(values, columns=names)


_RUNS: dict[str, dict[str, Any]] = {
    "lbfgs": {"max_steps": 9},
    "adam": {"optimizer": "adam", "batch_size": 8, "max_steps": 9, "start": "scratch"},
}


def train(name: str, path: Path, max_steps: int | None = None) -> TrainingResult:
    """Train from the start or from a checkpoint, with a write after each third step."""
    X, y = (torch.as_tensor(column) for column in _data())
    posterior = SparsePosterior.from_data(
        X, y, num_inducing=4, generator=torch.Generator().manual_seed(0)
    )
    stop: dict[str, Any] = {}
    if max_steps is not None:
        stop["monitors"] = [_StopAt("log_loss", max_steps)]
    return directgp.train(
        posterior,
        Gaussian(0.1),
        X,
        y,
        checkpoints=Checkpoints(path, every=3),
        generator=torch.Generator().manual_seed(5),
        **_RUNS[name],
        **stop,
    )


class _StopAt(directgp.training.Monitor):
    """Ends the run at a step."""

    def __init__(self, stage: str, step: int) -> None:
        self.at = stage, step

    def __call__(self, progress: directgp.training.Progress) -> directgp.training.Stop | None:
        if (progress.stage, progress.step) != self.at:
            return None
        return directgp.training.Stop(directgp.training.Status.CANCELLED, "Stopped.")

    def reset(self) -> None:
        pass

    def __repr__(self) -> str:
        # Settings are part of a checkpoint, and this one is not of the run that resumes.
        return ""


@cache
def corpus() -> dict[str, Path]:
    """Return the sound files by kind and name; write those that are missing."""
    _CORPUS.mkdir(parents=True, exist_ok=True)
    paths = {}
    fits = _fits()
    with _quiet():
        for name, fit in fits.items():
            path = paths[f"model {name}"] = _CORPUS / f"{name}.safetensors"
            if not path.exists():
                fit().save(path)
        for name in _RUNS:
            path = paths[f"checkpoint {name}"] = _CORPUS / f"{name}.checkpoint"
            if not path.exists():
                draft = path.with_suffix(f".{os.getpid()}")
                train(name, draft, max_steps=7)
                draft.replace(path)
        for task in ("regression", "classification", "count"):
            path = paths[f"folder {task}"] = _CORPUS / task
            if not path.exists():
                _fit_folder(task, path)
    return paths


def _fit_folder(task: str, path: Path) -> None:
    """Run `directgp fit` for a small table."""
    X, y = _data()
    targets = {
        "regression": y,
        "classification": np.array(["a", "b", "c"])[np.digitize(y, [-0.5, 0.5])],
        "count": np.round(np.exp(y)).astype(int),
    }
    table = _table(X, ["width", "height"]).assign(
        kind=np.array(["p", "q", "r"])[np.arange(30) % 3], hours=1.0 + np.arange(30) % 4
    )
    with tempfile.TemporaryDirectory() as here:
        data = Path(here) / "table.csv"
        table.assign(target=targets[task]).to_csv(data, index=False)
        shutil.copy(data, path.with_suffix(".csv"))
        extra = ["--exposure", "hours"] if task == "count" else ["--task", task]
        words = ["fit", data, "--target", "target", *extra, "--beta", "1", "--inducing", "4"]
        draft = path.with_suffix(f".{os.getpid()}")
        words += ["--hyperparameters", "joint", "--max-iter", "2", "--out", draft]
        code, said = command(*words)
        if code:
            raise RuntimeError(said)
        draft.replace(path)


def command(*words: object) -> tuple[int, str]:
    """Run a command in this process; return its exit code and all that it printed."""
    from typer.testing import CliRunner

    from directgp.cli.main import app

    result = CliRunner().invoke(app, list(map(str, words)), prog_name="directgp")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


# Answers


def answers(model: Any) -> dict[str, Any]:
    """Return all that a model says of a few rows, as arrays and texts."""
    members = vars(model).get("outputs_")
    if members is not None:
        parts = [answers(member) for member in members]
        answered = {f"{k} {name}": at for k, part in enumerate(parts) for name, at in part.items()}
        answered["predict"] = model.predict(_rows(model))
        return answered | {"summary": model.summary(), "repr": repr(model)}
    rows = _rows(model)
    n, likelihood = len(rows), model.likelihood_
    constants: dict[str, Any] = {}
    argument = likelihood.rows.argument
    if argument is not None and (model.exposed_ or argument == "noise"):
        values = {"exposure": 1.5, "trials": 6.0, "noise": 0.3, "upper": math.inf}
        constants[argument] = np.full(n, values[argument])
    answered = {"latent": np.stack(model.predict_latent(rows))}
    if isinstance(model, SparseGPClassifier):
        y = np.resize(model.classes_, n)
        answered |= {"predict": model.predict(rows), "proba": model.predict_proba(rows)}
        answered["log density"] = model.log_density(rows, y)
    else:
        y = np.full(n, 0.5) if model._task == "regression" else np.arange(n) % 3
        answered["predict"] = model.predict(rows, **constants)
        answered["quantiles"] = model.predict_quantiles(rows, [0.1, 0.5], **constants)
        answered["log density"] = model.log_density(rows, y, **constants)
    return answered | {"summary": model.summary(), "repr": repr(model)}


def _rows(model: Any) -> Any:
    X = _data()[0][:3, : model.n_features_in_]
    names = getattr(model, "feature_names_in_", None)
    return X if names is None else _table(X, list(names))


_LARGE = 100.0
"""From here on f is so large that e^f, or the density far from it, may be infinite or 0."""


def _fault(answered: dict[str, Any]) -> str:
    """Return which answer is not finite, or NaN for a large f, if there is one."""
    numbers = {
        name: value
        for name, value in answered.items()
        if isinstance(value, np.ndarray) and value.dtype.kind == "f"
    }
    latents = [np.abs(value).max() for name, value in numbers.items() if name.endswith("latent")]
    sound = np.isfinite if max(latents, default=0.0) < _LARGE else lambda values: ~np.isnan(values)
    bad = [name for name, value in numbers.items() if not sound(value).all()]
    return f"{bad[0]}: {numbers[bad[0]].ravel()[:6]}" if bad else ""


def same(one: dict[str, Any], twin: dict[str, Any]) -> bool:
    """Return whether all answers are equal, bit for bit."""
    return one.keys() == twin.keys() and all(np.array_equal(one[name], twin[name]) for name in one)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


# Attacks on bytes


def _damaged(data: bytes, donor: bytes, dice: random.Random) -> tuple[str, bytes]:
    """Return the kind of damage, and the bytes after it."""
    at = dice.randrange(len(data))
    size = min(dice.choice([1, 8, 100, 4096]), len(data) - at)
    match dice.randrange(7):
        case 0 | 1:
            bits = bytearray(data)
            for _ in range(dice.randint(1, 4)):
                # Half of the damage is in the header, which is parsed.
                place = dice.randrange(min(len(data), dice.choice([600, len(data)])))
                bits[place] ^= 1 << dice.randrange(8)
            return "bits", bytes(bits)
        case 2:
            return "cut", data[:at]
        case 3:
            return "splice", data[:at] + donor[dice.randrange(len(donor)) :]
        case 4:
            return "zeros", data[:at] + bytes(size) + data[at + size :]
        case 5:
            return "repeat", data[: at + size] + data[at:]
        case _:
            text = dice.choice([b"NaN", b"1e999", b"-1", b"{}", b"[]", b"null", b'"', b"9" * 400])
            return "text", data[:at] + text + data[at + dice.choice([0, len(text)]) :]


# Attacks on entries

VALUES: list[Any] = [
    *(None, True, False, 0, 1, -1, 2, 0.5, -0.5, 1e308, -1e308, 5e-324, 10**12, 2**63, 10**400),
    *(math.inf, -math.inf, math.nan),
    *("", "x", "y" * 100_000, "\x1b[2J", "\ud800", "auto", "joint", "gaussian", "nan"),
    *([], {}, [None], [1], [[]], {"": None}, {"type": "plain", "value": 1}, list(range(2000))),
]
"""What an entry is replaced by."""


def _places(at: Any, way: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the way to every entry of a document."""
    items = list(enumerate(at)) if isinstance(at, list) else list(at.items())
    places = [(*way, key) for key, _ in items]
    for key, item in items:
        if isinstance(item, dict | list):
            places += _places(item, (*way, key))
    return places


def forge_entry(manifest: Any, donor: Any, dice: random.Random) -> str:
    """Change one entry; return its place."""
    place = dice.choice(_places(manifest))
    *steps, last = place
    parent: Any = manifest
    for step in steps:
        parent = parent[step]
    old = parent[last]
    match dice.randrange(6):
        case 0:
            del parent[last]
        case 1 if isinstance(old, list):
            parent[last] = old[:-1] if dice.random() < 0.5 else [*old, *old[-1:]]
        case 1 if isinstance(old, int | float) and abs(old) < 1e300:
            parent[last] = dice.choice([-old, old + 1, old * 1e6, old * 1e-6, float(old)])
        case 2:
            # The same entry of another file, such as another likelihood.
            with contextlib.suppress(LookupError, TypeError):
                for step in place:
                    donor = donor[step]
                parent[last] = donor
        case _:
            parent[last] = copy.deepcopy(dice.choice(VALUES))
    return "/".join(map(str, place))


def _forge_tensor(tensors: dict[str, Any], dice: random.Random) -> str:
    """Change one tensor; return its name."""
    name = dice.choice(sorted(tensors))
    value = tensors[name].clone()
    flat = value.reshape(-1)
    match dice.randrange(7):
        case 0 if flat.numel():
            whole = [0, -1, 1, 100]
            real = [math.nan, math.inf, -math.inf, 1e308, -1e308, 1e30, 0, -1, 5e-324]
            numbers = real if value.is_floating_point() else whole
            flat[dice.randrange(flat.numel())] = torch.tensor(dice.choice(numbers)).to(value.dtype)
        case 1:
            value = value * dice.choice([0, -1, 1e6, 1e-6, 1e100, 1e-100])
        case 2:
            value = value.to(dice.choice([torch.float32, torch.float64, torch.int64, torch.bool]))
        case 3:
            twice = value.expand(2, *value.shape)
            value = dice.choice([flat, value[None], value[..., None], twice])
        case 4:
            value = flat[: dice.randrange(flat.numel() + 1)]
        case 5:
            del tensors[name]
            return f"{name} left out"
        case _:
            tensors[f"{name}{dice.choice(['.', 'x', '.values'])}"] = value
    tensors[name] = value.contiguous().clone()
    return name


def signed(kind: FileKind, contents: Contents) -> bytes:
    """Return the bytes of a file with a right checksum."""
    text = json.dumps({"schema": kind.schema, "manifest": contents.manifest})
    tensors = contents.tensors
    return packed(tensors, {kind.key: text, CHECKSUM: digest(text, tensors)})


# Trials


@cache
def _sound(name: str) -> dict[str, Any]:
    """Return what a sound file answers."""
    with tempfile.TemporaryDirectory() as folder, _quiet():
        path = Path(shutil.copy(corpus()[name], folder))
        return _answers_of(name, path)


def _answers_of(name: str, path: Path) -> dict[str, Any]:
    """Load a file, and ask it all; raise a `DirectGPError` if it is refused."""
    kind = name.split()[0]
    if kind == "model":
        return answers(directgp.load(path, device="cpu"))
    result = train(name.split()[1], path)
    return {
        "loss": np.array(result.loss),
        "mean": result.posterior.u_mean.detach().numpy(),
        "steps": np.array(result.steps),
    }


def attack(number: int) -> Trial:
    """Damage or forge a file, and load it."""
    dice = random.Random(number)
    name = dice.choice(list(corpus()))
    with tempfile.TemporaryDirectory() as folder, _quiet():
        if name.startswith("folder"):
            return _attack_folder(name, Path(folder), dice)
        kind = MODEL if name.startswith("model") else CHECKPOINT
        source, path = corpus()[name], Path(folder) / "file"
        same_kind = [path for key, path in corpus().items() if key[:5] == name[:5]]
        twin = dice.choice(same_kind)
        if dice.random() < 0.3:
            how, data = _damaged(source.read_bytes(), twin.read_bytes(), dice)
            label = f"{kind.name} damaged"
        else:
            label = f"{kind.name} forged"
            contents = read_file(kind, source)
            donor = read_file(kind, twin).manifest
            how = "nothing"
            for _ in range(dice.choice([1, 1, 1, 2])):
                if dice.random() < 0.7:
                    how = forge_entry(contents.manifest, donor, dice)
                else:
                    how = _forge_tensor(contents.tensors, dice)
            data = signed(kind, contents)
        path.write_bytes(data)
        return _judged(label, f"{name}: {how}", lambda: _answers_of(name, path), name, path)


def _judged(
    label: str, how: str, ask: Callable[[], dict[str, Any]], name: str, path: Path
) -> Trial:
    """Return whether a file is refused in words, or answers with finite numbers."""
    try:
        answered = ask()
    except (ModelFileError, CheckpointError) as error:
        text = str(error)
        sentence = len(text) < 2000 and "\n" not in text
        if not sentence:
            return Trial(label, "difference", f"{how}: {len(text)} characters")
        return Trial(label, HELD, "", {"refused": 1})
    except DirectGPError:
        # Training or predictions from forged numbers may fail, and say so.
        return Trial(label, HELD, "", {"refused": 1})
    except Exception:
        lines = traceback.format_exc().strip().splitlines()
        return Trial(label, "traceback", f"{how}: {' | '.join(lines[-3:])}"[:400])
    if fault := _fault(answered):
        return Trial(label, "not finite", f"{how}: {fault}")
    if label.endswith("damaged") and not same(answered, _sound(name)):
        return Trial(label, "difference", how)
    if name.startswith("model"):
        again = path.with_name("again")
        try:
            directgp.load(path, device="cpu").save(again)
            if not same(answers(directgp.load(again, device="cpu")), answered):
                return Trial(label, "difference", f"{how}: another model after it was saved again")
        except Exception as error:
            return Trial(label, "traceback", f"{how}: saved again: {error}"[:300])
    return Trial(label, HELD, "", {"loaded": 1})


def split_folder(folder: Path) -> dict[str, Any]:
    """Make a folder of an earlier version, of two files; return the description of its table."""
    file = folder / "model.safetensors"
    contents = read_file(MODEL, file)
    card: dict[str, Any] = contents.manifest.pop("table")
    contents.manifest["format"] = 1
    file.write_bytes(signed(MODEL, contents))
    card["model_sha256"] = hashlib.sha256(file.read_bytes()).hexdigest()
    (folder / "table.json").write_text(json.dumps(card))
    return card


def _attack_folder(name: str, here: Path, dice: random.Random) -> Trial:
    """Forge the description of the table, and inspect and predict on the command line."""
    task = name.split()[1]
    folder, data = here / "model", corpus()[name].with_suffix(".csv")
    shutil.copytree(corpus()[name], folder)
    file = folder / "model.safetensors"
    contents = read_file(MODEL, file)
    if dice.random() < 0.3:
        card = split_folder(folder)
        how = forge_entry(card, {}, dice)
        (folder / "table.json").write_text(json.dumps(card))
    else:
        how = forge_entry(contents.manifest["table"], {}, dice)
        file.write_bytes(signed(MODEL, contents))
    label, how = "folder forged", f"{name}: {how}"
    try:
        code, said = command("inspect", folder)
        if code == 0:
            out = here / "out.csv"
            code, said = command("predict", folder, data, "--out", out, "--device", "cpu")
    except Exception:
        lines = traceback.format_exc().strip().splitlines()
        return Trial(label, "traceback", f"{how}: {' | '.join(lines[-3:])}"[:400])
    if "failed unexpectedly" in said or "Traceback" in said:
        return Trial(label, "traceback", f"{how}: {said[-300:]}")
    if code not in (0, 1):
        return Trial(label, "difference", f"{how}: exit {code} for {task}")
    return Trial(label, HELD, "", {"loaded" if code == 0 else "refused": 1})
