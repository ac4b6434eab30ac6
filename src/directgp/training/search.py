"""Choose kernel, likelihood, mode and β."""

import copy
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from directgp.errors import NumericalError
from directgp.training.beta_path import batches_models, brief, outwards, train_grid
from directgp.training.callbacks import close
from directgp.training.data import Data, Model
from directgp.training.recipe import Recipe
from directgp.training.result import (
    BetaPath,
    Failure,
    ModelTried,
    PathPoint,
    Phase,
    StageResult,
    TrainingResult,
)
from directgp.training.trainer import Trainer, elbo_run, fixed_run, joint_run
from directgp.training.validation import (
    Folds,
    Given,
    Split,
    Validation,
    compare_groups,
    split,
)


@dataclass(frozen=True)
class Solution:
    """The ELBO solution of a model."""

    model: Model
    result: TrainingResult
    evidence: float
    """ELBO − ½ k log n, k the number of hyperparameters; the more the better."""

    whole: bool
    """Whether it was trained on all examples."""


@dataclass(frozen=True)
class Trial:
    """A candidate, which is a mode and a β, trained on every split."""

    hyperparameters: str
    """"elbo", "fixed" or "joint"."""

    beta: float
    results: tuple[TrainingResult, ...]
    """One for each split."""

    losses: Float[Tensor, " v"]
    """Loss of every validation example."""

    @property
    def loss(self) -> float:
        """Mean validation loss; infinite where one is NaN."""
        loss = float(self.losses.mean())
        return math.inf if math.isnan(loss) else loss


@dataclass(frozen=True)
class SearchResult:
    """Every candidate, the chosen one, and that one trained on all examples."""

    best: TrainingResult
    solutions: tuple[Solution, ...]
    """The models that were tried."""

    trials: tuple[Trial, ...]
    """Of the best model, from the most to the least regularised; none where there was nothing to
    choose, or training ended before."""

    path: BetaPath
    """The same candidates with their mean losses; `chosen` is 0 where there are none."""

    end: StageResult | None = None
    """The run that a budget, a callback or Ctrl-C ended, and the search with it."""


def evidence(result: TrainingResult, data: Data) -> float:
    """Return ELBO − ½ k log n, k the number of hyperparameters (Schwarz).

    An example counts by its weight, and the ELBO of a part of the data as that of all.
    """
    parameters = (*result.posterior.prior.parameters(), *result.likelihood.parameters())
    k = sum(parameter.numel() for parameter in parameters if parameter.requires_grad)
    n = len(data) if data.weights is None else float(data.weights.sum())
    found = -len(data) * result.loss - 0.5 * k * math.log(max(n, 1.0))
    return found if math.isfinite(found) else -math.inf


def most_models(models: Sequence[Sequence[Model]]) -> int:
    """Return the largest number of models of `try_models`: a column, a row, another column."""
    return 2 * len(models) + len(models[0]) - 2


def try_models(
    models: Sequence[Sequence[Model]], solve: Callable[[Model], Solution | None]
) -> list[Solution]:
    """Return the solutions of a kernel chosen with the first likelihood, a likelihood, a kernel.

    `models` has one row for each kernel, with one model for each likelihood.
    """
    tried: dict[tuple[int, int], Solution | None] = {}

    def evidence_at(place: tuple[int, int]) -> float:
        found = tried[place]
        return -math.inf if found is None else found.evidence

    def best(places: Iterable[tuple[int, int]]) -> tuple[int, int]:
        for i, j in places:
            if (i, j) not in tried:
                tried[i, j] = solve(models[i][j])
        return max(tried, key=evidence_at)

    kernel, _ = best((i, 0) for i in range(len(models)))
    _, likelihood = best((kernel, j) for j in range(len(models[0])))
    best((i, likelihood) for i in range(len(models)))
    return [found for found in tried.values() if found is not None]


_MANY_EXAMPLES, _SOME_EXAMPLES = 5000, 2500
"""Beyond the first number models are compared on the second number, drawn at random."""


