"""Record the work of a training step as a CUDA graph, for both optimisers."""

from collections.abc import Callable
from typing import Any, final

import torch

from directgp.numerics.fixed_sizes import FixedSizes, fixed_sizes
from directgp.training.problems import TrainingProblem

_WARM_UP = 3
"""Calls before a graph is recorded, in which libraries allocate their memory and sizes are learned;
the last has the sizes of the graph, and makes its constants."""


@final
class RecordedWork:
    """Work of a problem without checks, replayed from a CUDA graph.

    `sizes` are the smallest sizes of its quadratures, from an earlier graph. Call `prepare` of the
    problem outside of the graph.
    """

    def __init__(
        self,
        problem: TrainingProblem,
        work: Callable[[], Any],
        sizes: dict[str, float] | None = None,
        warm_up: int = _WARM_UP,
    ) -> None:
        self._sizes = FixedSizes(sizes)
        device = next(iter(problem.parameters.values())).device
        problem.batches.use_static_buffers()
        problem.checked = False
        generator = problem.randomness.generator
        state = generator.get_state()
        token = fixed_sizes.set(self._sizes)
        try:
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for left in reversed(range(warm_up)):
                    if left == 0:
                        self._sizes.record(device)
                    work()
            torch.cuda.current_stream().wait_stream(stream)
            self._graph = torch.cuda.CUDAGraph()
            self._graph.register_generator_state(generator)
            with torch.cuda.graph(self._graph):
                self._result = work()
        finally:
            fixed_sizes.reset(token)
            problem.checked = True
            generator.set_state(state)

    def replay(self) -> Any:
        """Do the work, and return its result, in memory that the next replay overwrites."""
        self._graph.replay()
        return self._result

    def outgrown(self) -> dict[str, float]:
        """Return the sizes for the next graph if this one had too few nodes; else an empty dict."""
        return self._sizes.outgrown()
