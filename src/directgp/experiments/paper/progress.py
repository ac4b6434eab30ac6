"""Progress of studies that are no training, told to the monitors of trainings."""

import math
from collections.abc import Sequence

from directgp.training.monitors import Monitor
from directgp.training.result import Progress


def tell(monitors: Sequence[Monitor], stage: str, step: int, steps: int) -> None:
    """So many steps of a study are done; a monitor that wants to end the cell raises."""
    progress = Progress(stage, step, steps, step, math.nan, math.nan, math.nan)
    for monitor in monitors:
        monitor(progress)
