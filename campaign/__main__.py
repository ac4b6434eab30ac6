"""Run an attack, or print its table: ``python -m campaign kills --trials 1000 --jobs 2``."""

import argparse
import importlib
import math
from typing import Any, NamedTuple

from campaign import trials


class Attack(NamedTuple):
    """The module of an attack, with its default number of trials and its limit in seconds."""

    module: str
    trials: int
    limit: float
    what: str


ATTACKS = {
    "problems": Attack("campaign.problems", 10_000, 120, "hostile numbers through every entry"),
    "tables": Attack("campaign.tables", 10_000, 60, "damaged and hostile tables"),
    "models": Attack("campaign.models", 10_000, 60, "damaged and forged model files"),
    "fuzz": Attack("campaign.fuzz", 8, 3600, "coverage-guided inputs of every reader (atheris)"),
    "crash-states": Attack("campaign.crash_states", 7, 3600, "every crash state of the writers"),
    "store": Attack("campaign.store", 1_000, 600, "random programs on one store"),
    "kills": Attack("campaign.kills", 1_000, 300, "programs killed at random moments"),
    "interrupts": Attack("campaign.interrupts", 100, 300, "Ctrl-C in a terminal, under load"),
    "memory": Attack("campaign.memory", 60, 300, "less and less memory (RLIMIT_AS)"),
    "golden": Attack("campaign.golden", 0, 300, "files of every release still load"),
}
"""Each module has a function `attack(number)`, and may have `SUMS`, names of facts to sum up, and
`count`, a function that returns the number of trials."""


def main() -> None:
    lines = "\n".join(f"  {name:12} {listed.what}" for name, listed in ATTACKS.items())
    parser = argparse.ArgumentParser(
        prog="python -m campaign",
        description=f"Attacks:\n{lines}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", choices=[*ATTACKS, "all"])
    parser.add_argument("--trials", type=int, help="trials in all, those of earlier calls included")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--seconds", type=float, default=math.inf, help="start no trial after")
    options = parser.parse_args()
    for name in ATTACKS if options.name == "all" else (options.name,):
        chosen = ATTACKS[name]
        module: Any = importlib.import_module(chosen.module)
        count = module.count() if hasattr(module, "count") else chosen.trials
        numbers = range(count if options.trials is None else options.trials)
        trials.run(name, module.attack, numbers, options.jobs, chosen.limit, options.seconds)
        print(trials.table(name, getattr(module, "SUMS", ())), end="\n\n", flush=True)


if __name__ == "__main__":
    main()
