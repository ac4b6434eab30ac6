"""Train candidates in turns: each for a few steps, and on while that pays."""

import copy
import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from threading import Event, Lock
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from directgp.errors import NumericalError
from directgp.numerics.arrays import one_thread
from directgp.training.beta_path import brief
from directgp.training.callbacks import Cancel
from directgp.training.data import Data, Model
from directgp.training.lbfgs import Learnt
from directgp.training.result import (
    INTERRUPTED,
    Failure,
    Phase,
    Progress,
    StageResult,
    Status,
    Stop,
    TrainingResult,
)
from directgp.training.run import Monitor, Recipe, close
from directgp.training.trainer import Trainer, elbo_run, fixed_run, joint_run
from directgp.training.validation import Split, Validation, for_rows_of


@dataclass(frozen=True)
class Effort:
    """How much a search spends on a choice."""

    tolerance: float = 1e-4
    """Fall of the mean validation loss that pays for one step with 100 inducing inputs."""

    rows_for_models: int = 500
    rows_for_candidates: int = 5000
    """Training examples by which models are compared, and candidates."""

    max_inducing: int = 1000
    max_inducing_cuda: int = 4000
    rows_per_inducing: int = 5
    """Smallest number of training examples for each inducing input of the chosen candidate."""

    first_only: bool = False
    """Whether the first kernel and the β nearest to 1 are the only ones."""


EFFORTS = {
    "fast": Effort(5e-4, 300, 2000, 100, 200, first_only=True),
    "default": Effort(),
    "thorough": Effort(1e-5, 2000, 20_000, rows_per_inducing=2),
}

FIRST_STEPS = 25
"""Steps of a candidate before it is first compared, and of one that starts from another."""

_BEATEN = 2.0
"""Paired standard errors by which a candidate has to lose before it is given up."""

_MANY_STEPS = 200
"""Steps after which a step has to pay twice as much as the first one."""

MAX_STEPS = 3200
"""Steps of a candidate where the recipe has no limit."""


@dataclass(frozen=True)
class Trial:
    """A candidate: a model, a mode and a β, trained on every split so far."""

    model: Model
    hyperparameters: str
    beta: float
    results: tuple[TrainingResult, ...]
    losses: Float[Tensor, " v"]
    """The loss of every validation example."""

    rmse: float = math.nan
    """Root of the mean square error of the predictions."""

    steps: int = 0
    """Steps of this candidate, after those that it started from."""

    steps_before: int | None = None
    """Those of them before inducing inputs were added to this candidate."""

    base: tuple[TrainingResult, ...] = ()
    """The ELBO solutions whose hyperparameters a fixed run holds."""

    rate: float = math.inf
    """Fall of the loss in one of its last steps, over the cost of the step."""

    learnt: tuple[Learnt, ...] = ()
    """What L-BFGS knows of each split, which candidates share that start from each other."""

    @property
    def name(self) -> str:
        """Model, mode and β, for people."""
        name = f"{self.model.name}, {self.hyperparameters}, β = {self.beta:.3g}"
        return name.removeprefix(", ")

    @property
    def loss(self) -> float:
        """Mean validation loss; infinite where it is NaN."""
        mean = float(self.losses.mean())
        return math.inf if math.isnan(mean) else mean

    @property
    def preference(self) -> tuple[int, float]:
        """The place among candidates of one loss: β near 1, larger ones, the ELBO, smaller ones."""
        group = 1 if self.hyperparameters == "elbo" else 0 if self.beta >= 0.5 else 2
        return group, abs(math.log(max(self.beta, 1e-300)))

    @property
    def num_inducing(self) -> int:
        """Number of inducing inputs."""
        return self.results[0].posterior.Z.shape[-2]

    def is_beaten(self, by: "Trial") -> bool:
        """Return whether another candidate has the lower mean loss, by two standard errors."""
        gap = (self.losses - by.losses).double()
        if not bool(torch.isfinite(gap).all()):
            return not math.isfinite(self.loss)
        error = float(gap.std()) / len(gap) ** 0.5 if len(gap) > 1 else math.inf
        return float(gap.mean()) > _BEATEN * error


