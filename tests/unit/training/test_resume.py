"""Killed runs resume from their checkpoint and end with the same result."""

import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from gpytorch.kernels import MaternKernel

import directgp
from directgp.errors import CheckpointError
from directgp.io import read_file, write_file
from directgp.kernels import parse
from directgp.likelihoods import Gaussian, Likelihood, Logistic, Poisson, Probit
from directgp.posteriors import Prior, SparsePosterior
from directgp.training import Checkpoints, Status, TrainingResult
from directgp.training.checkpoint import CHECKPOINT
from tests.unit.forked import FORKS
from tests.unit.training.killed import EVERY, KINDS, fit, fit_alone
from tests.unit.training.models import (
    N,
    StopAt,
    counts,
    inputs,
    labels,
    regression,
    seeded,
    start,
    tensors,
)
from tests.unit.training.toys import same

X, Y = regression()


pytestmark = pytest.mark.usefixtures("without_shape_checks", "one_thread")


def progress(path: Path) -> tuple[int, int]:
    """Stages finished, and steps of the one under way; each file is a whole one."""
    if not path.exists():
        return 0, 0
    manifest = read_file(CHECKPOINT, path).manifest
    under_way = manifest["under_way"]
    return len(manifest["finished"]), 0 if under_way is None else len(under_way["losses"])


