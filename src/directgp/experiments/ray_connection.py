"""How a Ray cluster is found or started, quietly, and what is said when it is not."""

import importlib
import logging
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from directgp.errors import InvalidInputError, refuse

_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # What Ray has to say of workers that are lost would fill the terminal.
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",
    # A job that asks for too much memory is not tried for ever.
    "RAY_task_oom_retries": "3",
}

_QUIET = {"log_to_driver": False, "logging_level": logging.ERROR}

_SECONDS_TO_ANSWER = 5.0


def import_ray() -> Any:
    """The package, which is no dependency of directgp."""
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    try:
        return importlib.import_module("ray")
    except ModuleNotFoundError as error:
        raise InvalidInputError(
            "The engine 'ray' needs Ray: pip install 'directgp[cluster]'."
        ) from error


@contextmanager
def connected(address: str | None, num_cpus: int) -> Iterator[Any]:
    """Ray, with a cluster: that of this program, that of an address, or one that is started.

    What was started is ended, and what was connected to is left, at the end of the block.
    """
    ray = import_ray()
    if ray.is_initialized():
        yield ray
        return
    if address is None:
        _start(ray, num_cpus)
    else:
        _connect(ray, address)
    try:
        yield ray
    finally:
        ray.shutdown()


def _start(ray: Any, num_cpus: int) -> None:
    with _same_path():
        try:
            # Not None, which would join a cluster that happens to be there.
            ray.init("local", num_cpus=num_cpus, include_dashboard=False, **_QUIET)
        except Exception as error:
            raise InvalidInputError(
                f"Ray could not be started on this machine: {_first_line(error)}. Use the engine "
                "'local', or give the address of a cluster."
            ) from error


@contextmanager
def _same_path() -> Iterator[None]:
    """Processes that are started in this block find the modules that this one finds."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(part or os.getcwd() for part in sys.path)
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


def _connect(ray: Any, address: str) -> None:
    try:
        if address != "auto":
            _knock(address)
        ray.init(address, **_QUIET)
    except InvalidInputError:
        raise
    except Exception as error:
        raise InvalidInputError(
            f"The Ray cluster {address} could not be reached: {_first_line(error)}. "
            f"{_remedy(error)}"
        ) from error


def _remedy(error: BaseException | None) -> str:
    """What to do: Ray says only in a cause that it was not let in."""
    while error is not None:
        if "AuthenticationError" in f"{type(error).__name__} {error}":
            return "It asks for a token: set RAY_AUTH_MODE=token, and see Ray's documentation."
        error = error.__cause__
    return "Start one with 'ray start --head', or leave the address out for one of this machine."


def _knock(address: str) -> None:
    """See that somebody answers: Ray itself would wait for minutes."""
    try:
        parts = urlsplit(address if "://" in address else f"//{address}")
        where = parts.hostname, parts.port
    except ValueError:
        where = None, None
    if where[0] is None or where[1] is None:
        refuse("address", "'auto' or host:port of a Ray cluster", repr(address))
    socket.create_connection((where[0], where[1]), timeout=_SECONDS_TO_ANSWER).close()


def _first_line(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