Task = Callable[[], TrainingResult | NumericalError | None]
"""A run; None where the search was ended before it."""


def mean_loss(results: Sequence[TrainingResult]) -> float:
    """Return the mean objective of the splits."""
    return sum(result.loss for result in results) / len(results)


@final
@dataclass
class OneAtATime(Monitor):
    """Calls a monitor from several threads, and ends their runs where Ctrl-C was pressed."""

    monitor: Monitor
    lock: Lock
    interrupted: Event

    @override
    def __call__(self, progress: Progress) -> Stop | None:
        with self.lock:
            stop = self.monitor(progress)
        return INTERRUPTED if self.interrupted.is_set() else stop

    @override
    def reset(self) -> None:
        with self.lock:
            self.monitor.reset()

    @override
    def close(self) -> None:
        close([self.monitor])


@dataclass
class Race:
    """Trains candidates on splits of the examples, several at once."""

    recipe: Recipe
    data: Data
    validation: Validation
    generator: torch.Generator
    effort: Effort = EFFORTS["default"]
    n_jobs: int = 1
    """Number of candidates, or folds of a candidate, that are trained at once."""

    by_objective: bool = field(default=False, init=False)
    """Whether candidates go on while their objective falls, and not the validation loss."""

    splits: list[Split] = field(default_factory=list, init=False)
    failures: list[Failure] = field(default_factory=list, init=False)
    end: StageResult | None = field(default=None, init=False)
    """The run that a budget, a callback or Ctrl-C ended, and the race with it."""

    untried: list[str] = field(default_factory=list, init=False)
    """What was left out because the race was ended."""

    last: TrainingResult | None = field(default=None, init=False)
    """The last result, where the race was ended before the first comparison."""

    parts: int = field(default=1, init=False)
    """An estimate of the number of runs."""

    def __post_init__(self) -> None:
        self.since, self._part = time.perf_counter(), 0
        self._interrupted, lock = Event(), Lock()
        if self.n_jobs != 1:
            given = self.recipe.monitors
            guarded = [OneAtATime(each, lock, self._interrupted) for each in given or [Cancel()]]
            self.recipe = replace(self.recipe, monitors=guarded)

    def race(self, trials: Sequence[Trial], factor: float, limit: int = MAX_STEPS) -> list[Trial]:
        """Train candidates, each time for as many steps again, while it pays."""
        racing = list(trials)
        limit = min(limit, self.recipe.max_steps or limit)
        # A candidate that has taken many steps needs many more to show a fall.
        steps = taken = min(max(FIRST_STEPS, max(each.steps for each in racing) // 2), limit)
        while taken <= limit and self.end is None:
            going = [i for i, each in enumerate(racing) if each.rate >= factor * self._pays(each)]
            if not going:
                break
            further = self.advanced([racing[i] for i in going], steps)
            for i, trained in zip(going, further, strict=True):
                racing[i] = trained
            best = min(racing, key=lambda trial: trial.loss)
            racing = [
                replace(each, rate=0.0) if each is not best and each.is_beaten(best) else each
                for each in racing
            ]
            if taken == limit:
                break
            steps = min(taken, limit - taken)
            taken += steps
        return racing

    def advanced(self, trials: Sequence[Trial], steps: int) -> list[Trial]:
        """Train candidates further on every split; keep the state with the lower loss.

        A candidate that fails, or whose run was ended, stays as it was.
        """
        tasks: list[Task] = []
        known: list[Learnt] = []
        for trial in trials:
            for k, part in enumerate(self.splits):
                trainer = self.trainer(part.training, trial.name, k)
                trainer.learnt = trial.learnt[k] if trial.learnt else Learnt()
                known.append(trainer.learnt)
                tasks.append(self._task(trial, k, trainer, self.recipe_of(trial.model, steps)))
        found = self._run(tasks)
        number, trained = len(self.splits), []
        for i, trial in enumerate(trials):
            results = found[i * number : (i + 1) * number]
            errors = [each for each in results if isinstance(each, NumericalError)]
            if errors:
                self.failures.append(Failure(trial.beta, trial.hyperparameters, str(errors[0])))
            whole = [each for each in results if isinstance(each, TrainingResult)]
            if len(whole) < number or any(each.ended for each in whole):
                trained.append(replace(trial, rate=0.0, learnt=()))
                continue
            new = self.trial(trial.model, trial.hyperparameters, trial.beta, whole)
            taken, cost = max(1, whole[0].stages[-1].steps), self.cost(new.num_inducing)
            fall = self.fall(trial.loss, new.loss)
            if self.by_objective and math.isfinite(trial.loss):
                fall = self.fall(mean_loss(trial.results), mean_loss(whole))
            new = replace(
                trial,
                results=new.results,
                losses=new.losses,
                rmse=new.rmse,
                steps=trial.steps + taken,
            )
            # Fewer steps than allowed: the optimum is reached.
            stopped = all(each.status is Status.CONVERGED for each in whole)
            rate = 0.0 if stopped or not fall > 0 else fall / (taken * cost)
            learnt = tuple(known[i * number : (i + 1) * number]) if rate > 0 else ()
            trained.append(replace(new if fall > 0 else trial, rate=rate, learnt=learnt))
        return trained

    def fall(self, before: float, after: float) -> float:
        """Return the fall of a mean loss in nats."""
        if self.recipe.point_loss().validation_loss().log_density or math.isinf(before):
            return before - after
        # That of ½ log of the loss, as for Gaussian noise of this variance.
        return (before - after) / (2 * abs(after)) if after else 0.0

    def _pays(self, trial: Trial) -> float:
        """Return the rate from which more steps pay, which rises with those taken."""
        taken = trial.steps * self.cost(trial.num_inducing)
        return self.effort.tolerance * (1 + taken / _MANY_STEPS)

    def cost(self, num_inducing: int) -> float:
        """Return the time of a step over that with 100 inducing inputs, at least 1."""
        if self.data.X.is_cuda:
            # Launches take as long as this number of products.
            return 1 + len(self.data) * num_inducing**2 / 2.5e9
        return max(1.0, num_inducing * (num_inducing + 100) / 20_000)

    def _task(self, trial: Trial, k: int, trainer: Trainer, recipe: Recipe) -> Task:
        before, mode, beta = trial.results[k], trial.hyperparameters, trial.beta

        def train() -> TrainingResult | NumericalError | None:
            if self.end is not None:
                return None
            try:
                if mode == "elbo":
                    result = elbo_run(trainer, recipe, Model.of(before), near=True)
                elif mode == "joint":
                    result = joint_run(trainer, recipe, Model.of(before), beta)
                else:
                    near = before if before.hyperparameters == "fixed" else None
                    result = fixed_run(trainer, recipe, trial.base[k], beta, near)
            except NumericalError as error:
                return error
            own = result.stages if mode != "fixed" else result.stages[-1:]
            return self.noted(replace(result, stages=(*before.stages, *own)))

        return train

    def _run(self, tasks: Sequence[Task]) -> list[TrainingResult | NumericalError | None]:
        """Run tasks, several at once in threads; their results do not depend on that."""
        if self.n_jobs == 1 or len(tasks) == 1 or self.data.X.is_cuda:
            return [task() for task in tasks]

        def alone(task: Task) -> TrainingResult | NumericalError | None:
            with one_thread():
                return task()

        with one_thread(), ThreadPoolExecutor(self.n_jobs) as pool:
            futures = [pool.submit(alone, task) for task in tasks]
            try:
                return [future.result() for future in futures]
            except KeyboardInterrupt:
                # Ctrl-C reaches this thread alone; the runs end after their current step.
                self._interrupted.set()
                return [future.result() for future in futures]

    def by_adam(self, model: Model) -> bool:
        """Return whether Adam trains a model on the splits."""
        number = len(self.splits[0].training)
        return self.recipe.chosen_optimizer(number, model.posterior.num_inducing) == "adam"

    def recipe_of(self, model: Model, steps: int) -> Recipe:
        """Return the recipe with that number of steps; Adam needs those of its own."""
        # A rule of its own: several runs may go on at once.
        recipe = replace(self.recipe, stopping=copy.deepcopy(self.recipe.stopping))
        if self.by_adam(model):
            return brief(recipe, "adam", model.likelihood)
        return replace(recipe, max_steps=min(steps, recipe.max_steps or steps))

    def elbo(
        self, model: Model, steps: int, near: Sequence[TrainingResult] = ()
    ) -> list[TrainingResult] | None:
        """Return ELBO solutions of the splits; None where one failed or the race was ended."""
        results = []
        for k, part in enumerate(self.splits):
            if self.end is not None:
                return None
            trainer = self.trainer(part.training, f"ELBO, {model.name}", k)
            posterior, likelihood = Model.of(near[k])[:2] if near else model[:2]
            start = Model(posterior, for_rows_of(likelihood, part.likelihood))
            recipe = replace(self.recipe, max_steps=min(steps, self.recipe.max_steps or steps))
            try:
                result = self.noted(elbo_run(trainer, recipe, start, near=True))
                before = near[k].stages if near else ()
                results.append(replace(result, stages=(*before, *result.stages)))
            except NumericalError as error:
                self.failures.append(Failure(1.0, f"elbo, {model.name}", str(error)))
                return None
        return results

    def trial(
        self, model: Model, mode: str, beta: float, results: Sequence[TrainingResult]
    ) -> Trial:
        """Return a candidate with the losses of its results."""
        loss = self.recipe.point_loss().validation_loss()
        pairs = zip(self.splits, results, strict=True)
        found = [part.judged(result, loss) for part, result in pairs]
        losses, squares = (torch.cat(rows) for rows in zip(*found, strict=True))
        rmse = float(squares.mean()) ** 0.5
        return Trial(model, mode, beta, tuple(results), losses, rmse, base=tuple(results))

    def some(self, part: Split, number: int) -> Split:
        """Return the split with at most that number of training examples, drawn at random."""
        n, random = len(part.training), self.generator
        if n <= number:
            return part
        rows = torch.randperm(n, generator=random, device=random.device)[:number]
        rows = rows.to(part.training.X.device)
        some = part.training.take(rows)
        return replace(part, training=some, likelihood=part.likelihood.for_rows(rows))

    def leaves_out(self, what: str) -> bool:
        """Return whether the search was ended, and note what it did not try."""
        if self.end is not None:
            self.untried.append(what)
        return self.end is not None

    def trainer(
        self, data: Data, name: str, fold: int | None = None, final: bool = False
    ) -> Trainer:
        """Return a trainer for the next run, whose name and number callbacks see."""
        self._part += 1
        if fold is not None and len(self.splits) > 1:
            name += f", fold {fold + 1}"
        # Its own random numbers, whatever runs beside it.
        device = self.generator.device
        seed = int(torch.randint(2**62, (), generator=self.generator, device=device))
        random = torch.Generator(device).manual_seed(seed)
        trainer = Trainer(data, random, since=self.since)
        parts = self._part if final else max(self._part + 1, self.parts)
        trainer.phase = Phase(name, self._part, parts, final)
        return trainer

    def noted(self, result: TrainingResult) -> TrainingResult:
        """Keep the last stage of a run that a budget, a callback or Ctrl-C ended."""
        if result.ended:
            self.end = result.stages[-1]
        self.last = result
        return result
