"""A script for torchrun: a run whose second process kills itself once."""

import os
import signal
import sys
import time
from pathlib import Path

import torch

from directgp.training import Processes
from tests.unit.training.torchrun_cases import EVERY, At, checkpointed, raising, told


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    first_time = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    if os.environ["RANK"] == "1" and not first_time:
        # The other one finds the address of the process that was killed.
        time.sleep(1.0)
    with Processes.from_torchrun("cpu", timeout=60.0) as processes:
        killer = At(EVERY + 2, raising(signal.SIGKILL))
        result = checkpointed(processes, folder, *[killer] * (processes.rank * first_time))
        torch.save(told(result), folder / f"{processes.rank}.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
