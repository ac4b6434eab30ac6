"""One stage after another: builds the problem of each, minimises it, keeps a journal."""

import math
import time
from typing import Literal, final

import torch
from torch import Tensor

from directgp.datasets.streams import ParquetRows
from directgp.errors import CheckpointError, LostProcessError, NumericalError
from directgp.likelihoods.base import Likelihood
from directgp.likelihoods.gaussian import Gaussian
from directgp.objectives.base import Objective
from directgp.posteriors.collapsed import Whitened
from directgp.posteriors.sparse import SparsePosterior
from directgp.training.adam import AdamState, adam
from directgp.training.callbacks import Observer, Run
from directgp.training.checkpoint import Journal, Tensors, under
from directgp.training.data import Batches, BatchFeed, Data, Feed, StreamFeed, WholeFeed
from directgp.training.distributed import Together
from directgp.training.lbfgs import lbfgs
from directgp.training.problems import (
    CollapsedUpdate,
    FreeProblem,
    HeldProblem,
    ModelProblem,
    Problem,
    ProfiledProblem,
    Randomness,
    trained_parameters,
)
from directgp.training.recipe import Recipe
from directgp.training.result import Failure, Phase, StageResult, Status, Stop


@final
class Trainer:
    """Runs the stages of a training on one set of data.

    Parameters
    ----------
    data : Data
        What to train on.
    generator : torch.Generator
        Randomness of every stage, of the device of the data.
    journal : Journal
        Knows stages that are finished, and is told of progress.
    since : float
        `time.perf_counter` when all of it began; now, unless given.
    together : Together
        The processes that share the examples; this one alone, unless given.
    rows : ParquetRows
        Where all examples are, when `data` is but one batch of them.
    """

    def __init__(
        self,
        data: Data,
        generator: torch.Generator,
        journal: Journal,
        since: float | None = None,
        together: Together | None = None,
        rows: ParquetRows | None = None,
    ) -> None:
        self.data = data
        self._rows = rows
        self._together = together or Together()
        self._generator = generator
        self._journal = journal
        self._since = time.perf_counter() if since is None else since
        self.failures: list[Failure] = []
        """Candidates that could not be trained."""
        self.phase = Phase()
        """What monitors are told about the run that comes next."""

    @property
    def seconds(self) -> float:
        """Wall time since the beginning."""
        return time.perf_counter() - self._since

    def optimizer(self, recipe: Recipe, posterior: SparsePosterior) -> Literal["lbfgs", "adam"]:
        """What "auto" chooses here."""
        return recipe.chosen_optimizer(len(self.data), posterior.Z.shape[-2])

    def stage(
        self,
        name: str,
        recipe: Recipe,
        posterior: SparsePosterior,
        likelihood: Likelihood,
        beta: float | Tensor,
        held: bool = False,
        before: Whitened | None = None,
    ) -> StageResult:
        """Minimise the recipe's objective in place; with the rest held, over q(u) alone.

        With a q(u) from before in the prior's place, the posterior has q(u) as seen from it.
        """
        known = self._journal.next_finished()
        if known is not None:
            result, tensors = known
            if result.stage != name:
                raise CheckpointError(
                    f"The checkpoint must have '{name}' for its next stage. Got '{result.stage}'. "
                    "Resume with the version that wrote it, or start again."
                )
            self._load_model(posterior, likelihood, tensors)
            if result.status == Status.FAILED:
                raise NumericalError(result.reason)
            return result
        try:
            result = self._run(name, recipe, posterior, likelihood, beta, held, before)
        except NumericalError as error:
            # A stage that follows must find its own place in the journal when this is replayed.
            failed = without_steps(name, Status.FAILED, str(error))
            self._journal.finish(failed, self._model_tensors(posterior, likelihood))
            raise
        except LostProcessError as error:
            error.add(self._journal.way_back())
            raise
        except KeyboardInterrupt:
            return without_steps(name, Status.INTERRUPTED, "Interrupted before the first step.")
        if not result.ends_training:
            # One that was ended from outside goes on, next time, from where it was last kept.
            self._journal.finish(result, self._model_tensors(posterior, likelihood))
        return result

    def value(
        self, recipe: Recipe, posterior: SparsePosterior, likelihood: Likelihood, beta: float
    ) -> float:
        """The objective over all examples, as a mean."""
        data = self.data
        objective = Objective(recipe.point_loss(), len(data), beta)
        with torch.no_grad():
            marginals = posterior.predict(data.X)
            loss = objective(
                likelihood,
                data.y,
                marginals,
                posterior.kl(),
                weights=data.weights,
                generator=self._generator,
            )
        return float(loss)

    def _run(
        self,
        name: str,
        recipe: Recipe,
        posterior: SparsePosterior,
        likelihood: Likelihood,
        beta: float | Tensor,
        held: bool,
        before: Whitened | None,
    ) -> StageResult:
        optimizer = self.optimizer(recipe, posterior)
        problem = self._problem(recipe, posterior, likelihood, beta, held, before, optimizer)
        steps = recipe.chosen_max_steps(optimizer, likelihood)
        noisy = not problem.deterministic
        stopping = recipe.chosen_stopping(optimizer, likelihood, noisy=noisy, held=held)
        monitors = (stopping, *recipe.monitors)
        run = Run(name, steps, monitors, self._since, self.phase, self._together.agree)
        if not problem.parameters:
            stop, loss = Stop(Status.CONVERGED, "The optimum is a formula."), _value(problem)
        elif optimizer == "lbfgs":
            stop, loss = self._lbfgs(problem, run), _value(problem)
        else:
            rate = recipe.chosen_learning_rate(not problem.feed.whole)
            try:
                stop = self._adam(problem, run, rate, recipe.observer)
            finally:
                problem.feed.close()
            last = run.losses[-1] if run.losses else math.nan
            loss = _value(problem) if problem.deterministic else last
        _write_q(problem)
        ends = stop.status in (Status.CANCELLED, Status.INTERRUPTED)
        return StageResult(
            stage=name,
            status=stop.status,
            reason=stop.reason,
            steps=run.steps,
            evaluations=run.evaluations,
            loss=loss,
            losses=tuple(run.losses),
            jitter=problem.jitter,
            at_floor=problem.at_floor(),
            ends_training=ends or (stop.status == Status.BUDGET and not run.exhausted),
        )

    def _problem(
        self,
        recipe: Recipe,
        posterior: SparsePosterior,
        likelihood: Likelihood,
        beta: float | Tensor,
        held: bool,
        before: Whitened | None,
        optimizer: str,
    ) -> ModelProblem:
        data = self.data
        number = len(data) if self._rows is None else self._rows.num_rows
        objective = Objective(recipe.point_loss(), number, beta)
        draws = not objective.point_loss.deterministic
        rank = self._together.rank if draws else None
        randomness = Randomness(self._generator, draws and optimizer == "lbfgs", rank)
        feed = self._feed(recipe, posterior, likelihood)
        kind = recipe.eliminated(likelihood, beta, optimizer, not feed.whole)
        parameters = {} if held else trained_parameters(posterior, likelihood)
        if before is not None and kind in ("vfe", "fitc") and isinstance(likelihood, Gaussian):
            return CollapsedUpdate(posterior, likelihood, data, objective, kind, before, randomness)
        if kind is not None and isinstance(likelihood, Gaussian):
            return ProfiledProblem(
                posterior, likelihood, data, objective, kind, parameters, randomness
            )
        if held:
            return HeldProblem(
                posterior, likelihood, data, objective, randomness, feed, self._together, before
            )
        return FreeProblem(
            posterior, likelihood, data, objective, parameters, randomness, feed, self._together
        )

    def _feed(self, recipe: Recipe, posterior: SparsePosterior, likelihood: Likelihood) -> Feed:
        data, random = self.data, self._generator
        if self._rows is not None:
            seed = int(torch.randint(2**31, (), generator=random, device=random.device))
            share = self._together.rank or 0, self._together.size
            return StreamFeed(self._rows.batches(len(data), seed, share), data, likelihood)
        size = recipe.chosen_batch_size(len(data), posterior.Z.shape[-2])
        return (
            WholeFeed(data) if size is None else BatchFeed(data, Batches(len(data), size, random))
        )

    def _lbfgs(self, problem: ModelProblem, run: Run) -> Stop:
        found = self._journal.take_up()
        if found is not None:
            _load_parameters(problem, found.tensors)
            run.resume(found.losses, found.evaluations)

        def keep() -> None:
            tensors = {name: p.detach() for name, p in problem.parameters.items()}
            self._journal.keep(run.losses, run.evaluations, tensors)

        return lbfgs(problem, run, self._journal.every, keep)

    def _adam(
        self, problem: ModelProblem, run: Run, rate: float, observer: Observer | None
    ) -> Stop:
        state = AdamState(problem, rate)
        found = self._journal.take_up()
        if found is not None:
            state.load(under("adam.", found.tensors))
            state.good = state.tensors()
            self._generator.set_state(found.tensors["generator"])
            problem.feed.load(under("batches.", found.tensors))
            run.resume(found.losses, found.evaluations)
            problem.randomness.renew(run.steps)

        def keep() -> None:
            tensors = {f"adam.{name}": value for name, value in state.tensors().items()}
            tensors["generator"] = self._generator.get_state()
            feed = problem.feed.tensors()
            tensors |= {f"batches.{name}": value for name, value in feed.items()}
            self._journal.keep(run.losses, run.evaluations, tensors)
            problem.randomness.renew(run.steps)

        def look() -> None:
            if observer is not None and run.steps % observer.every == 0:
                _write_q(problem)
                observer.see(run.steps, problem.posterior, problem.likelihood)

        def after_segment() -> None:
            look()
            if self._journal.every is not None and run.steps % self._journal.every == 0:
                keep()

        spans = [self._journal.every, None if observer is None else observer.every]
        known = [span for span in spans if span is not None]
        segment = math.gcd(*known) if known else None
        try:
            return adam(problem, run, state, segment, after_segment, look)
        except LostProcessError as error:
            error.add(f"That was at step {run.steps + 1} of {run.stage}.")
            raise

    def _model_tensors(self, posterior: SparsePosterior, likelihood: Likelihood) -> Tensors:
        tensors = {f"posterior.{name}": value for name, value in posterior.state_dict().items()}
        tensors |= {f"likelihood.{name}": value for name, value in likelihood.state_dict().items()}
        return tensors | {"generator": self._generator.get_state()}

    def _load_model(
        self, posterior: SparsePosterior, likelihood: Likelihood, tensors: Tensors
    ) -> None:
        posterior.load_state_dict(under("posterior.", tensors))
        likelihood.load_state_dict(under("likelihood.", tensors))
        self._generator.set_state(tensors["generator"])


def without_steps(name: str, status: Status, reason: str) -> StageResult:
    """The result of a stage that has nothing to tell but why it ended."""
    ends = status == Status.INTERRUPTED
    return StageResult(name, status, reason, 0, 0, math.nan, (), 0.0, (), ends)


def _load_parameters(problem: Problem, tensors: Tensors) -> None:
    with torch.no_grad():
        for name, parameter in problem.parameters.items():
            parameter.copy_(tensors[name])


def _write_q(problem: ModelProblem) -> None:
    """Put q(u) into the posterior, where a formula gives it."""
    if isinstance(problem, ProfiledProblem | CollapsedUpdate):
        problem.write_q()


def _value(problem: Problem) -> float:
    with torch.no_grad():
        problem.prepare()
        (losses,) = problem.pool(problem.value(0))
        return float(losses.mean())
