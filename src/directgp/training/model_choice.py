"""Choose kernel and likelihood, by short runs on a part of the examples."""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import cast, final

import torch

from directgp.likelihoods.starts import latent_starts, starting_likelihood
from directgp.posteriors.sparse import SparsePosterior
from directgp.training.data import Data, Model
from directgp.training.race import FIRST_STEPS, Race, Trial
from directgp.training.result import ModelTried, TrainingResult
from directgp.training.validation import compare, for_rows_of

_FEW_INDUCING = 50
"""Inducing inputs with which models are compared by validation."""

_EXPLAINED = 0.05
"""Smallest share of the variance that an ELBO solution explains if a model starts from it."""

_MOST_ROWS = 2000
"""Examples by which models are compared: a quarter of them, up to this number."""


@final
@dataclass
class ModelChoice:
    """Compares models by their evidence, or by the validation loss after a few joint steps.

    ARD, kernel and likelihood are chosen in turn, by short runs of a race.
    """

    race: Race
    """Trains the models."""

    by_evidence: bool
    """Whether models are compared by their evidence, and not by the validation loss."""

    tried: dict[str, ModelTried] = field(default_factory=dict, init=False)
    """Evidence or validation loss of each model, by name."""

    best: TrainingResult | None = field(default=None, init=False)
    """The chosen model after its short runs."""

    def __post_init__(self) -> None:
        self._first: dict[str, Model] = {}
        self._solutions: dict[str, TrainingResult | None] = {}
        self._trials: dict[str, Trial] = {}
        self._seen: set[str] = set()

    def choose(self, models: Sequence[Sequence[Model]]) -> tuple[Model, Model] | None:
        """Return the model for a first ELBO run, and the one to train, of the same kernel.

        A row of `models` has one kernel, a column one likelihood; the first ones are preferred.
        None where no model could be trained.
        """
        race = self.race
        whole = race.splits
        part = whole[0]
        rows = min(len(race.data) // 4, _MOST_ROWS)
        if self.by_evidence:
            # All examples are for training.
            part = replace(part, training=race.data, likelihood=models[0][0].likelihood)
        race.splits = [race.some(part, max(race.effort.rows_for_models, rows))]
        self._first = {model.name: first_of(row, model) for row in models for model in row}
        # By evidence, compare kernels with the first likelihood; by validation, with the last,
        # whose heavy tails make outliers matter least.
        of_first_scale = [[m for m in row if self._first[m.name] is row[0]] for row in models]
        column = [row[0 if self.by_evidence else -1] for row in of_first_scale]
        try:
            pair = [model for model in column if _kernel(model) == _kernel(column[0])]
            kind = self._best(pair) or pair[0]
            if not race.effort.first_only:
                pair = [m for m in column if m is kind or _has_ard(m) == _has_ard(kind)]
            best = self._best(pair)
            if best is None:
                return None
            row = models[column.index(best)]
            chosen = self._best(row[::-1]) or best
            first = self._first[chosen.name]
        finally:
            race.splits = whole
        self.tried[chosen.name] = replace(self.tried[chosen.name], chosen=True)
        self.best = self._trials[chosen.name].results[0]
        if self.by_evidence:
            # Later runs start from these hyperparameters. Reset q(u), which has seen all examples.
            solution = cast(TrainingResult, self._solutions[first.name])
            posterior = copy.deepcopy(solution.posterior)
            posterior.reset()
            likelihood = for_rows_of(solution.likelihood, first.likelihood)
            first = Model(posterior, likelihood, first.name)
        return first, chosen

    def _best(self, models: Sequence[Model]) -> Model | None:
        for model in models:
            self._try(model)
        trained = [model for model in models if model.name in self._trials]
        if not trained:
            return None
        if self.by_evidence:
            return max(trained, key=lambda model: cast(float, self.tried[model.name].evidence))
        losses = torch.stack([self._trials[model.name].losses for model in trained])
        return trained[compare(losses).chosen]

    def _try(self, model: Model) -> None:
        """Train a model once: for the ELBO, or jointly from the ELBO solution of its kernel."""
        race = self.race
        name = model.name
        first = self._first[name]
        if name in self._seen:
            return
        self._seen.add(name)
        if race.leaves_out(name):
            return
        small = model if self.by_evidence else _with_few_inducing(model)
        start = self._solution(first)
        if start is None:
            return
        start = start_of(small, first, start, race.splits[0].training)
        if self.by_evidence and model is not first:
            solutions = race.elbo(Model.of(start)._replace(name=name), 2 * FIRST_STEPS)
            if solutions is None:
                return
            (start,) = solutions
        trial = race.trial(small, "joint", 1.0, [start])
        if self.by_evidence:
            self.tried[name] = ModelTried(name, evidence(start, race.splits[0].training))
        else:
            if not race.by_adam(small):
                (trial,) = race.advanced([trial], FIRST_STEPS)
            self.tried[name] = ModelTried(name, loss=trial.loss)
        self._trials[name] = trial

    def _solution(self, first: Model) -> TrainingResult | None:
        """Return the ELBO solution of a kernel with its first likelihood."""
        name = first.name
        steps = 2 * FIRST_STEPS if self.by_evidence else FIRST_STEPS
        if name not in self._solutions:
            small = first if self.by_evidence else _with_few_inducing(first)
            solutions = self.race.elbo(small, steps)
            self._solutions[name] = None if solutions is None else solutions[0]
        return self._solutions[name]


def evidence(result: TrainingResult, data: Data) -> float:
    """Return ELBO − ½ k log n (Schwarz), with k the number of hyperparameters."""
    parameters = (*result.posterior.prior.parameters(), *result.likelihood.parameters())
    k = sum(parameter.numel() for parameter in parameters if parameter.requires_grad)
    n = len(data) if data.weights is None else float(data.weights.sum())
    value = -len(data) * result.loss - 0.5 * k * math.log(max(n, 1.0))
    return value if math.isfinite(value) else -math.inf


def first_of(row: Sequence[Model], model: Model) -> Model:
    """Return the first model of a row whose likelihood has the latent scale of a model."""
    scale = model.likelihood.latent_scale
    return next(first for first in row if first.likelihood.latent_scale == scale)


def start_of(model: Model, first: Model, solution: TrainingResult, data: Data) -> TrainingResult:
    """Return the ELBO solution of the first model as the state from which a model starts.

    Where the solution explains the targets by noise alone, the state is the untrained model.
    """
    mean = solution.posterior.predict(data.X).mean
    likelihood = for_rows_of(model.likelihood, solution.likelihood)
    if likelihood.additive and not float(mean.var()) > _EXPLAINED * float(data.y.var()):
        return replace(solution, posterior=copy.deepcopy(model.posterior), likelihood=likelihood)
    if model.name == first.name:
        return solution
    if model.posterior.num_latent == solution.posterior.num_latent > 1:
        if model.posterior.Z.dim() <= solution.posterior.Z.dim():
            return solution
        return replace(solution, posterior=solution.posterior.with_own_kernels())
    # Scale the residuals: a likelihood starts with a tenth of the variance of its targets as noise.
    noise = math.sqrt(10) * (data.y - mean)
    if likelihood.num_latent > solution.posterior.num_latent:
        posterior = _with_more_latents(solution.posterior, latent_starts(likelihood, noise))
        return replace(solution, posterior=posterior, likelihood=likelihood)
    if likelihood.additive:
        likelihood = starting_likelihood(type(likelihood), noise).to(data.X)
        likelihood = for_rows_of(likelihood, solution.likelihood)
    return replace(solution, likelihood=likelihood)


def _with_more_latents(
    posterior: SparsePosterior, starts: Sequence[tuple[float, float]]
) -> SparsePosterior:
    """Return a posterior with more latents: the first keeps its q(u), the others have q(u) = p(u).

    All start with the same kernel and inducing inputs, and with these constant means and variances.
    """
    prior = posterior.prior
    constant = getattr(prior.mean_function, "constant", torch.zeros(()))
    start_of_first = float(constant.detach()), float(prior.output_scale.detach())
    twin = posterior.with_latents(len(starts))
    twin.prior = prior.with_starts([start_of_first, *starts[1:]])
    with torch.no_grad():
        twin.u_mean[1:] = 0
        twin.u_chol[1:] = torch.eye(posterior.num_inducing).to(twin.u_chol)
    return twin


def _with_few_inducing(model: Model) -> Model:
    posterior = model.posterior
    step = -(-posterior.num_inducing // _FEW_INDUCING)
    return Model(posterior.thinned(step), model.likelihood, model.name)


def _kernel(model: Model) -> str:
    return model.name.split(",")[0].removesuffix(" ARD")


def _has_ard(model: Model) -> bool:
    return model.name.split(",")[0].endswith(" ARD")
