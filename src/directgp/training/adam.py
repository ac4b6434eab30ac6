"""Minimise by Adam: batches, sampled gradients and warm-up before L-BFGS."""

import math
from collections.abc import Callable
from typing import final

import torch
from torch import Tensor, nn

from directgp.errors import InvalidInputError, NumericalError
from directgp.log_expectations.quadrature import FixedNodes, fixed_nodes
from directgp.training.callbacks import Run
from directgp.training.problems import Problem
from directgp.training.result import Status, Stop

_PIECE = 4096
"""Entries that one block of threads works on; a longer piece would leave a device idle."""


@final
class FlatAdam:
    """The values of some parameters with Adam's moments.

    Parameters
    ----------
    parameters : dict of str to Parameter
        Written after each step, and read once, here.
    learning_rate : float
        The size of a step.
    floors : dict of str to float
        Smallest value of some of them.
    """

    def __init__(
        self,
        parameters: dict[str, nn.Parameter],
        learning_rate: float,
        floors: dict[str, float],
    ) -> None:
        self._parameters = list(parameters.values())
        self.learning_rate = learning_rate
        self.values = self._join([parameter.detach() for parameter in self._parameters])
        self._floors = self._join(
            [torch.full_like(p, floors.get(name, -torch.inf)) for name, p in parameters.items()]
        )
        parts = self.values.split([parameter.numel() for parameter in self._parameters])
        self._views = [
            part.view(parameter.shape)
            for part, parameter in zip(parts, self._parameters, strict=True)
        ]
        self._moments = torch.zeros_like(self.values), torch.zeros_like(self.values)
        self._pieces = [self._split(values) for values in (self.values, *self._moments)]
        number = len(self._pieces[0])
        self._steps = torch.zeros(number, dtype=torch.float32, device=self.values.device)
        self._step_of_each = list(self._steps.unbind())

    def gradient(self) -> Tensor:
        """The gradients of the parameters, 0 where there is none."""
        found = [torch.zeros_like(p) if p.grad is None else p.grad for p in self._parameters]
        return self._join(found)

    def clear_gradient(self) -> None:
        """Forget the gradients."""
        for parameter in self._parameters:
            parameter.grad = None

    def step(self, gradient: Tensor) -> None:
        """One step; the parameters are at their floors at least after it."""
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
        """Give the parameters their values."""
        with torch.no_grad():
            torch._foreach_copy_(tuple(self._parameters), self._views)

    def spread(self, flags: Tensor) -> Tensor:
        """What is said of each member of a batch of models, said of each of its values."""
        wide = [flags.reshape(-1, *(1,) * (p.ndim - 1)).expand(p.shape) for p in self._parameters]
        return self._join(wide)

    def tensors(self) -> dict[str, Tensor]:
        """Everything that decides how the steps go on."""
        first, second = self._moments
        return {
            "learning_rate": torch.tensor(self.learning_rate, dtype=torch.float64),
            "values": self.values.clone(),
            "first_moment": first.clone(),
            "second_moment": second.clone(),
            "step": self._steps[:1].clone(),
        }

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Go to a state that `tensors` has told."""
        self.learning_rate = float(tensors["learning_rate"])
        self.values.copy_(tensors["values"])
        for moment, name in zip(self._moments, ("first_moment", "second_moment"), strict=True):
            moment.copy_(tensors[name])
        self._steps.copy_(tensors["step"].expand(self._steps.shape))
        self.write()

    def _split(self, vector: Tensor) -> list[Tensor]:
        return list(vector.split(_PIECE)) if vector.is_cuda else [vector]

    def _join(self, tensors: list[Tensor]) -> Tensor:
        return torch.cat([tensor.reshape(-1) for tensor in tensors])


_WARM_UP = 3


@final
class GraphedSteps:
    """Steps of one size recorded once and replayed; steps of other sizes are taken as they come.

    Parameters
    ----------
    problem : Problem
        Its `prepare` chooses the examples of each step, outside of the graph.
    advance : callable
        One step without a look at its outcome; returns the losses before it.
    nodes : int
        The least that a quadrature in it is given.
    """

    def __init__(self, problem: Problem, advance: Callable[[], Tensor], nodes: int = 0) -> None:
        self._problem, self._advance = problem, advance
        self._nodes = FixedNodes(nodes)
        problem.hold()
        problem.checked = False
        generator = problem.generator
        state = None if generator is None else generator.get_state()
        token = fixed_nodes.set(self._nodes)
        try:
            self._record()
        finally:
            fixed_nodes.reset(token)
            problem.checked = True
            if generator is not None and state is not None:
                generator.set_state(state)

    def run(self, number: int) -> Tensor:
        """The losses before each of so many steps, on the device."""
        losses = []
        for _ in range(number):
            if self._problem.prepare():
                self._graph.replay()
                losses.append(self._losses.clone())
            else:
                losses.append(self._unrecorded())
        return torch.stack(losses)

    def _unrecorded(self) -> Tensor:
        try:
            return self._advance()
        except InvalidInputError as error:
            # Of numbers that have gone wrong; what is wrong with the examples `prepare` tells.
            raise NumericalError(str(error)) from error

    def outgrown(self) -> int:
        """How many nodes a quadrature should be given next time, where it had too few; else 0."""
        return 2 * self._nodes.number if self._nodes.exceeded() else 0

    def _record(self) -> None:
        # Libraries set themselves up in the first steps, which a graph must not hold.
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UP):
                self._advance()
        torch.cuda.current_stream().wait_stream(stream)
        self._nodes.record(next(iter(self._problem.parameters.values())).device)
        self._graph = torch.cuda.CUDAGraph()
        if self._problem.generator is not None:
            self._graph.register_generator_state(self._problem.generator)
        with torch.cuda.graph(self._graph):
            self._losses = self._advance()


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