class Fold(NamedTuple):
    """A split of the data with its trainer."""

    trainer: Trainer
    split: Split


@final
@dataclass
class Search:
    """Chooses kernel, likelihood, mode and β.

    `beta_path` trains the whole grid of the paper. Here the grid is followed from β = 1 outwards to
    where the losses rise, each candidate is trained on every split before the next candidate, and
    the chosen one is trained on all examples.
    """

    recipe: Recipe
    data: Data
    validation: Validation
    generator: torch.Generator
    since: float = field(default_factory=time.perf_counter)
    _end: StageResult | None = field(default=None, init=False)
    _failures: list[Failure] = field(default_factory=list, init=False)
    _part: int = field(default=0, init=False)
    _parts: int = field(default=1, init=False)
    _folds: list[Fold] = field(default_factory=list, init=False)

    def run(
        self, models: Sequence[Sequence[Model]], betas: Sequence[float], modes: Sequence[str]
    ) -> SearchResult:
        """Choose a model by its evidence, then mode and β by validation; train on all examples.

        The kernel (row of `models`) is chosen with the first likelihood (column), the likelihood
        with that kernel, and the kernel once more with that likelihood. β falls along the grid, and
        the modes are "elbo", "fixed" and "joint".
        """
        self._parts = self._most_parts(models, betas, modes)
        chosen, points, trials = 0, tuple[PathPoint, ...](), list[Trial]()
        try:
            solutions = self._solutions(models)
            base = self._whole(max(solutions, key=lambda solution: solution.evidence))
            best = base.result
            if _single(betas, modes):
                best = self._sole(base, betas[0], modes[0])
            elif not self._ended and modes != ["elbo"]:
                trials = self._compete(base, betas, modes)
            if trials:
                losses = torch.stack([trial.losses for trial in trials])
                comparison = compare_groups(losses, [trial.hyperparameters for trial in trials])
                chosen = comparison.chosen
                points = comparison.points([trial.results[0] for trial in trials])
                best = self._on_all(base, trials[chosen])
        finally:
            close(self.recipe.monitors)
        path = BetaPath(
            points=points,
            chosen=chosen,
            loss=self.recipe.validation_loss().name,
            seconds=time.perf_counter() - self.since,
            failed=tuple(self._failures),
            grid=tuple(betas),
            models=tuple(ModelTried(each.model.name, each.evidence) for each in solutions),
        )
        return SearchResult(best, tuple(solutions), tuple(trials), path, self._end)

    @property
    def _ended(self) -> bool:
        return self._end is not None

    def _note(self, result: TrainingResult) -> None:
        """Keep the last stage of a run that a budget, a callback or Ctrl-C ended."""
        if result.ended:
            self._end = result.stages[-1]

    def _solutions(self, models: Sequence[Sequence[Model]]) -> list[Solution]:
        """Return the ELBO solution of each model, on some of the examples where there are many."""
        n, random, rows = len(self.data), self.generator, None
        if len(models) * len(models[0]) > 1 and n > _MANY_EXAMPLES:
            rows = torch.randperm(n, generator=random, device=random.device)[:_SOME_EXAMPLES]
        solutions = try_models(models, lambda model: self._solution(model, rows))
        self._parts -= most_models(models) - self._part
        if not solutions:
            raise NumericalError(self._failures[0].reason)
        return solutions

    def _solution(self, model: Model, rows: Int[Tensor, " r"] | None) -> Solution | None:
        if self._ended:
            return None
        data = self.data if rows is None else self.data.take(rows)
        likelihood = model.likelihood if rows is None else model.likelihood.for_rows(rows)
        trainer = self._trainer(data, f"ELBO, {model.name}")
        try:
            result = elbo_run(trainer, self.recipe, Model(model.posterior, likelihood))
        except NumericalError as error:
            self._failures.append(Failure(1.0, f"elbo, {model.name}", str(error)))
            return None
        self._note(result)
        return Solution(model, result, evidence(result, self.data), whole=rows is None)

    def _whole(self, found: Solution) -> Solution:
        """Return the solution on all examples, trained from that on some of them."""
        if found.whole or self._ended:
            return found
        trainer = self._trainer(self.data, f"ELBO, {found.model.name}, all examples")
        start = _for_all(found.model, found.result)
        result = elbo_run(trainer, self.recipe, start, near=True)
        self._note(result)
        return replace(found, result=result, whole=True)

    def _sole(self, base: Solution, beta: float, mode: str) -> TrainingResult:
        """Train the only candidate on all examples."""
        if self._ended:
            return base.result
        trainer = self._trainer(self.data, f"{self.recipe.name}, {mode}, all examples")
        if mode == "fixed":
            result = fixed_run(trainer, self.recipe, base.result, beta)
        else:
            result = joint_run(trainer, self.recipe, Model.of(base.result), beta)
        self._note(result)
        return result

    def _compete(self, base: Solution, betas: Sequence[float], modes: Sequence[str]) -> list[Trial]:
        """Train the candidates of the best model, from the most to the least regularised."""
        start = base.result.posterior, base.result.likelihood
        splits = split(self.validation, self.data, *start, self.generator)
        self._folds = [Fold(self._trainer(each.training, ""), each) for each in splits]
        elbo = self._elbo(base)
        if elbo is None:
            return []
        trials = [elbo] if "elbo" in modes else []
        for mode in ("fixed", "joint"):
            if mode in modes:
                trials += self._grid(elbo, betas, mode)
        return trials

    def _most_parts(
        self, models: Sequence[Sequence[Model]], betas: Sequence[float], modes: Sequence[str]
    ) -> int:
        """Return the largest number of runs: models, candidates of every split, the chosen one."""
        splits = self.validation.number if isinstance(self.validation, Folds) else 1
        grids = sum(mode != "elbo" for mode in modes)
        competition = splits * (1 + grids * len(betas)) + 1 if grids else 0
        if _single(betas, modes):
            competition = 1
        again = len(models) * len(models[0]) > 1 and len(self.data) > _MANY_EXAMPLES
        return most_models(models) + again + competition

    def _elbo(self, base: Solution) -> Trial | None:
        """Train the ELBO solution of every split, from that of all examples."""

        def train(k: int, fold: Fold) -> TrainingResult:
            if isinstance(self.validation, Given):
                return base.result
            start = Model(base.result.posterior, fold.split.likelihood)
            return elbo_run(fold.trainer, self._brief(base.result), start, near=True)

        return self._try("elbo", 1.0, "ELBO", train)

    def _grid(self, elbo: Trial, betas: Sequence[float], mode: str) -> list[Trial]:
        """Train the candidates of one mode, and return them in the order of β."""
        start = Model.of(elbo.results[0])
        if batches_models(self._folds[0].trainer, self.recipe, start):
            return self._batch(elbo, betas, mode)

        def rising(trials: Sequence[Trial | None], left: int) -> bool:
            """Return whether the last loss is no lower than those before it."""
            *before, last = [math.inf if trial is None else trial.loss for trial in trials]
            if not before or last < min(before):
                return False
            self._parts -= len(self._folds) * left
            return True

        return outwards(betas, lambda *near: self._candidate(elbo, mode, *near), rising)

    def _candidate(
        self, elbo: Trial, mode: str, beta: float, neighbour: Trial | None
    ) -> Trial | None:
        """Train a candidate from its neighbour, or from the ELBO solution."""
        # Folds are used for few examples, on which a long joint run overfits.
        long = mode == "fixed" or not isinstance(self.validation, Folds)

        def train(k: int, fold: Fold) -> TrainingResult:
            base = elbo.results[k]
            near = None if neighbour is None else neighbour.results[k]
            recipe = self.recipe if near is None and long else self._brief(base)
            if mode == "fixed":
                start = None if near is None else near.posterior
                return fixed_run(fold.trainer, recipe, base, beta, start=start)
            return joint_run(fold.trainer, recipe, Model.of(near or base), beta)

        return self._try(mode, beta, f"{self.recipe.name}, {mode}, β = {beta:.3g}", train)

    def _batch(self, elbo: Trial, betas: Sequence[float], mode: str) -> list[Trial]:
        """Train every β at once, as one batch of models."""
        rows: list[list[TrainingResult]] = []
        for k, (trainer, _) in enumerate(self._folds):
            self._announce(trainer, f"{self.recipe.name}, {mode}, {len(betas)} values of β", k)
            self._part += len(betas) - 1
            base = elbo.results[k]
            held = mode == "fixed"
            rows.append(train_grid(trainer, self.recipe, Model.of(base), betas, base, held))
            self._failures += trainer.failures
            trainer.failures = []
            for result in rows[-1]:
                self._note(result)
            if self._ended or len(rows[-1]) < len(betas):
                return []
        members = zip(betas, zip(*rows, strict=True), strict=True)
        return [self._validated(mode, beta, many) for beta, many in members]

    def _try(
        self, mode: str, beta: float, name: str, train: Callable[[int, Fold], TrainingResult]
    ) -> Trial | None:
        """Train a candidate on every split; return None where it failed or the training ended."""
        results: list[TrainingResult] = []
        for k, fold in enumerate(self._folds):
            if self._ended:
                return None
            self._announce(fold.trainer, name, k)
            try:
                results.append(train(k, fold))
            except NumericalError as error:
                self._failures.append(Failure(beta, mode, str(error)))
                return None
            self._note(results[-1])
        return self._validated(mode, beta, results)

    def _validated(self, mode: str, beta: float, results: Sequence[TrainingResult]) -> Trial:
        loss = self.recipe.validation_loss()
        pairs = zip(self._folds, results, strict=True)
        losses = torch.cat([fold.split.losses(result, loss) for fold, result in pairs])
        return Trial(mode, beta, tuple(results), losses)

    def _on_all(self, base: Solution, chosen: Trial) -> TrainingResult:
        """Train the chosen candidate on all examples, from its state on a part of them."""
        found = chosen.results[0]
        if chosen.hyperparameters == "elbo":
            return base.result
        if self._ended or isinstance(self.validation, Given):
            return found
        trainer = self._trainer(self.data, "all examples")
        try:
            if chosen.hyperparameters == "fixed":
                result = fixed_run(trainer, self.recipe, base.result, chosen.beta)
            else:
                start = _for_all(base.model, found)
                result = joint_run(trainer, self._brief(found), start, chosen.beta)
        except NumericalError as error:
            self._failures.append(Failure(chosen.beta, "all examples", str(error)))
            return found
        self._note(result)
        return result

    def _brief(self, near: TrainingResult) -> Recipe:
        """Return the recipe with fewer steps, for a run that starts near its optimum."""
        m = near.posterior.Z.shape[-2]
        optimizer = self.recipe.chosen_optimizer(len(self.data), m)
        return brief(self.recipe, optimizer, near.likelihood)

    def _trainer(self, data: Data, name: str) -> Trainer:
        trainer = Trainer(data, self.generator, since=self.since)
        if name:
            self._announce(trainer, name)
        return trainer

    def _announce(self, trainer: Trainer, name: str, number: int | None = None) -> None:
        """Set the phase of the next run, which callbacks see."""
        self._part += 1
        folded = isinstance(self.validation, Folds) and number is not None
        where = f", fold {(number or 0) + 1}" if folded else ""
        trainer.phase = Phase(name + where, self._part, max(self._part, self._parts))


def _single(betas: Sequence[float], modes: Sequence[str]) -> bool:
    """Return whether β and mode are given, so that only the model is chosen."""
    return len(betas) == len(modes) == 1 and modes[0] != "elbo"


def _for_all(model: Model, trained: TrainingResult) -> Model:
    """Return a model trained on some examples, with the likelihood of all examples."""
    likelihood = copy.deepcopy(model.likelihood)
    likelihood.load_state_dict(trained.likelihood.state_dict())
    return Model(trained.posterior, likelihood)
