"""directgp with its defaults; the objective after each step is exact, so it is recorded."""

import time
from dataclasses import dataclass, field
from typing import final

import numpy as np
import torch
from typing_extensions import override

import directgp
from benchmarks.optimum.jobs import Given, Parameters, Run, Settings, run_jobs
from benchmarks.optimum.recorder import Recorder
from benchmarks.optimum.reference import likelihood_of, posterior_of
from directgp.training import Monitor, Progress, TrainingResult


@final
@dataclass(eq=False)
class Trace(Monitor):
    """Record processor time and objective after each step of one stage."""

    stage: str
    moments: list[tuple[float, float]] = field(default_factory=list)
    _since: float = field(default_factory=time.process_time)

    @override
    def __call__(self, progress: Progress) -> None:
        """Record a step of the stage; steps of the preceding ELBO run only take time."""
        if progress.stage in (self.stage, f"{self.stage}, warm-up"):
            self.moments.append((time.process_time() - self._since, progress.loss))

    @override
    def reset(self) -> None:
        """Do nothing: the clock runs through all stages."""


def parameters_of(result: TrainingResult) -> Parameters:
    """Return the parameters that determine the predictions."""
    posterior, prior = result.posterior, result.posterior.prior
    noise = getattr(result.likelihood, "noise", torch.zeros(()))
    values = {
        "Z": posterior.Z,
        "lengthscale": prior.kernel.lengthscale.squeeze(),
        "output_scale": prior.scale,
        "mean": getattr(prior.mean_function, "constant", torch.zeros(())),
        "noise": noise,
        "u_mean": posterior.u_mean,
        "u_chol": posterior.u_chol.tril(),
        "jitter": posterior.nugget * prior.scale,
    }
    return {name: value.detach().double().numpy().copy() for name, value in values.items()}


def train(given: Given, settings: Settings) -> Run:
    """Call `directgp.train` once."""
    X, y = torch.from_numpy(given.X), torch.from_numpy(given.y)
    posterior, likelihood = posterior_of(given), likelihood_of(given)
    recorder, trace = Recorder(settings), Trace(given.objective)
    result = directgp.train(
        posterior,
        likelihood,
        X,
        y,
        objective=given.objective,
        beta=given.beta,
        hyperparameters="joint",
        max_steps=settings.steps,
        monitors=[trace],
        generator=torch.Generator().manual_seed(settings.seed),
    )
    recorder.steps = result.steps
    recorder.look = lambda: parameters_of(result)
    return recorder.run(result.loss, np.array(trace.moments))


if __name__ == "__main__":
    torch.set_num_threads(1)
    run_jobs(train)
