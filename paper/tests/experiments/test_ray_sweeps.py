"""Sweeps on a real Ray cluster of two cores: as in this process, though a worker is killed."""

import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from directgp.datasets.problem import Problem
from directgp.errors import InvalidInputError, MissingExtraError
from directgp.experiments import ray as experiments_ray
from directgp.experiments.ray import RayCluster, connected
from directgp.experiments.store import Store
from directgp.experiments.workers import Call, FailedJob, InProcess, Pool
from directgp_paper.experiments.cells import PaperCell
from directgp_paper.experiments.run import run_paper_cell, run_sweep
from paper.tests.experiments import sweeps
from paper.tests.experiments.sweeps import curve, fit, given
from tests.unit.experiments.cells import LOG, contents, notes, wait_for
from tests.unit.experiments.small import Recorder

CELLS: list[PaperCell] = [fit(), fit("log-fixed"), fit("fitc", repeat=1), curve()]
"""Five cells, with the one that the curve starts from."""


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The file of the workers' notes, known to them as they begin."""
    path = tmp_path_factory.mktemp("ray") / "log"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(LOG, str(path))
        yield path


@pytest.fixture(scope="module")
def ray(log: Path) -> Iterator[Any]:
    """One cluster for all tests, which every `RayCluster` finds and leaves."""
    if find_spec("ray") is None:
        pytest.skip("Ray is not installed: pip install 'directgp[cluster]'.")
    with connected(None, num_cpus=2) as started:
        yield started


@pytest.fixture
def two_cores(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """Ray that says what it has and starts nothing."""
    fake = Mock(**{"is_initialized.return_value": True})
    fake.cluster_resources.return_value = {"CPU": 2.0}
    monkeypatch.setattr(experiments_ray, "import_ray", lambda: fake)
    return fake


def test_sigterm_does_what_it_did_before(monkeypatch: pytest.MonkeyPatch) -> None:
    def init(*_: object, **__: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

    fake = Mock(**{"is_initialized.return_value": False}, init=init)
    monkeypatch.setattr(experiments_ray, "import_ray", lambda: fake)
    before = signal.getsignal(signal.SIGTERM)
    with connected(None, num_cpus=1):
        assert signal.getsignal(signal.SIGTERM) is before
    fake.shutdown.assert_called_once()


def swept(path: Path, pool: Pool, function: Any = run_paper_cell) -> dict[str, Any]:
    with Store(path) as store:
        run_sweep(CELLS, given, store, pool, function=function)
        every: list[Any] = [*CELLS, curve().start]
        assert store.failures(every) == []
        return contents(store, every)


@pytest.mark.slow
def test_an_error_in_a_worker_is_the_result_of_its_cell(ray: Any, tmp_path: Path) -> None:
    seen = Recorder()
    with Store(tmp_path / "store") as store:
        run_sweep([fit()], given, store, RayCluster(), callback=seen, function=sweeps.failing)
    assert seen.results == [(fit(), FailedJob("No way down."))]


@pytest.mark.parametrize(("cpus", "room"), [(1.0, 2), (0.5, 4), (2.0, 1), (0.1, 20)])
def test_a_pool_has_as_many_places_as_the_cluster_has_room_for(
    two_cores: Any, cpus: float, room: int
) -> None:
    with RayCluster(cpus=cpus).open() as pool:
        assert pool.capacity() == room


@pytest.mark.parametrize("too_much", [RayCluster(cpus=3.0), RayCluster(gpus=0.5)])
def test_more_than_the_cluster_has_is_refused(two_cores: Any, too_much: RayCluster) -> None:
    with pytest.raises(InvalidInputError, match="has no resources for a cell"), too_much.open():
        pass


def total(factor: int, values: Any, model: bytes, monitors: Any) -> float:
    return float(values.sum()) * factor


def targets(cell: int, problem: Problem) -> Any:
    return problem.y


def test_a_problem_is_sent_once(ray: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Any] = []
    put = ray.put

    def watched(value: Any) -> Any:
        sent.append(value)
        return put(value)

    monkeypatch.setattr(ray, "put", watched)
    problem = given("")
    with RayCluster().open() as pool:
        futures = [pool.submit(n, Call(total, n, targets, problem)) for n in range(4)]
        found = [future.result() for future in futures]
    assert len(sent) == 1 and sent[0] is problem
    assert found == [float(problem.y.sum()) * n for n in range(4)]


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("nonsense", "address must be 'auto' or host:port of a Ray cluster. Got 'nonsense'."),
        ("ray://", "address must be 'auto' or host:port of a Ray cluster. Got 'ray://'."),
        ("127.0.0.1:99999", "address must be 'auto' or host:port"),
    ],
)
def test_a_wrong_address_is_refused(address: str, words: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        experiments_ray.check_address(address)
    assert str(caught.value).startswith(words)


class NotConnected:
    """Ray that was not started; nothing must be asked of it."""

    def is_initialized(self) -> bool:
        return False


def test_a_cluster_that_does_not_answer_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experiments_ray, "import_ray", NotConnected)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
        words = f"The Ray cluster {address} could not be reached: Connection refused. Start one"
        with pytest.raises(InvalidInputError, match=words), RayCluster(address).open():
            pass


class Closed(NotConnected):
    """Ray that does not let us in, and says so in a cause."""

    def init(self, *_: Any, **__: Any) -> None:
        raise ConnectionError("Failed to connect.") from RuntimeError("x.AuthenticationError: No.")


def test_a_cluster_that_asks_for_a_token_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experiments_ray, "import_ray", Closed)
    words = "could not be reached: Failed to connect. It asks for a token"
    with pytest.raises(InvalidInputError, match=words), RayCluster("auto").open():
        pass


def test_without_ray_the_error_names_the_extra_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    words = r"needs ray. Run: pip install 'directgp\[cluster\]'"
    with pytest.raises(MissingExtraError, match=words), RayCluster().open():
        pass


@pytest.mark.parametrize("wrong", [{"cpus": 0.0}, {"gpus": -1.0}, {"workers": 0}, {"retries": -1}])
def test_wrong_resources_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError, match=f"{next(iter(wrong))} must be"):
        RayCluster(**wrong)


# The last two leave a cluster whose workers have to begin anew, which takes time.


@pytest.mark.usefixtures("without_shape_checks")
def test_ray_has_the_results_of_this_process_though_a_worker_is_killed(
    ray: Any,
    log: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    log.unlink(missing_ok=True)
    expected = swept(tmp_path / "here", InProcess())
    killed: list[int] = []

    def kill() -> None:
        wait_for(1)
        killed.append(int(notes()[0]))
        os.kill(killed[0], signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    found = swept(tmp_path / "ray", RayCluster(), sweeps.killed_once)
    killer.join()
    assert len(found) == 5 and found == expected
    assert ray.is_initialized(), "a cluster that was there is left"
    assert killed[0] != os.getpid()
    assert capfd.readouterr() == ("", ""), "Ray keeps quiet"


@pytest.mark.slow
def test_a_cell_that_is_lost_every_time_is_refused_alone(
    ray: Any, log: Path, tmp_path: Path
) -> None:
    log.unlink(missing_ok=True)
    seen = Recorder()
    with Store(tmp_path / "store") as store:
        pool = RayCluster(retries=1)
        run_sweep([fit()], given, store, pool, callback=seen, function=sweeps.deadly)
        (failed,) = store.failures([fit()])
    assert failed.reason.startswith("Its worker was lost 2 times, perhaps for lack of memory. Ray")
    assert seen.results == [(fit(), FailedJob(failed.reason))]
    assert len(set(notes())) == 2, "two processes have tried"
