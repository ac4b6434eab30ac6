"""Train candidates on every split of the examples, several at once."""

import copy
import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from threading import Event, Lock
from typing import Protocol, cast, final, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from directgp.errors import NumericalError
from directgp.integration.contract import has
from directgp.likelihoods.base import ConjugateLikelihood
from directgp.likelihoods.capabilities import Classes
from directgp.likelihoods.starts import UnlikeLatents
from directgp.numerics.arrays import one_thread
from directgp.race.candidates import Candidate
from directgp.race.starts import start_of
from directgp.race.weights import EntrantForecasts
from directgp.shapes import Row
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
from directgp.training.validation import Split, for_rows_of

FIRST_STEPS = 20
"""Steps of a candidate before it is first compared."""

_MOST_ELBO_STEPS = 500
"""Largest number of steps of the ELBO before its hyperparameters are held."""


@runtime_checkable
class StartingModels(Protocol):
    """Makes untrained models."""

    def model(self, candidate: Candidate) -> Model:
        """Return the untrained model of a candidate, with the row values of all examples."""

    def data(self, stacked: bool) -> Data:
        """Return all examples, with the columns of the stack or without."""


@final
@dataclass(frozen=True)
class Entrant:
    """A candidate, trained on every split so far."""

    candidate: Candidate
    """Model and objective."""

    results: tuple[TrainingResult, ...]
    """The trained model of each split."""

    losses: Float[Tensor, " v"]
    """The loss of every validation example."""

    shares: Float[Tensor, " v"] | None = None
    """Weights of the validation examples, of mean 1; None without weights."""

    forecasts: Float[Tensor, "s v"] | None = None
    """What the loss of a mixture needs to know of its predictions."""

    steps: int = 0
    """Steps of this candidate, after those that it started from."""

    kept: int = 0
    """Steps that led to its state, with those of the candidate that it started from; further ones
    did not lower the loss."""

    rate: float = math.inf
    """Fall of the loss in one of its last steps, over the cost of the step."""

    learnt: tuple[Learnt, ...] = ()
    """What L-BFGS knows of each split."""

    base: tuple[TrainingResult, ...] = ()
    """The ELBO solutions whose hyperparameters a fixed run holds."""

    @property
    def state(self) -> Candidate:
        """The candidate whose training gave the state: the ELBO where no later step helped."""
        return self.candidate if self.kept else replace(self.candidate, mode="elbo", beta=1.0)

    @property
    def collapsed(self) -> bool:
        """Whether its q(u) has a closed form."""
        likelihood = self.results[0].likelihood
        return self.candidate.mode == "elbo" and isinstance(likelihood, ConjugateLikelihood)

    @property
    def weighted(self) -> Float[Tensor, " v"]:
        """Losses times the relative weights of their examples."""
        return self.losses if self.shares is None else self.shares * self.losses

    @property
    def loss(self) -> float:
        """Mean validation loss; infinite where it is NaN."""
        mean = float(self.weighted.mean())
        return math.inf if math.isnan(mean) else mean

    @property
    def cost(self) -> float:
        """Return the time of a step over that of one latent with 100 inducing inputs, about.

        That of several classes counts for one of them: C may take C times as long.
        """
        m, likelihood = self.candidate.num_inducing, self.results[0].likelihood
        latents = 1 if likelihood.num_latent == 1 else 2
        if has(likelihood, UnlikeLatents):
            # The log loss is an integral over each of them.
            latents = likelihood.num_latent * (1 if self.candidate.mode == "elbo" else 4)
        return latents * max(1.0, m * (m + 100) / 20_000)

    def is_beaten(self, by: "Entrant", errors: float = 2.0) -> bool:
        """Return whether another one has the lower mean loss, by that many standard errors."""
        gap = (self.weighted - by.weighted).double()
        if not bool(torch.isfinite(gap).all()):
            return not math.isfinite(self.loss)
        error = float(gap.std()) / len(gap) ** 0.5 if len(gap) > 1 else math.inf
        return float(gap.mean()) > errors * error


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


Task = Callable[[], TrainingResult | NumericalError | None]
"""A run; None where the race was ended before it."""


