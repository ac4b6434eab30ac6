"""Choose kernel, likelihood, mode and β."""

import copy
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from directgp.errors import NumericalError
from directgp.training.beta_path import batches_models, brief, outwards, train_grid
from directgp.training.data import Data, Model
from directgp.training.result import (
    BetaPath,
    Failure,
    ModelTried,
    PathPoint,
    Phase,
    StageResult,
    TrainingResult,
)
from directgp.training.run import Recipe, close
from directgp.training.trainer import Trainer, elbo_run, fixed_run, joint_run
from directgp.training.validation import Folds, Given, Split, Validation, compare, split

_MANY_EXAMPLES, _SOME_EXAMPLES = 5000, 2500
"""Beyond the first number models are compared on the second number, drawn at random."""


@dataclass(frozen=True)
class Solution:
    """The ELBO solution of a model."""

    model: Model
    result: TrainingResult
    evidence: float
    """ELBO − ½ k log n, k the number of hyperparameters; the more the better."""


@dataclass(frozen=True)
class Trial:
    """A candidate, trained on every split, with the loss of every validation example."""

    hyperparameters: str
    beta: float
    results: tuple[TrainingResult, ...]
    losses: Float[Tensor, " v"]


@final
@dataclass
class Search:
    """Chooses kernel, likelihood, mode and β.

    `beta_path` trains the whole grid of the paper. Here the grid is followed from β = 1 outwards to
    where the losses rise, each candidate is trained on every split before the next candidate, and
    the chosen one is trained on all examples. `run` sets the results.
    """

    recipe: Recipe
    data: Data
    validation: Validation
    generator: torch.Generator
    best: TrainingResult = field(init=False)
    path: BetaPath = field(init=False)
    """The chosen candidate, trained on all examples, and all candidates with their mean losses;
    `chosen` is 0 where there are none."""

    solutions: list[Solution] = field(default_factory=list, init=False)
    trials: list[Trial] = field(default_factory=list, init=False)
    """Candidates of the best model, from the most to the least regularised; none where there was
    nothing to choose, or training ended before."""

    end: StageResult | None = field(default=None, init=False)
    """The run that a budget, a callback or Ctrl-C ended, and the search with it."""

    def __post_init__(self) -> None:
        self._since = time.perf_counter()
        self._failures: list[Failure] = []
        self._splits: list[Split] = []
        # Runs so far, and the largest number of runs.
        self._part, self._parts = 0, 1

    def run(
        self, models: Sequence[Sequence[Model]], betas: Sequence[float], modes: Sequence[str]
    ) -> "Search":
        """Choose a model by its evidence, then mode and β by validation; train on all examples.

        The kernel (row of `models`) is chosen with the first likelihood (column), the likelihood
        with that kernel, and the kernel once more with that likelihood. β falls along the grid, and
        the modes are "elbo", "fixed" and "joint".
        """
        # Runs: models (a column, a row, another column), candidates of each split, the chosen one.
        grids = sum(mode != "elbo" for mode in modes)
        single = len(betas) == len(modes) == grids == 1
        splits = self.validation.number if isinstance(self.validation, Folds) else 1
        candidates = splits * (1 + grids * len(betas)) + 1 if grids else 0
        sampled = len(models) * len(models[0]) > 1 and len(self.data) > _MANY_EXAMPLES
        most_models = 2 * len(models) + len(models[0]) - 2
        self._parts = most_models + sampled + (1 if single else candidates)
        chosen, points = 0, tuple[PathPoint, ...]()
        try:
            self.solutions = self._solutions(models, sampled)
            self._parts -= most_models - self._part
            base = max(self.solutions, key=lambda solution: solution.evidence)
            if sampled and self.end is None:
                name = f"ELBO, {base.model.name}, all examples"
                trainer = self._trainer(self.data, name, final=not grids)
                near = _for_all(base.model, base.result)
                result = elbo_run(trainer, self.recipe, near, near=True)
                base = replace(base, result=self._noted(result))
            self.best = base.result
            if single and self.end is None:
                name = f"{self.recipe.name}, {modes[0]}, all examples"
                trainer = self._trainer(self.data, name, final=True)
                result = _train_candidate(trainer, self.recipe, modes[0], betas[0], self.best)
                self.best = self._noted(result)
            elif grids and self.end is None:
                self.trials = self._trials(base, betas, modes)
            if self.trials:
                groups = [trial.hyperparameters for trial in self.trials]
                losses = torch.stack([trial.losses for trial in self.trials])
                comparison = compare(losses, groups)
                chosen = comparison.chosen
                points = comparison.points([trial.results[0] for trial in self.trials])
                self.best = self._on_all(base, self.trials[chosen])
        finally:
            close(self.recipe.monitors)
        self.path = BetaPath(
            points=points,
            chosen=chosen,
            loss=self.recipe.point_loss().validation_loss().name,
            seconds=time.perf_counter() - self._since,
            failed=tuple(self._failures),
            grid=tuple(betas),
            models=tuple(ModelTried(each.model.name, each.evidence) for each in self.solutions),
        )
        return self

    def _trainer(
        self, data: Data, name: str, fold: int | None = None, final: bool = False
    ) -> Trainer:
        """Return a trainer for the next run, whose name and number callbacks see."""
        self._part += 1
        if fold is not None and isinstance(self.validation, Folds):
            name += f", fold {fold + 1}"
        trainer = Trainer(data, self.generator, since=self._since)
        trainer.phase = Phase(name, self._part, max(self._part, self._parts), final)
        return trainer

    def _noted(self, result: TrainingResult) -> TrainingResult:
        """Keep the last stage of a run that a budget, a callback or Ctrl-C ended."""
        if result.ended:
            self.end = result.stages[-1]
        return result

    def _solutions(self, models: Sequence[Sequence[Model]], sampled: bool) -> list[Solution]:
        """Return the ELBO solution of each model that is tried, on a sample of many examples."""
        random, rows = self.generator, None
        if sampled:
            order = torch.randperm(len(self.data), generator=random, device=random.device)
            rows = order[:_SOME_EXAMPLES]
        tried: dict[tuple[int, int], Solution | None] = {}

        def evidence_at(place: tuple[int, int]) -> float:
            found = tried[place]
            return -math.inf if found is None else found.evidence

        def best(places: Iterable[tuple[int, int]]) -> tuple[int, int]:
            for i, j in places:
                if (i, j) not in tried:
                    tried[i, j] = self._solution(models[i][j], rows)
            return max(tried, key=evidence_at)

        kernel, _ = best((i, 0) for i in range(len(models)))
        _, likelihood = best((kernel, j) for j in range(len(models[0])))
        best((i, likelihood) for i in range(len(models)))
        solutions = [found for found in tried.values() if found is not None]
        if not solutions:
            raise NumericalError(self._failures[0].reason)
        return solutions

    def _solution(self, model: Model, rows: Int[Tensor, " r"] | None) -> Solution | None:
        if self.end is not None:
            return None
        data = self.data if rows is None else self.data.take(rows)
        likelihood = model.likelihood if rows is None else model.likelihood.for_rows(rows)
        trainer = self._trainer(data, f"ELBO, {model.name}")
        try:
            result = elbo_run(trainer, self.recipe, Model(model.posterior, likelihood))
        except NumericalError as error:
            self._failures.append(Failure(1.0, f"elbo, {model.name}", str(error)))
            return None
        # Schwarz: an example counts by its weight, the ELBO of some examples as that of all.
        parameters = (*result.posterior.prior.parameters(), *result.likelihood.parameters())
        k = sum(parameter.numel() for parameter in parameters if parameter.requires_grad)
        weights = self.data.weights
        n = len(self.data) if weights is None else float(weights.sum())
        evidence = -len(self.data) * result.loss - 0.5 * k * math.log(max(n, 1.0))
        evidence = evidence if math.isfinite(evidence) else -math.inf
        return Solution(model, self._noted(result), evidence)

    def _trials(self, base: Solution, betas: Sequence[float], modes: Sequence[str]) -> list[Trial]:
        """Train the candidates of the best model, from the most to the least regularised."""
        start = base.result.posterior, base.result.likelihood
        self._splits = split(self.validation, self.data, *start, self.generator)

        def train_elbo(k: int, trainer: Trainer) -> TrainingResult:
            if isinstance(self.validation, Given):
                return base.result
            model = Model(base.result.posterior, self._splits[k].likelihood)
            return elbo_run(trainer, self._brief(base.result), model, near=True)

        elbo = self._try("elbo", 1.0, "ELBO", train_elbo)
        if elbo is None:
            return []
        trials = [elbo] if "elbo" in modes else []
        for mode in ("fixed", "joint"):
            if mode in modes:
                trials += self._grid(elbo, betas, mode)
        return trials

    def _grid(self, elbo: Trial, betas: Sequence[float], mode: str) -> list[Trial]:
        """Train the candidates of one mode, and return them in the order of β."""
        number = len(self._splits[0].training)
        if batches_models(self.recipe, Model.of(elbo.results[0]), number):
            return self._batch(elbo, betas, mode)
        # Folds are used for few examples, on which a long joint run overfits.
        long = mode == "fixed" or not isinstance(self.validation, Folds)

        def candidate(beta: float, neighbour: Trial | None) -> Trial | None:
            def train(k: int, trainer: Trainer) -> TrainingResult:
                base = elbo.results[k]
                near = None if neighbour is None else neighbour.results[k]
                recipe = self.recipe if near is None and long else self._brief(base)
                return _train_candidate(trainer, recipe, mode, beta, base, near)

            return self._try(mode, beta, f"{self.recipe.name}, {mode}, β = {beta:.3g}", train)

        def rising(trials: Sequence[Trial | None], left: int) -> bool:
            """Return whether the last loss is NaN or no lower than those before it."""
            means = [math.inf if trial is None else float(trial.losses.mean()) for trial in trials]
            *before, last = [math.inf if math.isnan(mean) else mean for mean in means]
            if not before or last < min(before):
                return False
            self._parts -= len(self._splits) * left
            return True

        return outwards(betas, candidate, rising)

    def _batch(self, elbo: Trial, betas: Sequence[float], mode: str) -> list[Trial]:
        """Train every β at once, as one batch of models."""
        rows: list[list[TrainingResult]] = []
        for k, (part, base) in enumerate(zip(self._splits, elbo.results, strict=True)):
            name = f"{self.recipe.name}, {mode}, {len(betas)} values of β"
            trainer = self._trainer(part.training, name, k)
            self._part += len(betas) - 1
            held = mode == "fixed"
            found = train_grid(trainer, self.recipe, Model.of(base), betas, base, held)
            rows.append(list(map(self._noted, found)))
            self._failures += trainer.failures
            if self.end is not None or len(found) < len(betas):
                return []
        members = zip(betas, zip(*rows, strict=True), strict=True)
        return [self._validated(mode, beta, many) for beta, many in members]

    def _try(
        self, mode: str, beta: float, name: str, train: Callable[[int, Trainer], TrainingResult]
    ) -> Trial | None:
        """Train a candidate on every split; return None where it failed or the training ended."""
        results: list[TrainingResult] = []
        for k, part in enumerate(self._splits):
            if self.end is not None:
                return None
            trainer = self._trainer(part.training, name, k)
            try:
                results.append(self._noted(train(k, trainer)))
            except NumericalError as error:
                self._failures.append(Failure(beta, mode, str(error)))
                return None
        return self._validated(mode, beta, results)

    def _validated(self, mode: str, beta: float, results: Sequence[TrainingResult]) -> Trial:
        loss = self.recipe.point_loss().validation_loss()
        pairs = zip(self._splits, results, strict=True)
        losses = torch.cat([part.losses(result, loss) for part, result in pairs])
        return Trial(mode, beta, tuple(results), losses)

    def _on_all(self, base: Solution, chosen: Trial) -> TrainingResult:
        """Train the chosen candidate on all examples, from its state on a part of them."""
        found = chosen.results[0]
        if chosen.hyperparameters == "elbo":
            return base.result
        if self.end is not None or isinstance(self.validation, Given):
            return found
        trainer = self._trainer(self.data, "all examples", final=True)
        try:
            if chosen.hyperparameters == "fixed":
                return self._noted(fixed_run(trainer, self.recipe, base.result, chosen.beta))
            start = _for_all(base.model, found)
            return self._noted(joint_run(trainer, self._brief(found), start, chosen.beta))
        except NumericalError as error:
            self._failures.append(Failure(chosen.beta, "all examples", str(error)))
            return found

    def _brief(self, near: TrainingResult) -> Recipe:
        optimizer = self.recipe.chosen_optimizer(len(self.data), near.posterior.Z.shape[-2])
        return brief(self.recipe, optimizer, near.likelihood)


def _train_candidate(
    trainer: Trainer,
    recipe: Recipe,
    mode: str,
    beta: float,
    base: TrainingResult,
    near: TrainingResult | None = None,
) -> TrainingResult:
    """Train from the ELBO solution, or from a near candidate of the same mode."""
    if mode == "fixed":
        return fixed_run(trainer, recipe, base, beta, near)
    return joint_run(trainer, recipe, Model.of(near or base), beta)


def _for_all(model: Model, trained: TrainingResult) -> Model:
    """Return a model trained on some examples, with the likelihood of all examples."""
    likelihood = copy.deepcopy(model.likelihood)
    likelihood.load_state_dict(trained.likelihood.state_dict())
    return Model(trained.posterior, likelihood)
