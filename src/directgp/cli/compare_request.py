"""What was typed of a comparison, made into a plan once the data are known."""

from dataclasses import dataclass
from typing import final

from directgp.cli.errors import WrongUsageError
from directgp.datasets.problem import Problem, Task
from directgp.errors import InvalidInputError
from directgp.experiments.cells import Settings
from directgp.experiments.comparison import DataFacts, Plan
from directgp.experiments.methods import METHODS, line_up
from directgp.experiments.splits import parts_of

_MOST_ROWS = 20_000
"""Trained on unless sizes are named: more take hours."""

_FEWEST_ROWS = 10

_LIKELIHOODS: dict[Task, tuple[str, ...]] = {
    "regression": ("gaussian", "student_t"),
    "classification": ("probit", "logistic"),
    "count": ("poisson", "poisson_softplus", "negative_binomial"),
}
"""The first is the usual one."""


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
        for name in self.methods or ():
            if name not in METHODS:
                raise WrongUsageError(f"--methods must be of {', '.join(METHODS)}. Got {name!r}.")
        for option, given in (
            ("--methods", self.methods),
            ("--sizes", self.sizes),
            ("--betas", self.betas),
        ):
            if given == ():
                raise WrongUsageError(f"{option} must name at least one. Got none.")
        if task is not None:
            self._check_task(task)

    def _check_task(self, task: Task) -> None:
        if self.likelihood is not None and self.likelihood not in _LIKELIHOODS[task]:
            allowed = " or ".join(_LIKELIHOODS[task])
            raise WrongUsageError(
                f"--likelihood must be {allowed} for {task}. Got {self.likelihood!r}."
            )
        try:
            line_up(task, self.methods, self._likelihood(task))
        except InvalidInputError as error:
            raise WrongUsageError(f"--{error}") from error

    def _likelihood(self, task: Task) -> str:
        return self.likelihood or _LIKELIHOODS[task][0]

    def plan(self, problem: Problem, device: str) -> Plan:
        """What is to be run on a problem."""
        self._check_task(problem.task)
        parts = parts_of(len(problem.y))
        likelihood = self._likelihood(problem.task)
        return Plan(
            data=DataFacts.of(problem),
            methods=line_up(problem.task, self.methods, likelihood),
            repeats=self.repeats,
            sizes=self._sizes(parts.training),
            seed=self.seed,
            settings=Settings(
                likelihood=likelihood,
                kernel=self.kernel,
                ard=self.ard and problem.X.shape[1] > 1,
                num_inducing=self.num_inducing,
                betas=self.betas,
                max_steps=self.max_steps,
                device=device,
            ),
            parts=parts,
        )

    def _sizes(self, most: int) -> tuple[int, ...]:
        if self.sizes is None:
            return (min(most, _MOST_ROWS),)
        for size in self.sizes:
            if size is not None and not _FEWEST_ROWS <= size <= most:
                raise WrongUsageError(
                    f"--sizes must be from {_FEWEST_ROWS} to {most}, the rows of this table that "
                    f"can be trained on, or 'all'. Got {size}."
                )
        return tuple(sorted({most if size is None else size for size in self.sizes}))
