"""Several processes train one model as one process does."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.distributed import HashStore  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import Store

from directgp.errors import InvalidInputError
from directgp.objectives import LogLoss, Objective
from directgp.training import Processes
from directgp.training.data import (
    Batches,
    Data,
    DistributedBatches,
    Model,
    RandomBatches,
    Randomness,
)
from directgp.training.distributed import ProcessGroup, fresh_store
from directgp.training.problems import FreeProblem
from tests.unit.forked import FORKS
from tests.unit.training import torchrun_cases as cases
from tests.unit.training.models import normal, seeded
from tests.unit.training.toys import same

CPU = torch.device("cpu")


class Ended(NamedTuple):
    """How one process ended, and what it has left."""

    code: int | None
    found: Any
    error: str


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def run(action: Callable[..., object], folder: Path, size: int = 2) -> list[Ended]:
    """The action in several processes; those that hang are killed, and have no code."""
    port = free_port()
    members = [
        FORKS.Process(target=cases.member, args=(action, rank, size, folder, port))
        for rank in range(size)
    ]
    for process in members:
        process.start()
    deadline = time.monotonic() + 60
    for process in members:
        process.join(max(0.0, deadline - time.monotonic()))
    return [end(process, folder, rank) for rank, process in enumerate(members)]


def end(process: Any, folder: Path, rank: int) -> Ended:
    code = process.exitcode
    process.kill()
    process.join()
    found, error = folder / f"{rank}.pt", folder / f"{rank}.txt"
    return Ended(
        code,
        torch.load(found) if found.exists() else None,
        error.read_text() if error.exists() else "",
    )


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """What two processes have found together, one thing after another."""
    ends = run(cases.each_harmless, tmp_path_factory.mktemp("ended"))
    assert [each.code for each in ends] == [0, 0], [each.error for each in ends]
    return [each.found for each in ends]


def outcomes(ended: list[Any], action: cases.Action) -> list[Any]:
    return [each[action.__name__] for each in ended]


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("name", cases.CASES)
def test_the_same_losses_and_parameters_as_one_process(ended: list[Any], name: str) -> None:
    first, second = (each[name] for each in outcomes(ended, cases.every_case))
    assert same(first, second)
    alone = cases.told(cases.trained(cases.CASES[name]()))
    assert len(first["losses"]) > cases.STEPS
    # Adam divides gradients by their size, rounding and all, from the first step on.
    torch.testing.assert_close(first["losses"][0], alone["losses"][0], rtol=1e-12, atol=0)
    torch.testing.assert_close(first, alone, rtol=1e-9, atol=1e-9)


def test_model_and_order_are_those_of_the_first(ended: list[Any], tmp_path: Path) -> None:
    first, second = outcomes(ended, cases.another_start)
    assert same(first, second)
    alone = cases.another_start(Processes(0, 1, CPU), tmp_path)
    torch.testing.assert_close(first, alone, rtol=1e-9, atol=1e-9)


def test_streams_of_two_are_the_rows_of_one(ended: list[Any], tmp_path: Path) -> None:
    first, second = outcomes(ended, cases.streamed)
    assert same(first, second)
    alone = cases.streamed(Processes(0, 1, CPU), tmp_path)
    torch.testing.assert_close(first, alone, rtol=1e-9, atol=1e-9)


def test_one_that_stops_stops_all_at_one_step(ended: list[Any]) -> None:
    first, second = outcomes(ended, cases.second_stops)
    assert first[:3] == second[:3] == ["Enough.", True, cases.STEPS + 4]
    assert same(first[3], second[3])


def test_ctrl_c_in_one_ends_all_at_one_step(ended: list[Any]) -> None:
    first, second = outcomes(ended, cases.second_interrupted)
    assert first[:2] == second[:2] == ["interrupted", 4]
    assert same(first[2], second[2])


def test_other_data_in_one_process_are_refused_by_all(ended: list[Any]) -> None:
    first, second = outcomes(ended, cases.other_data)
    assert first == second
    assert "must be the same in every process. Got different ones in process 1" in first


def test_a_checkpoint_that_cannot_be_kept_is_refused_by_all(ended: list[Any]) -> None:
    first, second = outcomes(ended, cases.no_folder)
    assert first == second
    assert first.startswith("CheckpointError: ") and "missing" in first


def test_trouble_in_one_process_takes_all_back(ended: list[Any]) -> None:
    for said in outcomes(ended, cases.troubled):
        assert said.startswith("NumericalError: Training went back 5 times")


def test_a_lost_process_ends_the_others_and_the_checkpoint_resumes_all(
    ended: list[Any], tmp_path: Path
) -> None:
    first, second = run(cases.second_killed, tmp_path)
    assert (first.code, second.code) == (3, -signal.SIGKILL)
    assert first.error.startswith("LostProcessError: Process 0 of 2 has lost contact with another")
    assert "That was at step 8 of log_loss." in first.error
    assert f"checkpoint {tmp_path / 'run.ckpt'} is of step 5: start the job again" in first.error
    again = run(cases.uninterrupted, tmp_path)
    assert [each.code for each in again] == [0, 0]
    for mine, whole in zip(again, outcomes(ended, cases.uninterrupted), strict=True):
        assert same(mine.found, whole)


# Five processes that import torch; the test above has the same loss without torchrun.
@pytest.mark.slow
def test_torchrun_restarts_a_job_that_lost_a_process(ended: list[Any], tmp_path: Path) -> None:
    script, root = Path(__file__).parent / "torchrun_restarted.py", Path(__file__).parents[3]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    done = subprocess.run(
        [*torchrun, "--nproc-per-node=2", "--max-restarts=3", str(script), str(tmp_path)],
        env=os.environ | {"PYTHONPATH": f"{root}:{os.environ.get('PYTHONPATH', '')}"},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    assert "exitcode: -9" in done.stderr
    assert "could not connect" not in done.stderr
    for rank, whole in enumerate(outcomes(ended, cases.uninterrupted)):
        found = torch.load(tmp_path / f"{rank}.pt")
        torch.testing.assert_close(found, whole, rtol=1e-10, atol=1e-10)


def test_a_process_that_is_silent_counts_as_lost(tmp_path: Path) -> None:
    port = free_port()
    first, second = (
        FORKS.Process(target=cases.member, args=(cases.second_frozen, rank, 2, tmp_path, port))
        for rank in range(2)
    )
    first.start()
    second.start()
    first.join(60)
    assert second.is_alive()
    second.kill()
    second.join()
    assert first.exitcode == 3
    assert "lost contact" in (tmp_path / "0.txt").read_text()


@pytest.mark.slow
def test_what_torchrun_ends_says_so(tmp_path: Path) -> None:
    first, second = run(cases.first_terminated, tmp_path)
    assert (first.code, second.code) == (3, 3)
    assert "received SIGTERM, which torchrun sends when another process is lost" in first.error
    assert "is of step 5: start the job again" in first.error
    assert "Process 1 of 2 has lost contact" in second.error


@pytest.mark.slow
def test_three_processes_train_as_one(tmp_path: Path) -> None:
    ends = run(cases.another_start, tmp_path, 3)
    assert [each.code for each in ends] == [0, 0, 0]
    assert same(ends[0].found, ends[1].found) and same(ends[0].found, ends[2].found)
    alone = cases.another_start(Processes(0, 1, CPU), tmp_path)
    torch.testing.assert_close(ends[0].found, alone, rtol=1e-9, atol=1e-9)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_one_process_by_nccl_and_two_that_share_a_gpu(tmp_path: Path) -> None:
    (tmp_path / "alone").mkdir()
    alone, *several = run(cases.on_gpu, tmp_path / "alone", 1) + run(cases.on_gpu, tmp_path, 2)
    assert [each.code for each in (alone, *several)] == [0, 0, 0], several[0].error
    assert same(several[0].found, several[1].found)
    torch.testing.assert_close(several[0].found, alone.found, rtol=1e-8, atol=1e-8)


def problems(batches: Callable[[Data], Batches], size: int, rule: str) -> list[FreeProblem]:
    """That of each process, all at the same parameters."""
    given = cases.poisson()
    data = Data(given["X"], given["y"], 0.5 + normal(cases.N, seed=9).abs())
    model = Model(given["posterior"], given["likelihood"])
    objective = Objective(LogLoss(rule), len(data), 0.7)
    return [
        FreeProblem(
            model,
            data,
            objective,
            Randomness(seeded(2), False, rank),
            DistributedBatches(batches(data), rank, size),
            ProcessGroup(Processes(rank, size, CPU)),
        )
        for rank in range(size)
    ]


def mean_value(problems: list[FreeProblem]) -> Tensor:
    for problem in problems:
        problem.prepare()
    return torch.stack([problem.value(0) for problem in problems]).mean()


BATCHES: dict[str, Callable[[Data], Batches]] = {
    "whole": Batches,
    "one row": lambda data: RandomBatches(data, 1, seeded()),
    "odd": lambda data: RandomBatches(data, 7, seeded()),
}


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("batches", BATCHES.values(), ids=BATCHES)
@pytest.mark.parametrize("size", [2, 5])
def test_the_mean_over_the_processes_is_the_objective(
    batches: Callable[[Data], Batches], size: int
) -> None:
    whole, shared = problems(batches, 1, "auto"), problems(batches, size, "auto")
    for _ in range(7):
        one, several = mean_value(whole), mean_value(shared)
        # The quadrature chooses its nodes for all rows that it is given together.
        torch.testing.assert_close(several, one, rtol=1e-10, atol=0)
    expected = torch.autograd.grad(one, [*whole[0].parameters.values()])
    gradient = torch.autograd.grad(several, [*shared[0].parameters.values()])
    torch.testing.assert_close(gradient, expected, rtol=1e-8, atol=1e-10)


def test_noise_of_each_process_is_its_own_and_comes_again() -> None:
    one, two = (Randomness(seeded(2), False, rank) for rank in range(2))
    draws = [torch.rand(3, generator=each.generator) for each in (one, two)]
    assert not torch.equal(*draws)
    one.renew(5)
    later = torch.rand(3, generator=one.generator)
    again = Randomness(seeded(2), False, 0)
    again.renew(5)
    assert torch.equal(later, torch.rand(3, generator=again.generator))
    assert not torch.equal(later, draws[0])


@pytest.mark.usefixtures("without_shape_checks")
def test_noise_of_several_agrees_in_expectation() -> None:
    several, alone = problems(Batches, 3, "bmc"), problems(Batches, 1, "bmc")
    number = 60
    pooled = torch.stack([mean_value(several).detach() for _ in range(number)])
    single = torch.stack([mean_value(alone).detach() for _ in range(number)])
    error = float(((pooled.var() + single.var()) / number).sqrt())
    assert abs(float(pooled.mean() - single.mean())) < 4 * error


@pytest.fixture
def one_process(monkeypatch: pytest.MonkeyPatch) -> Processes:
    """A group of one, as torchrun --nproc-per-node 1 makes it."""
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(free_port()))
    monkeypatch.delenv("TORCH_NCCL_BLOCKING_WAIT", raising=False)
    return Processes.from_torchrun("cpu", timeout=10.0)


def test_means_minima_and_bytes_are_exchanged(one_process: Processes) -> None:
    with one_process as processes:
        assert (processes.rank, processes.size, processes.device) == (0, 1, CPU)
        loss, gradient = processes.mean([torch.tensor(2.0), torch.ones(3, 2).double()])
        assert loss.shape == () and gradient.shape == (3, 2) and loss.dtype == torch.float64
        assert (float(loss), float(gradient.sum())) == (2.0, 6.0)
        assert processes.smallest(-4) == -4
        assert processes.told(b"one") == b"one" and processes.told(b"") == b""
    with pytest.raises(InvalidInputError, match="Processes must be open"):
        processes.smallest(1)
    processes.close()


@pytest.mark.parametrize("settings", [{"rule": "bmc"}, {"hyperparameters": "fixed"}])
def test_one_process_of_torchrun_trains_as_without(
    one_process: Processes, settings: dict[str, Any]
) -> None:
    with one_process as processes:
        found = cases.told(cases.trained(cases.gaussian(**settings), processes))
    assert same(found, cases.told(cases.trained(cases.gaussian(**settings))))


def meet(store: Store, rank: int) -> bytes:
    """What the second process says where both have met."""
    room = fresh_store(store, rank, 2, 20.0)
    if rank == 1:
        room.set("address", "second")
    return room.get("address")


def test_processes_meet_apart_from_those_of_an_earlier_attempt() -> None:
    store = HashStore()
    for _ in range(3):
        with ThreadPoolExecutor() as threads:
            second = threads.submit(meet, store, 1)
            # Long enough for the second to look into the room of the attempt before.
            time.sleep(0.1)
            first = threads.submit(meet, store, 0)
            assert (first.result(), second.result()) == (b"second", b"second")


def test_one_that_does_not_come_is_not_waited_for_long() -> None:
    store = HashStore()
    store.set("prefix", "of an attempt before")
    with pytest.raises(RuntimeError, match=r"did not answer within 0\.1 seconds"):
        fresh_store(store, 1, 2, 0.1)


def test_without_torchrun_there_are_no_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(InvalidInputError, match=r"torchrun --nproc-per-node 2 script\.py"):
        Processes.from_torchrun()


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "lbfgs": ({"optimizer": "lbfgs"}, "optimizer with processes must be 'auto' or 'adam'"),
    "auto": ({"hyperparameters": "auto"}, "processes must be None with hyperparameters='auto'"),
    "vfe": ({"objective": "vfe"}, "Got 'vfe', which solves for q"),
    "square loss": ({"objective": "square_loss"}, "Use objective='elbo', or for 'square_loss' a"),
}


@pytest.mark.parametrize("settings, sentence", REFUSED.values(), ids=REFUSED)
def test_settings_that_one_process_needs_are_refused(
    settings: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(InvalidInputError) as refusal:
        cases.trained(cases.gaussian(**settings), Processes(0, 2, CPU))
    assert sentence in str(refusal.value)


def test_data_on_another_device_are_refused() -> None:
    with pytest.raises(
        InvalidInputError, match="X with processes must be on the device of processes, cuda:1"
    ):
        cases.trained(cases.gaussian(), Processes(0, 2, torch.device("cuda", 1)))
