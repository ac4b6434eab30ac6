"""What was typed of a comparison, made into a plan once the data are known."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from directgp.cli.errors import WrongUsageError
from directgp.cli.model_options import naming_options
from directgp.datasets.problem import Problem, Task
from directgp.experiments.comparison import Plan
from directgp.experiments.methods import METHODS, line_up
from directgp.experiments.planning import chosen_likelihood, make_plan


@final
@dataclass(frozen=True)
class CompareRequest:
    """The options of `directgp compare`; None leaves the choice to the data."""

    methods: tuple[str, ...] | None
    repeats: int
    sizes: tuple[int | None, ...] | None
    """None among them is all rows."""

    betas: tuple[float, ...] | None
    jobs: int | None
    likelihood: str | None
    kernel: str
    ard: bool
    num_inducing: int | None
    max_steps: int | None
    seed: int
    device: str

    def check(self, task: Task | None) -> None:
        """Refuse what can be told to be wrong without the data."""
        for option in ("methods", "sizes", "betas"):
            if getattr(self, option) == ():
                raise WrongUsageError(f"--{option} must name at least one. Got none.")
        for name in self.methods or ():
            if name not in METHODS:
                allowed = ", ".join(METHODS)
                raise WrongUsageError(f"--methods must be of {allowed}. Got {name!r}.")
        if task is not None:
            with naming_options():
                line_up(task, self.methods, chosen_likelihood(task, self.likelihood))

    def plan(self, problem: Problem, device: str, arguments: Sequence[str]) -> Plan:
        """What is to be run on a problem."""
        with naming_options():
            return make_plan(
                problem,
                methods=self.methods,
                repeats=self.repeats,
                sizes=self.sizes,
                betas=self.betas,
                likelihood=self.likelihood,
                kernel=self.kernel,
                ard=self.ard,
                num_inducing=self.num_inducing,
                max_steps=self.max_steps,
                seed=self.seed,
                device=device,
                arguments=arguments,
            )
