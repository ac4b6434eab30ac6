"""Adam, for batches of examples and for rules that draw."""

import math
from collections.abc import Callable
from typing import final

import torch
from torch import Tensor

from directgp.errors import InvalidInputError, NumericalError
from directgp.training.flat_adam import FlatAdam
from directgp.training.graphed import GraphedSteps
from directgp.training.problem import Problem
from directgp.training.result import Status, Stop
from directgp.training.run import Run

_RETRIES = 5
"""Times that a run goes back to its last good state with half the learning rate."""

_SNAPSHOT_EVERY = 50

_STEPS_PER_LOOK = 50
"""Steps replayed from a graph between two looks at their losses."""


def adam(
    problem: Problem,
    run: Run,
    state: "AdamState",
    segment: int | None = None,
    after_segment: Callable[[], None] = lambda: None,
    at_last_state: Callable[[], None] = lambda: None,
) -> Stop:
    """Take Adam's steps until the run stops.

    The parameters end at the best state of a deterministic problem, else at the last one. A value
    or gradient that is not finite takes the run back to its last good state, with half the
    learning rate.

    Parameters
    ----------
    problem : Problem
        What to minimise; its parameters are changed in place.
    run : Run
        Counts and stops.
    state : AdamState
        The optimiser with its moments.
    segment : int
        Steps after which `after_segment` is called; never, when None.
    after_segment : callable
        Keeps a checkpoint.
    at_last_state : callable
        Called when the run has stopped, before the parameters go to the best state.

    Raises
    ------
    NumericalError
        If the run has gone back too often.
    """
    stop, retries = None, 0
    try:
        while stop is None:
            left = run.max_steps - run.steps
            if segment is not None:
                left = min(left, segment - run.steps % segment)
            losses, trouble = state.steps(run.steps, left)
            run.evaluations += max(len(losses), 1)
            if trouble:
                retries += 1
                if retries > _RETRIES:
                    raise NumericalError(
                        f"Training went back {_RETRIES} times, each time with half the learning "
                        f"rate, and still met a value that is not finite. {trouble} Scale inputs "
                        "and targets, start from a smaller output scale, or train with "
                        "optimizer='lbfgs'."
                    )
                rate = state.learning_rate / 2
                state.load(state.good)
                state.learning_rate = rate
                continue
            stop = next(filter(None, map(run.step, losses)), None)
            if segment is not None and run.steps % segment == 0 and stop is None:
                after_segment()
        at_last_state()
    except KeyboardInterrupt:
        stop = Stop(Status.INTERRUPTED, "Interrupted; the best state so far is kept.")
    except NumericalError:
        state.load(state.good)
        raise
    finally:
        state.restore_best()
    return stop


