"""Processor time of rivals, measured so that neither the machine nor the order favours one."""

import time
from collections.abc import Callable, Mapping


def least_seconds(rivals: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Least processor time of each, taken in turn: other programs can only make it longer."""
    taken = [{name: _seconds(rival) for name, rival in rivals.items()} for _ in range(repeats)]
    return {name: min(each[name] for each in taken) for name in rivals}


def _seconds(rival: Callable[[], object]) -> float:
    since = time.process_time()
    rival()
    return time.process_time() - since