def kill_at(kind: str, path: Path, place: tuple[int, int]) -> None:
    """Start, wait until that step of that stage is on disk, and kill without a word."""
    child = FORKS.Process(target=fit_alone, args=(kind, path, place[1] + EVERY // 2))
    child.start()
    deadline = time.monotonic() + 200
    while progress(path) != place and child.is_alive() and time.monotonic() < deadline:
        time.sleep(0.002)
    child.kill()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    assert progress(path) == place
    child.close()


@pytest.mark.parametrize(
    "kind",
    [
        "adam",
        *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("lbfgs", "bmc", "frozen")),
    ],
)
def test_a_run_killed_twice_ends_bit_for_bit_as_if_it_had_not_been(
    kind: str, tmp_path: Path
) -> None:
    expected = fit(kind, tmp_path / "whole")
    path = tmp_path / "killed"
    for steps in (10, 30):
        kill_at(kind, path, (len(expected.stages) - 1, steps))
    found = fit(kind, path)
    assert same(tensors(found), tensors(expected))
    assert [stage.losses for stage in found.stages] == [stage.losses for stage in expected.stages]
    assert found.loss == expected.loss and found.reason == expected.reason
    assert found.steps == expected.steps


def test_every_write_is_a_whole_checkpoint_at_its_step(tmp_path: Path) -> None:
    path = tmp_path / "run"
    fit("adam", path, max_steps=5 * EVERY)
    assert progress(path) == (1, 0)
    fit("adam", tmp_path / "cut", max_steps=5 * EVERY, monitors=[StopAt(33)])
    assert progress(tmp_path / "cut") == (0, 30)


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_cancelled_twice_ends_bit_for_bit_as_if_it_had_not_been(
    kind: str, tmp_path: Path
) -> None:
    """The end that a callback made is no end that a checkpoint keeps."""
    settings: dict[str, Any] = {"max_steps": 24}
    expected = fit(kind, tmp_path / "whole", **settings)
    path = tmp_path / "cut"
    for _ in range(2):
        cut = fit(kind, path, monitors=[StopAt(12)], **settings)
        assert cut.status is Status.CANCELLED
    found = fit(kind, path, **settings)
    assert same(tensors(found), tensors(expected))
    assert [stage.losses for stage in found.stages] == [stage.losses for stage in expected.stages]


@pytest.mark.parametrize("optimizer", ["lbfgs", "adam"])
def test_a_run_of_an_expression_resumes_bit_for_bit(optimizer: str, tmp_path: Path) -> None:
    def run(name: str, *monitors: StopAt) -> TrainingResult:
        settings: dict[str, Any] = {"optimizer": optimizer, "max_steps": 20}
        posterior = expression("Matern52() + Periodic(0, period=2.0) * Additive(0)")
        return base(tmp_path / name, posterior=posterior, monitors=monitors, **settings)

    expected = run("whole")
    assert run("cut", StopAt(12)).status is Status.CANCELLED
    found = run("cut")
    assert same(tensors(found), tensors(expected))
    assert found.stages == expected.stages


@pytest.mark.parametrize("kind", ["lbfgs", "adam"])
def test_a_run_that_is_over_is_not_run_again(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "run"
    expected = fit(kind, path, max_steps=20)
    content = path.read_bytes()
    watch = StopAt(1)
    found = fit(kind, path, max_steps=20, monitors=[watch])
    assert watch.seen == 0 and watch.closed == 1
    assert same(tensors(found), tensors(expected)) and found.stages == expected.stages
    assert path.read_bytes() == content


def test_without_a_generator_the_same_samples_are_held(tmp_path: Path) -> None:
    """L-BFGS on bMC: another seed would be another function to minimise."""
    settings: dict[str, Any] = {"generator": None, "max_steps": 40}
    path = tmp_path / "run"
    fit("frozen", path, monitors=[StopAt(25)], **settings)
    found = fit("frozen", path, **settings)
    # The function is one through both parts: no step raises it.
    assert all(b <= a for a, b in zip(found.history, found.history[1:], strict=False))
    assert found.loss == pytest.approx(found.history[-1], abs=1e-12)


def test_the_generator_is_taken_back_to_where_the_run_began(tmp_path: Path) -> None:
    """Whatever was drawn from it in the meantime."""
    path = tmp_path / "run"
    expected = fit("adam", tmp_path / "whole", max_steps=40)
    generator = seeded(5)
    fit("adam", path, max_steps=40, generator=generator, monitors=[StopAt(25)])
    found = fit("adam", path, max_steps=40, generator=generator)
    assert same(tensors(found), tensors(expected))


# Other data, other settings.


def base(path: Path, **settings: Any) -> TrainingResult:
    given: dict[str, Any] = {"posterior": start(X, Y), "likelihood": Gaussian(0.1), "X": X, "y": Y}
    given |= {"checkpoints": Checkpoints(path, 5), "generator": seeded(5)}
    given |= {"objective": "elbo", "max_steps": 6}
    return directgp.train(**given | settings)


def matern(nu: float) -> SparsePosterior:
    return SparsePosterior(Prior(MaternKernel(nu)), X[:5])


def expression(text: str) -> SparsePosterior:
    return SparsePosterior(Prior.from_data(X, Y, kernel=parse(text)), X[:5])


def held() -> SparsePosterior:
    posterior = start(X, Y)
    posterior.Z.requires_grad_(False)
    return posterior


@pytest.mark.parametrize(
    "settings",
    [
        {"y": Y + 1e-12},
        {"X": X + 1e-12},
        {"X": X[1:], "y": Y[1:]},
        {"weights": torch.ones(N)},
        {"beta": 1.0 + 1e-12},
        {"objective": "vfe"},
        {"hyperparameters": "fixed"},
        {"max_steps": 7},
        {"optimizer": "adam"},
        {"likelihood": Gaussian(0.2)},
        {"posterior": start(X, Y, m=5)},
        {"posterior": start(X)},
        {"posterior": held()},
        {"posterior": SparsePosterior(start(X, Y).prior, start(X, Y).Z, nugget=1e-6)},
    ],
    ids=lambda settings: ", ".join(settings),
)
def test_a_checkpoint_of_another_run_is_refused(settings: dict[str, Any], tmp_path: Path) -> None:
    base(tmp_path / "run")
    content = (tmp_path / "run").read_bytes()
    with pytest.raises(CheckpointError, match="is of a run with other data or settings"):
        base(tmp_path / "run", **settings)
    assert (tmp_path / "run").read_bytes() == content


def test_another_step_between_writes_is_another_run(tmp_path: Path) -> None:
    """L-BFGS forgets its curvature at each write, so that it decides how a run goes."""
    base(tmp_path / "run")
    with pytest.raises(CheckpointError):
        base(tmp_path / "run", checkpoints=Checkpoints(tmp_path / "run", 6))


X_COUNTS, Y_COUNTS, EXPOSURE = counts()
TWINS: list[tuple[Likelihood, Likelihood, Any]] = [
    (Probit(), Logistic(), labels()),
    (Poisson(), Poisson(link="softplus"), (X_COUNTS, Y_COUNTS)),
    (
        Poisson().with_exposure(EXPOSURE),
        Poisson().with_exposure(2 * EXPOSURE),
        (X_COUNTS, Y_COUNTS),
    ),
    (Poisson(), Poisson().with_exposure(EXPOSURE), (X_COUNTS, Y_COUNTS)),
]


@pytest.mark.parametrize(("one", "other", "data"), TWINS, ids=["label", "link", "size", "none"])
def test_likelihoods_without_parameters_are_told_apart(
    one: Likelihood, other: Likelihood, data: Any, tmp_path: Path
) -> None:
    """By their class, and by exposures, which no state holds."""
    settings: dict[str, Any] = {"X": data[0], "y": data[1], "posterior": start(data[0])}
    base(tmp_path / "run", likelihood=one, **settings)
    with pytest.raises(CheckpointError):
        base(tmp_path / "run", likelihood=other, **settings)


def test_kernels_of_one_shape_are_told_apart(tmp_path: Path) -> None:
    base(tmp_path / "run", posterior=matern(1.5))
    with pytest.raises(CheckpointError):
        base(tmp_path / "run", posterior=matern(2.5))


def test_expressions_of_one_shape_are_told_apart(tmp_path: Path) -> None:
    base(tmp_path / "run", posterior=expression("Matern32() + RBF()"))
    with pytest.raises(CheckpointError):
        base(tmp_path / "run", posterior=expression("Matern32() * RBF()"))
    with pytest.raises(CheckpointError):
        base(tmp_path / "run", posterior=expression("RBF() + RBF()"))


def test_validation_examples_are_part_of_a_path(tmp_path: Path) -> None:
    def path(seed: int) -> None:
        directgp.beta_path(
            start(X, Y),
            Gaussian(0.1),
            X,
            Y,
            betas=[1.0],
            objective="elbo",
            validation=directgp.training.Given(inputs(5, seed), torch.zeros(5)),
            max_steps=2,
            checkpoints=Checkpoints(tmp_path / "run"),
        )

    path(1)
    path(1)
    with pytest.raises(CheckpointError):
        path(2)


def test_what_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a shopping list")
    with pytest.raises(CheckpointError, match="cannot be loaded as a checkpoint"):
        base(tmp_path / "run")
    with pytest.raises(CheckpointError, match="could not be written"):
        base(tmp_path / "no" / "such" / "folder")


Change = Callable[[dict[str, Any], dict[str, torch.Tensor]], object]

FORGED: dict[str, Change] = {
    "no stages": lambda m, t: m.pop("finished"),
    "stages in words": lambda m, t: m.update(finished="none"),
    "progress in words": lambda m, t: m.update(under_way="far"),
    "losses in words": lambda m, t: m["under_way"].update(losses=["low"]),
    "evaluations without end": lambda m, t: m["under_way"].update(evaluations=10**400),
    "more": lambda m, t: m.update(more=1),
    "values of another shape": lambda m, t: t.update({"now.adam.values": torch.zeros(1).double()}),
    "values of NaN": lambda m, t: t["now.adam.values"].fill_(torch.nan),
    "moments of another type": lambda m, t: t.update(
        {"now.adam.first_moment": t["now.adam.first_moment"].float()}
    ),
    "no step": lambda m, t: t.pop("now.adam.step"),
    "no random numbers": lambda m, t: t.pop("now.generator"),
    "other random numbers": lambda m, t: t.update({"now.generator": torch.zeros(7).byte()}),
    "a start of zeros": lambda m, t: t["start.generator"].zero_(),
    "rows that there are not": lambda m, t: t["now.batches.epoch"].add_(1),
    "an order of fractions": lambda m, t: t.update(
        {"now.batches.epoch": t["now.batches.epoch"].double()}
    ),
    "rows without end": lambda m, t: t.update({"now.batches.taken": torch.tensor(torch.inf)}),
    "more rows than there are": lambda m, t: t["now.batches.taken"].fill_(10**6),
}


@pytest.fixture(scope="module", name="stopped")
def _stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "stopped"
    fit("adam", path, max_steps=24, monitors=[StopAt(13)])
    return path


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_checkpoint_is_refused(name: str, stopped: Path, tmp_path: Path) -> None:
    found, path = read_file(CHECKPOINT, stopped), tmp_path / "forged"
    FORGED[name](found.manifest, found.tensors)
    write_file(CHECKPOINT, path, found.tensors, found.manifest)
    with pytest.raises(CheckpointError, match="cannot be loaded as a checkpoint: it does not fit"):
        fit("adam", path, max_steps=24)
