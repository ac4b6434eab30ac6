"""Minimise by Adam, on a GPU with CUDA graphs."""

import math
from collections.abc import Callable, Mapping
from typing import final

import torch
from torch import Tensor, nn

from directgp.errors import InvalidInputError, NumericalError
from directgp.training.checkpoint import require_like, under
from directgp.training.graphs import RecordedWork
from directgp.training.problems import TrainingProblem
from directgp.training.result import INTERRUPTED, Stop
from directgp.training.run import Run

_PIECE = 4096
"""Entries that one block of threads works on; a longer piece would leave a device idle."""


@final
class FlatAdam:
    """Adam on one vector of parameters with lower bounds.

    The constructor reads the parameters; each step writes them.
    """

    def __init__(
        self, parameters: dict[str, nn.Parameter], learning_rate: float, floors: dict[str, float]
    ) -> None:
        self._parameters = list(parameters.values())
        self.learning_rate = learning_rate
        self.values = self._join([p.detach() for p in self._parameters])
        bounds = [
            torch.full_like(p, floors.get(name, -torch.inf)) for name, p in parameters.items()
        ]
        self._floors = self._join(bounds)
        parts = self.values.split([p.numel() for p in self._parameters])
        self._views = [v.view(p.shape) for v, p in zip(parts, self._parameters, strict=True)]
        self._moments = torch.zeros_like(self.values), torch.zeros_like(self.values)
        self._pieces = [self._split(values) for values in (self.values, *self._moments)]
        number = len(self._pieces[0])
        self._steps = torch.zeros(number, dtype=torch.float32, device=self.values.device)
        self._step_of_each = list(self._steps.unbind())

    def step(self, gradient: Tensor) -> None:
        """Take one step, then raise parameters to their lower bounds."""
        values, first, second = self._pieces
        self._steps.add_(1)
        torch._fused_adam_(
            values,
            self._split(gradient),
            first,
            second,
            [],
            self._step_of_each,
            lr=self.learning_rate,
            beta1=0.9,
            beta2=0.999,
            weight_decay=0.0,
            eps=1e-8,
            amsgrad=False,
            maximize=False,
        )
        torch.maximum(self.values, self._floors, out=self.values)
        self.write()

    def write(self) -> None:
        """Write the values to the parameters."""
        with torch.no_grad():
            torch._foreach_copy_(tuple(self._parameters), self._views)

    def spread(self, flags: Tensor) -> Tensor:
        """Return a flag for each value from one for each member of a batch of models."""
        wide = [flags.reshape(-1, *(1,) * (p.ndim - 1)).expand(p.shape) for p in self._parameters]
        return self._join(wide)

    def state(self) -> dict[str, Tensor]:
        """Return values, moments, step and learning rate."""
        return {
            "learning_rate": torch.tensor(self.learning_rate, dtype=torch.float64),
            "values": self.values.clone(),
            "first_moment": self._moments[0].clone(),
            "second_moment": self._moments[1].clone(),
            "step": self._steps[:1].clone(),
        }

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Go to a state that `state` returned."""
        self.learning_rate = float(state["learning_rate"])
        self.values.copy_(state["values"])
        self._moments[0].copy_(state["first_moment"])
        self._moments[1].copy_(state["second_moment"])
        self._steps.copy_(state["step"].expand(self._steps.shape))
        self.write()

    def _split(self, vector: Tensor) -> list[Tensor]:
        return list(vector.split(_PIECE)) if vector.is_cuda else [vector]

    def _join(self, tensors: list[Tensor]) -> Tensor:
        return torch.cat([tensor.reshape(-1) for tensor in tensors])


_RETRIES = 5
"""Times that a run goes back to its last good state with half the learning rate."""

_SNAPSHOT_EVERY = 50
"""Steps between two copies of the state to go back to."""

_STEPS_PER_REPLAY = 50
"""Steps replayed from a graph before their losses are checked."""


def adam(
    run: Run,
    state: "AdamState",
    segment: int | None = None,
    after_segment: Callable[[], None] = lambda: None,
    at_last_state: Callable[[], None] = lambda: None,
) -> Stop:
    """Take Adam's steps until the run stops.

    The parameters end at the best state of a deterministic problem, else at the last one. A value
    or gradient that is not finite takes the run back to its last good state, with half the
    learning rate. `after_segment` is called every `segment` steps, and `at_last_state` at the end,
    before the parameters go to the best state. Raises `NumericalError` if the run has gone back
    too often.
    """
    stop = None
    try:
        while stop is None:
            left = run.max_steps - run.steps
            if segment is not None:
                left = min(left, segment - run.steps % segment)
            losses, failure = state.steps(run.steps, left)
            run.evaluations += max(len(losses), 1)
            if failure:
                state.retries += 1
                if state.retries > _RETRIES:
                    raise NumericalError(
                        f"Training went back {_RETRIES} times, each time with half the learning "
                        f"rate, and still met a value that is not finite. {failure} Scale inputs "
                        "and targets, start from a smaller output scale, or train with "
                        "optimizer='lbfgs'."
                    )
                rate = state.optimizer.learning_rate / 2
                state.load_state(state.good)
                state.optimizer.learning_rate = rate
                continue
            stop = next(filter(None, map(run.step, losses)), None)
            if segment is not None and run.steps % segment == 0 and stop is None:
                after_segment()
        at_last_state()
    except KeyboardInterrupt:
        stop = INTERRUPTED
    except NumericalError:
        state.load_state(state.good)
        raise
    finally:
        state.restore_best()
    return stop


@final
class AdamState:
    """Adam's parameters and moments, with the best state of a deterministic problem."""

    def __init__(self, problem: TrainingProblem, learning_rate: float) -> None:
        self._problem = problem
        self._graphed: RecordedWork | None = None
        self._graphs_allowed = True
        self._sizes: dict[str, float] = {}
        self.optimizer = FlatAdam(problem.parameters, learning_rate, problem.floors)
        self._best = self.optimizer.values.clone()
        self._best_loss: Tensor | None = None
        self.good = self.state()
        """The last state with finite value and gradient."""
        self.retries = 0
        """Times that the run has gone back to the last good state."""

    def steps(self, step: int, at_most: int) -> tuple[list[float], str]:
        """Take steps, and return the losses before them, or an error text.

        Takes several steps from a CUDA graph where the problem allows it, until a value is not
        finite; else one step, with checks. Losses are means over a batch of models.
        """
        if self._graphed is None and self._problem.recordable() and self._graphs_allowed:
            before = self.state()
            try:
                self._graphed = RecordedWork(self._problem, self._advance, self._sizes)
            except (InvalidInputError, NumericalError):
                # Take steps with checks from now on; they return the error.
                self._graphs_allowed = False
            self.load_state(before)
        if self._graphed is None:
            return self._checked_step(step)
        batches = self._problem.batches
        generator = self._problem.randomness.generator
        self.good = self.state()
        position = batches.state()
        random = generator.get_state()
        try:
            losses = self._replayed(self._graphed, min(at_most, _STEPS_PER_REPLAY))
        except NumericalError as error:
            self._graphed = None
            self._graphs_allowed = False
            return [], str(error)
        self._sizes = self._graphed.outgrown()
        if self._sizes:
            self._graphed = None
            self.load_state(self.good)
            batches.load_state(position)
            generator.set_state(random)
            return [], ""
        finite = losses.isfinite().all() & self.optimizer.values.isfinite().all()
        if not bool(finite):
            self._graphed = None
            self._graphs_allowed = False
            return [], "The objective or a parameter was not finite."
        return losses.reshape(len(losses), -1).mean(-1).tolist(), ""

    def _replayed(self, graph: RecordedWork, number: int) -> Tensor:
        """Take some steps, and return the losses before each of them, on the device."""
        losses = []
        for _ in range(number):
            if self._problem.prepare():
                losses.append(graph.replay().clone())
                continue
            # Compute the step without the graph: the batch has another size than the recorded one.
            try:
                losses.append(self._advance())
            except InvalidInputError as error:
                # Call it a numerical error: `prepare` has checked the examples.
                raise NumericalError(str(error)) from error
        return torch.stack(losses)

    def _checked_step(self, step: int) -> tuple[list[float], str]:
        self._problem.prepare()
        failure = ""
        try:
            losses, gradient = self._problem.value_and_gradient(step)
        except (InvalidInputError, NumericalError) as error:
            failure = str(error)
            # Average NaN: the other processes wait for the average, and have to go back too.
            gradient = torch.full_like(self.optimizer.values, torch.nan)
            losses = gradient.new_tensor(torch.nan)
        losses, gradient = self._problem.average(losses, gradient)
        if not (_finite(losses) and _finite(gradient)):
            seen = f"The objective was {losses.tolist()}, or its gradient not finite."
            return [], failure or seen
        if step % _SNAPSHOT_EVERY == 0:
            # Copy the state before the step: here the value is finite.
            self.good = self.state()
        self._update(losses, gradient)
        return [float(losses.mean())], ""

    def _advance(self) -> Tensor:
        """Take one step without checks."""
        losses, gradient = self._problem.value_and_gradient(0)
        self._update(losses, gradient)
        return losses

    def _update(self, losses: Tensor, gradient: Tensor) -> None:
        """Store the state of each model whose loss is its lowest so far, then take a step."""
        if self._problem.deterministic:
            if self._best_loss is None:
                self._best_loss = torch.full_like(losses, torch.inf)
            better = losses < self._best_loss
            if losses.is_cuda or bool(better.any()):
                torch.where(better, losses, self._best_loss, out=self._best_loss)
                mask = better if better.ndim == 0 else self.optimizer.spread(better)
                torch.where(mask, self.optimizer.values, self._best, out=self._best)
        self.optimizer.step(gradient)

    def restore_best(self) -> None:
        """Set the parameters to the best state, if one was stored."""
        if self._best_loss is not None and bool(self._best_loss.isfinite().any()):
            self.optimizer.values.copy_(self._best)
            self.optimizer.write()

    def state(self) -> dict[str, Tensor]:
        """Return the state of the optimiser, with the best parameters and their loss."""
        state = self.optimizer.state() | {"best": self._best.clone()}
        if self._best_loss is not None:
            state["best_loss"] = self._best_loss.clone()
        return state

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Go to a state that `state` returned."""
        self.optimizer.load_state(state)
        self._best.copy_(state["best"])
        if "best_loss" not in state:
            # Reuse the tensor: a graph may write to it.
            self._best_loss = None if self._best_loss is None else self._best_loss.fill_(torch.inf)
        elif self._best_loss is None:
            self._best_loss = state["best_loss"].to(self._best.device, copy=True)
        else:
            self._best_loss.copy_(state["best_loss"])

    def to_save(self) -> dict[str, Tensor]:
        """Return the tensors that decide how the run continues."""
        states = {"adam": self.state(), "good": self.good}
        tensors = {
            f"{part}.{name}": at for part, state in states.items() for name, at in state.items()
        }
        return tensors | {"retries": torch.tensor(self.retries)}

    def resume(self, tensors: Mapping[str, Tensor]) -> None:
        """Go to the state of tensors from `to_save`; raise ValueError if they do not fit.

        Checkpoints of earlier versions have no good state and no retries.
        """
        saved = under("adam.", tensors)
        good = under("good.", tensors) or saved
        for state in (saved, good):
            required = {name: at for name, at in state.items() if name != "best_loss"}
            require_like(required, self.state())
        self.load_state(saved)
        self.good = good
        self.retries = int(tensors["retries"]) if "retries" in tensors else 0


def _finite(values: Tensor) -> bool:
    """Return whether all values are finite; a finite sum, which is faster, implies it."""
    return math.isfinite(values.sum()) or bool(values.isfinite().all())