@final
class AdamState:
    """Parameters with Adam's moments, and the best state seen of a deterministic problem."""

    def __init__(self, problem: Problem, learning_rate: float) -> None:
        self._problem = problem
        self._graphed: GraphedSteps | None = None
        self._trusts = True
        self._nodes = 0
        self._optimizer = FlatAdam(problem.parameters, learning_rate, problem.floors)
        self._best = self._optimizer.values.clone()
        self._best_loss: Tensor | None = None
        self.good = self.tensors()
        """The last state that is known to be good."""

    @property
    def learning_rate(self) -> float:
        """The size of a step."""
        return self._optimizer.learning_rate

    @learning_rate.setter
    def learning_rate(self, rate: float) -> None:
        self._optimizer.learning_rate = rate

    def steps(self, step: int, at_most: int) -> tuple[list[float], str]:
        """The losses before some steps, means over a batch of models; or what went wrong.

        One step at a time, or several from a CUDA graph where the problem allows it. After
        trouble the steps are watched one by one.
        """
        if self._graphed is None and self._problem.recordable() and self._trusts:
            before = self.tensors()
            self._graphed = GraphedSteps(self._problem, self._advance, self._nodes)
            self.load(before)
        if self._graphed is None:
            return self._watched_step(step)
        self.good, place = self.tensors(), self._problem.place()
        try:
            losses = self._graphed.run(min(at_most, _STEPS_PER_LOOK))
        except NumericalError as error:
            self._graphed, self._trusts = None, False
            return [], str(error)
        self._nodes = self._graphed.outgrown()
        if self._nodes > 0:
            self._graphed = None
            self.load(self.good)
            self._problem.go_to(place)
            return [], ""
        finite = losses.isfinite().all() & self._optimizer.values.isfinite().all()
        if not bool(finite):
            self._graphed, self._trusts = None, False
            return [], "The objective or a parameter was not finite."
        return losses.reshape(len(losses), -1).mean(-1).tolist(), ""

    def _watched_step(self, step: int) -> tuple[list[float], str]:
        self._optimizer.clear_gradient()
        self._problem.prepare()
        trouble = ""
        try:
            losses, gradient = self._losses_and_gradient(step)
        except (InvalidInputError, NumericalError) as error:
            trouble = str(error)
            # Other processes wait for this one, and go back with it.
            gradient = torch.full_like(self._optimizer.values, torch.nan)
            losses = gradient.new_tensor(torch.nan)
        losses, gradient = self._problem.pool(losses, gradient)
        if not (_finite(losses) and _finite(gradient)):
            said = f"The objective was {losses.tolist()}, or its gradient not finite."
            return [], trouble or said
        if step % _SNAPSHOT_EVERY == 0:
            # Here the value is known to be finite; where the step leads it is not yet.
            self.good = self.tensors()
        self._update(losses, gradient)
        return [float(losses.mean())], ""

    def _advance(self) -> Tensor:
        """One step, unwatched."""
        self._optimizer.clear_gradient()
        losses, gradient = self._losses_and_gradient(0)
        self._update(losses, gradient)
        return losses

    def _losses_and_gradient(self, step: int) -> tuple[Tensor, Tensor]:
        losses = self._problem.value(step)
        losses.sum().backward()
        return losses.detach(), self._optimizer.gradient()

    def _update(self, losses: Tensor, gradient: Tensor) -> None:
        if self._problem.deterministic:
            self._remember(losses)
        self._optimizer.step(gradient)

    def restore_best(self) -> None:
        """Set the parameters to the best state, where one was kept."""
        if self._best_loss is not None and bool(self._best_loss.isfinite().any()):
            self._optimizer.values.copy_(self._best)
            self._optimizer.write()

    def tensors(self) -> dict[str, Tensor]:
        """Everything that decides how the run goes on."""
        found = self._optimizer.tensors() | {"best": self._best.clone()}
        if self._best_loss is not None:
            found["best_loss"] = self._best_loss.clone()
        return found

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Go to a state that `tensors` has told."""
        self._optimizer.load(tensors)
        self._best.copy_(tensors["best"])
        if "best_loss" not in tensors:
            # The tensor stays: a graph may write to it.
            self._best_loss = None if self._best_loss is None else self._best_loss.fill_(torch.inf)
        elif self._best_loss is None:
            self._best_loss = tensors["best_loss"].to(self._best.device, copy=True)
        else:
            self._best_loss.copy_(tensors["best_loss"])

    def _remember(self, losses: Tensor) -> None:
        """Keep the state of each model whose loss is the lowest yet."""
        if self._best_loss is None:
            self._best_loss = torch.full_like(losses, torch.inf)
        better = losses < self._best_loss
        if not losses.is_cuda and not bool(better.any()):
            return
        torch.where(better, losses, self._best_loss, out=self._best_loss)
        mask = better if better.ndim == 0 else self._optimizer.spread(better)
        torch.where(mask, self._optimizer.values, self._best, out=self._best)


def _finite(values: Tensor) -> bool:
    """Whether all are; where their sum is, which is quicker to tell, all are."""
    return math.isfinite(values.sum()) or bool(values.isfinite().all())