@final
@dataclass
class Trainers:
    """Trains entrants of a race; a run that fails or is ended leaves its entrant as it was."""

    recipe: Recipe
    """Objective, rule, optimiser and callbacks of every run."""

    models: StartingModels
    """Makes untrained models."""

    splits: Mapping[bool, Sequence[Split]]
    """The splits with the columns of the stack (True) and without."""

    generator: torch.Generator
    """Source of seeds, on the CPU: every device takes the same decisions."""

    n_jobs: int = 1
    """Number of runs at once."""

    since: float = field(default_factory=time.perf_counter)
    """`time.perf_counter` at the start of the fit, from which a time budget counts."""

    failures: list[Failure] = field(default_factory=list, init=False)
    """Runs that raised an error."""

    end: StageResult | None = field(default=None, init=False)
    """The run that a budget, a callback or Ctrl-C ended, and the race with it."""

    last: tuple[Candidate, TrainingResult] | None = field(default=None, init=False)
    """The last result, where the race was ended before the first comparison."""

    def __post_init__(self) -> None:
        self._part = 0
        self._bases: dict[tuple[bool, bool, str, str], Entrant | None] = {}
        self._interrupted, lock = Event(), Lock()
        if self.n_jobs != 1:
            given = self.recipe.monitors
            guarded = [OneAtATime(each, lock, self._interrupted) for each in given or [Cancel()]]
            self.recipe = replace(self.recipe, monitors=guarded)

    @property
    def in_nats(self) -> bool:
        """Whether the validation loss is minus a log density."""
        return self.recipe.point_loss().validation_loss().log_density

    def base(self, candidate: Candidate, name: str) -> Entrant | None:
        """Return the ELBO solution, after a few steps, that candidates of a scale of f start from.

        `name` is the first likelihood of this scale. None where training failed or was ended.
        """
        structure = candidate.kernel if candidate.structured else ""
        key = candidate.stacked, candidate.ard, name, structure
        if key not in self._bases:
            first = replace(candidate, likelihood=name, mode="elbo", beta=1.0, own_kernels=False)
            self._bases[key] = self.begun(first)
        return self._bases[key]

    def begun(self, candidate: Candidate) -> Entrant | None:
        """Return an ELBO candidate after its first steps, from the untrained model."""
        model = self.models.model(candidate)
        results = []
        for k, part in enumerate(self.splits[candidate.stacked]):
            if self.end is not None:
                return None
            trainer = self.trainer(part.training, candidate.label, k)
            start = model._replace(likelihood=for_rows_of(model.likelihood, part.likelihood))
            recipe = self._recipe_of(candidate, FIRST_STEPS)
            try:
                results.append(self.noted(elbo_run(trainer, recipe, start, near=True), candidate))
            except NumericalError as error:
                self._failed(candidate, error)
                return None
        return None if self.end is not None else self.judged(candidate, results)

    def start(self, candidate: Candidate, base: Entrant) -> Entrant | None:
        """Return a candidate in the state of the ELBO solution of a simpler model.

        None where the model cannot be computed in this state.
        """
        try:
            model = self.models.model(candidate)
            pairs = zip(base.results, self.splits[candidate.stacked], strict=True)
            starts = [start_of(model, each, part.training) for each, part in pairs]
            solutions = self._with_elbo(candidate, starts)
            return None if solutions is None else self.judged(candidate, solutions)
        except NumericalError as error:
            self._failed(candidate, error)
            return None

    def changed(self, entrant: Entrant, candidate: Candidate) -> Entrant | None:
        """Return a neighbouring candidate in the state of another one.

        None where the model cannot be computed in this state.
        """
        before = entrant.candidate
        same = replace(candidate, beta=before.beta) == before
        alike = replace(candidate, num_inducing=before.num_inducing, beta=before.beta) == before
        try:
            moved = self._moved(entrant.results, before, candidate)
            base = self._moved(entrant.base, before, candidate)
            if candidate.mode == "fixed" and not alike:
                solutions = self._with_elbo(candidate, base)
                if solutions is None:
                    return None
                base = moved = solutions
            changed = self.judged(candidate, moved)
        except NumericalError as error:
            self._failed(candidate, error)
            return None
        learnt = tuple(each.copied() for each in entrant.learnt) if same else ()
        return replace(changed, base=base, kept=entrant.kept, learnt=learnt)

    def _moved(
        self, results: Sequence[TrainingResult], before: Candidate, candidate: Candidate
    ) -> tuple[TrainingResult, ...]:
        """Return models of one candidate as starts of a neighbour."""
        parts = self.splits[candidate.stacked]
        pairs = zip(results, parts, strict=True)
        more = candidate.num_inducing - before.num_inducing
        if more > 0:
            return tuple(
                replace(each, posterior=each.posterior.grown(part.training.X, more))
                for each, part in pairs
            )
        if replace(candidate, mode=before.mode, beta=before.beta) == before:
            return tuple(results)
        model = self.models.model(candidate)
        moved = []
        for each, part in pairs:
            start = start_of(model, each, part.training)
            # An untrained model has the number of the start.
            missing = candidate.num_inducing - start.posterior.num_inducing
            if missing > 0:
                grown = start.posterior.grown(part.training.X, missing)
                start = replace(start, posterior=grown)
            moved.append(start)
        return tuple(moved)

    def _with_elbo(
        self, candidate: Candidate, starts: Sequence[TrainingResult]
    ) -> tuple[TrainingResult, ...] | None:
        """Return the ELBO solutions that a candidate starts from; None if training was ended.

        A fixed candidate holds their hyperparameters, so for it they are trained further.
        """
        if candidate.mode != "fixed":
            return tuple(starts)
        solutions = []
        recipe = self._recipe_of(candidate, _MOST_ELBO_STEPS)
        for k, (start, part) in enumerate(zip(starts, self.splits[candidate.stacked], strict=True)):
            trainer = self.trainer(part.training, replace(candidate, mode="elbo").label, k)
            near = elbo_run(trainer, recipe, Model.of(start), near=True)
            solutions.append(self.noted(near, candidate))
            if self.end is not None:
                return None
        return tuple(solutions)

    def judged(self, candidate: Candidate, results: Sequence[TrainingResult]) -> Entrant:
        """Return a candidate with the losses of its results."""
        loss = self.recipe.point_loss().validation_loss()
        pairs = zip(self.splits[candidate.stacked], results, strict=True)
        found = [part.judged(result, loss) for part, result in pairs]
        losses = torch.cat([each.losses for each in found])
        several = [each.forecasts for each in found if each.forecasts is not None]
        forecasts = torch.cat(several, -1) if several else None
        each = [part.shares for part in self.splits[candidate.stacked]]
        shares = None if any(rows is None for rows in each) else torch.cat(cast(list[Row], each))
        return Entrant(candidate, tuple(results), losses, shares, forecasts, base=tuple(results))

    def rmse(self, entrant: Entrant) -> float | None:
        """Return the root of the mean square error; None for several classes.

        For them it takes the probabilities of all classes, the loss only that of the label.
        """
        if isinstance(entrant.results[0].likelihood, Classes):
            return None
        pairs = zip(self.splits[entrant.candidate.stacked], entrant.results, strict=True)
        squares = torch.cat([part.squares(result) for part, result in pairs])
        return math.sqrt(float(squares.mean()))

    def pool(self, entrants: Sequence[Entrant]) -> EntrantForecasts:
        """Return the predictions of entrants for the validation examples."""
        first, *_ = entrants
        parts = self.splits[first.candidate.stacked]
        known = first.forecasts is not None
        forecasts = [cast(Tensor, entrant.forecasts) for entrant in entrants] if known else []
        return EntrantForecasts(
            loss=self.recipe.point_loss().validation_loss(),
            losses=torch.stack([entrant.losses for entrant in entrants]),
            forecasts=torch.stack(forecasts) if known else None,
            y=torch.cat([part.validation.y for part in parts]),
            share=first.shares,
        )

    def advanced(self, entrants: Sequence[tuple[Entrant, int]]) -> list[Entrant]:
        """Train entrants for more steps on every split; keep the state with the lower loss."""
        tasks: list[Task] = []
        known: list[Learnt] = []
        for entrant, steps in entrants:
            candidate = entrant.candidate
            for k, part in enumerate(self.splits[candidate.stacked]):
                trainer = self.trainer(part.training, candidate.label, k)
                trainer.learnt = entrant.learnt[k] if entrant.learnt else Learnt()
                known.append(trainer.learnt)
                recipe = self._recipe_of(candidate, steps)
                tasks.append(self._task(entrant, k, trainer, recipe))
        found = iter(zip(self._run(tasks), known, strict=True))
        return [
            self._further(entrant, [next(found) for _ in entrant.results])
            for entrant, _ in entrants
        ]

    def _further(
        self,
        entrant: Entrant,
        runs: Sequence[tuple[TrainingResult | NumericalError | None, Learnt]],
    ) -> Entrant:
        """Return an entrant after its runs on the splits."""
        candidate = entrant.candidate
        results = [each for each, _ in runs]
        errors = [each for each in results if isinstance(each, NumericalError)]
        if errors:
            self._failed(candidate, errors[0])
        whole = [each for each in results if isinstance(each, TrainingResult)]
        if len(whole) < len(results) or any(each.ended for each in whole):
            return replace(entrant, rate=0.0, learnt=())
        new = self.judged(candidate, whole)
        taken = max(1, whole[0].stages[-1].steps)
        steps = entrant.steps + taken
        fall = self.fall(entrant.loss, new.loss)
        # Fewer steps than allowed: the optimum is reached.
        stopped = all(each.status is Status.CONVERGED for each in whole)
        rate = 0.0 if stopped or not fall > 0 else fall / (taken * new.cost)
        if not fall > 0:
            return replace(entrant, steps=steps, rate=0.0, learnt=())
        learnt = tuple(each for _, each in runs) if rate > 0 else ()
        kept = entrant.kept + taken
        return replace(new, steps=steps, kept=kept, rate=rate, learnt=learnt, base=entrant.base)

    def fall(self, before: float, after: float) -> float:
        """Return the fall of a mean loss in nats."""
        if self.in_nats or math.isinf(before) or min(before, after) < 0:
            return before - after
        # That of ½ log of the loss, as for Gaussian noise of this variance.
        if after == 0:
            return math.inf if before > 0 else 0.0
        return 0.5 * math.log(before / after) if before > 0 else -math.inf

    def _task(self, entrant: Entrant, k: int, trainer: Trainer, recipe: Recipe) -> Task:
        before, mode, beta = entrant.results[k], entrant.candidate.mode, entrant.candidate.beta

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
                    result = fixed_run(trainer, recipe, entrant.base[k], beta, near)
            except NumericalError as error:
                return error
            own = result.stages if mode != "fixed" else result.stages[-1:]
            return self.noted(replace(result, stages=(*before.stages, *own)), entrant.candidate)

        return train

    def _run(self, tasks: Sequence[Task]) -> list[TrainingResult | NumericalError | None]:
        """Run tasks, several at once in threads; their results do not depend on that."""
        cuda = self.models.data(False).X.is_cuda
        if self.n_jobs == 1 or len(tasks) == 1 or cuda:
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

    def _recipe_of(self, candidate: Candidate, steps: int) -> Recipe:
        """Return the recipe with that number of steps; Adam needs those of its own."""
        # A rule of its own: several runs may go on at once.
        recipe = replace(self.recipe, stopping=copy.deepcopy(self.recipe.stopping))
        number = len(self.splits[candidate.stacked][0].training)
        if recipe.chosen_optimizer(number, candidate.num_inducing) == "adam":
            return brief(recipe, "adam", self.models.model(candidate).likelihood)
        return replace(recipe, max_steps=min(steps, recipe.max_steps or steps))

    def trainer(self, data: Data, name: str, fold: int | None = None) -> Trainer:
        """Return a trainer for the next run, whose name and number callbacks see."""
        self._part += 1
        if fold is not None and len(next(iter(self.splits.values()))) > 1:
            name += f", fold {fold + 1}"
        # Its own random numbers, whatever runs beside it.
        seed = int(torch.randint(2**62, (), generator=self.generator))
        random = torch.Generator(data.X.device).manual_seed(seed)
        trainer = Trainer(data, random, since=self.since)
        trainer.phase = Phase(name, self._part, None)
        return trainer

    def noted(self, result: TrainingResult, candidate: Candidate) -> TrainingResult:
        """Keep the last stage of a run that a budget, a callback or Ctrl-C ended."""
        if result.ended:
            self.end = result.stages[-1]
        self.last = candidate, result
        return result

    def _failed(self, candidate: Candidate, error: NumericalError) -> None:
        """Record an error of a candidate."""
        self.failures.append(Failure(candidate.beta, candidate.mode, str(error), candidate.label))
