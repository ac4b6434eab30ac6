"""Training steps replayed from a CUDA graph: one launch a step, and no waiting between steps."""

from collections.abc import Callable
from typing import final

import torch
from torch import Tensor

from directgp.errors import InvalidInputError, NumericalError
from directgp.log_expectations.fixed_nodes import FixedNodes, fixed_nodes
from directgp.training.problem import Problem

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
