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
from directgp.likelihoods.base import Likelihood
from directgp.posteriors.sparse import SparsePosterior
from directgp.training.beta_path import batches_models, brief, nearest_one, train_grid
from directgp.training.callbacks import close
from directgp.training.checkpoint import Journal
from directgp.training.data import Data
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
from directgp.training.runs import elbo_run, fixed_run, joint_run
from directgp.training.trainer import Trainer
from directgp.training.validation import (
    Folds,
    Given,
    Split,
    Validation,
    compare_groups,
    split,
)


class Model(NamedTuple):
    """Where training may start: prior, inducing inputs and likelihood."""

    posterior: SparsePosterior
    likelihood: Likelihood
    name: str
    """What sets it apart from the others."""


@dataclass(frozen=True)
class Solution:
    """The ELBO solution of a model."""

    model: Model
    result: TrainingResult
    evidence: float
    """ELBO − ½ k log n, k the number of hyperparameters; the more the better."""

    whole: bool
    """Whether all examples were looked at, not a part of many."""


@dataclass(frozen=True)
class Trial:
    """A candidate, a mode and a β, trained on every split."""

    hyperparameters: str
    """"elbo", "fixed" or "joint"."""

    beta: float
    results: tuple[TrainingResult, ...]
    """One for each split."""

    losses: Float[Tensor, " v"]
    """Of every validation example."""

    @property
    def loss(self) -> float:
        """Mean validation loss; infinite where one is not a number."""
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


Place = tuple[int, int]


def evidence(result: TrainingResult, data: Data) -> float:
    """ELBO − ½ k log n: what a hyperparameter must gain to be worth having (Schwarz).

    An example counts as often as its weight says, and the ELBO of a part of the data as if it were
    that of all.
    """
    parameters = (*result.posterior.prior.parameters(), *result.likelihood.parameters())
    k = sum(parameter.numel() for parameter in parameters if parameter.requires_grad)
    n = len(data) if data.weights is None else float(data.weights.sum())
    found = -len(data) * result.loss - 0.5 * k * math.log(max(n, 1.0))
    return found if math.isfinite(found) else -math.inf


def strongest(solutions: Sequence[Solution]) -> Solution:
    """The one with the largest evidence."""
    return max(solutions, key=lambda solution: solution.evidence)


def most_models(models: Sequence[Sequence[Model]]) -> int:
    """Models that `try_models` may look at: a column, a row, and another column."""
    return 2 * len(models) + len(models[0]) - 2


def try_models(
    models: Sequence[Sequence[Model]], solve: Callable[[Model], list[Solution]]
) -> list[Solution]:
    """The solutions of a kernel chosen with the first likelihood, a likelihood, a kernel again.

    Parameters
    ----------
    models : sequence of sequences of Model
        For each kernel one model a likelihood.
    solve : callable
        The solution of a model, or nothing where it has none.
    """
    tried: dict[Place, list[Solution]] = {}

    def best(places: Iterable[Place]) -> Place:
        for i, j in places:
            if (i, j) not in tried:
                tried[i, j] = solve(models[i][j])
        return max(tried, key=lambda place: _largest(tried[place]))

    kernel, _ = best((i, 0) for i in range(len(models)))
    _, likelihood = best((kernel, j) for j in range(len(models[0])))
    best((i, likelihood) for i in range(len(models)))
    return [found for some in tried.values() for found in some]


def _largest(solutions: Sequence[Solution]) -> float:
    return max((each.evidence for each in solutions), default=-math.inf)


# `beta_path` trains the whole grid of the paper. Here the way outwards from β = 1 ends where the
# losses rise, splits are trained in step, and the chosen candidate is trained on all examples.


_PATIENCE = 1
"""So many losses in a row that are no lower end the way outwards."""


_MANY_EXAMPLES, _SOME_EXAMPLES = 5000, 2500
"""Beyond the first number models are chosen by the second, drawn at random."""


class Arena(NamedTuple):
    """One split of the data, and who trains on it."""

    trainer: Trainer
    split: Split


Training = Callable[[int, Arena], TrainingResult]


@final
@dataclass
class Search:
    """Trains candidates on every split, in step, and compares them.

    Parameters
    ----------
    recipe : Recipe
        What is minimised, and how.
    data : Data
        All examples.
    validation : HoldOut, Folds or Given
        How candidates are compared.
    generator : torch.Generator
        Randomness, of the data's device.
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

    def run(
        self, models: Sequence[Sequence[Model]], betas: Sequence[float], modes: Sequence[str]
    ) -> SearchResult:
        """Choose a model by its evidence, then mode and β, then train on all examples.

        Parameters
        ----------
        models : sequence of sequences of Model
            For each kernel one model a likelihood. The kernel is chosen with the first likelihood,
            the likelihood with that kernel, and the kernel once more with that likelihood.
        betas : sequence of float
            The grid, falling.
        modes : sequence of {"elbo", "fixed", "joint"}
            What may be chosen.
        """
        try:
            return self._run(models, betas, modes)
        finally:
            close(self.recipe.monitors)

    def _run(
        self, models: Sequence[Sequence[Model]], betas: Sequence[float], modes: Sequence[str]
    ) -> SearchResult:
        self._parts = self._most_parts(models, betas, modes)
        solutions = self._solutions(models)
        base = self._whole(strongest(solutions))
        best, chosen = base.result, 0
        points: tuple[PathPoint, ...] = ()
        trials: list[Trial] = []
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
        """Remember a run that a budget, a monitor or Ctrl-C ended."""
        if result.ended:
            self._end = result.stages[-1]

    def _solutions(self, models: Sequence[Sequence[Model]]) -> list[Solution]:
        """The ELBO solution of each model that is tried, on some examples where there are many."""
        rows = self._some_rows() if len(models) * len(models[0]) > 1 else None
        solutions = try_models(models, lambda model: self._solution(model, rows))
        self._parts -= most_models(models) - self._part
        if not solutions:
            raise NumericalError(self._failures[0].reason)
        return solutions

    def _some_rows(self) -> Int[Tensor, " r"] | None:
        n, device = len(self.data), self.generator.device
        if n <= _MANY_EXAMPLES:
            return None
        return torch.randperm(n, generator=self.generator, device=device)[:_SOME_EXAMPLES]

    def _solution(self, model: Model, rows: Int[Tensor, " r"] | None) -> list[Solution]:
        if self._ended:
            return []
        data = self.data if rows is None else self.data.take(rows)
        likelihood = model.likelihood if rows is None else model.likelihood.for_rows(rows)
        trainer = self._trainer(data, f"ELBO, {model.name}")
        try:
            result = elbo_run(trainer, self.recipe, model.posterior, likelihood)
        except NumericalError as error:
            self._failures.append(Failure(1.0, f"elbo, {model.name}", str(error)))
            return []
        self._note(result)
        return [Solution(model, result, evidence(result, self.data), whole=rows is None)]

    def _whole(self, found: Solution) -> Solution:
        """The solution on all examples, from that on some of them."""
        if found.whole or self._ended:
            return found
        trainer = self._trainer(self.data, f"ELBO, {found.model.name}, all examples")
        likelihood = _with_parameters(found.model.likelihood, found.result.likelihood)
        result = elbo_run(trainer, self.recipe, found.result.posterior, likelihood, near=True)
        self._note(result)
        return replace(found, result=result, whole=True)

    def _sole(self, base: Solution, beta: float, mode: str) -> TrainingResult:
        """The one candidate there is, on all examples."""
        if self._ended:
            return base.result
        trainer = self._trainer(self.data, f"{self.recipe.name}, {mode}, all examples")
        if mode == "fixed":
            result = fixed_run(trainer, self.recipe, base.result, beta)
        else:
            start = base.result.posterior, base.result.likelihood
            result = joint_run(trainer, self.recipe, *start, beta)
        self._note(result)
        return result

    def _compete(self, base: Solution, betas: Sequence[float], modes: Sequence[str]) -> list[Trial]:
        """The candidates of the best model, from the most to the least regularised."""
        arenas = self._arenas(base)
        elbo = self._elbo(base, arenas)
        candidates = elbo if "elbo" in modes else []
        for mode in ("fixed", "joint") if elbo else ():
            if mode in modes:
                grid = self._grid(arenas, elbo[0], betas, held=mode == "fixed")
                candidates = candidates + grid
        return candidates

    def _most_parts(
        self, models: Sequence[Sequence[Model]], betas: Sequence[float], modes: Sequence[str]
    ) -> int:
        """Runs that there may be: models, candidates on every split, and one on all examples."""
        splits = self.validation.number if isinstance(self.validation, Folds) else 1
        grids = sum(mode != "elbo" for mode in modes)
        competition = splits * (1 + grids * len(betas)) + 1 if grids else 0
        if _single(betas, modes):
            competition = 1
        again = len(models) * len(models[0]) > 1 and len(self.data) > _MANY_EXAMPLES
        return most_models(models) + again + competition

    def _arenas(self, base: Solution) -> list[Arena]:
        posterior, likelihood = base.result.posterior, base.result.likelihood
        splits = split(self.validation, self.data, posterior, likelihood, self.generator)
        return [Arena(self._trainer(each.training, ""), each) for each in splits]

    def _elbo(self, base: Solution, arenas: Sequence[Arena]) -> list[Trial]:
        """The ELBO solution of every split, from that of all examples."""

        def training(_: int, arena: Arena) -> TrainingResult:
            if isinstance(self.validation, Given):
                return base.result
            near, likelihood = base.result, arena.split.likelihood
            return elbo_run(arena.trainer, self._brief(near), near.posterior, likelihood, near=True)

        return self._try(arenas, "elbo", 1.0, "ELBO", training)

    def _grid(
        self, arenas: Sequence[Arena], elbo: Trial, betas: Sequence[float], held: bool
    ) -> list[Trial]:
        """The candidates of one mode, in the order of β."""
        first = elbo.results[0]
        if batches_models(arenas[0].trainer, self.recipe, first.posterior, first.likelihood):
            return self._batch(arenas, elbo, betas, held)
        middle = nearest_one(betas)
        found = {middle: self._candidate(arenas, elbo, betas[middle], held, None)}
        for way in (range(middle - 1, -1, -1), range(middle + 1, len(betas))):
            self._outwards(arenas, elbo, betas, held, found, middle, way)
        return [candidate for _, some in sorted(found.items()) for candidate in some]

    def _outwards(
        self,
        arenas: Sequence[Arena],
        elbo: Trial,
        betas: Sequence[float],
        held: bool,
        found: dict[int, list[Trial]],
        middle: int,
        way: range,
    ) -> None:
        """Trials from the middle to one end, or to where the losses rise."""
        known = found[middle]
        lowest, rising = min([each.loss for each in known], default=math.inf), 0
        for done, i in enumerate(way):
            if rising == _PATIENCE:
                self._parts -= len(arenas) * (len(way) - done)
                return
            found[i] = self._candidate(arenas, elbo, betas[i], held, known[0] if known else None)
            known = found[i] or known
            loss = found[i][0].loss if found[i] else math.inf
            lowest, rising = (loss, 0) if loss < lowest else (lowest, rising + 1)

    def _candidate(
        self,
        arenas: Sequence[Arena],
        elbo: Trial,
        beta: float,
        held: bool,
        neighbour: Trial | None,
    ) -> list[Trial]:
        """A candidate that starts from its neighbour, or from the ELBO solution."""
        mode = "fixed" if held else "joint"

        def training(k: int, arena: Arena) -> TrainingResult:
            base = elbo.results[k]
            start = base if neighbour is None else neighbour.results[k]
            # Folds are for few examples, on which a long joint run overfits.
            whole = neighbour is None and (held or not isinstance(self.validation, Folds))
            recipe = self.recipe if whole else self._brief(base)
            if held:
                warm = None if neighbour is None else start.posterior
                return fixed_run(arena.trainer, recipe, base, beta, start=warm)
            return joint_run(arena.trainer, recipe, start.posterior, start.likelihood, beta)

        return self._try(
            arenas, mode, beta, f"{self.recipe.name}, {mode}, β = {beta:.3g}", training
        )

    def _batch(
        self, arenas: Sequence[Arena], elbo: Trial, betas: Sequence[float], held: bool
    ) -> list[Trial]:
        """Every β at once, as one batch of models."""
        mode = "fixed" if held else "joint"
        rows: list[list[TrainingResult]] = []
        for k, (trainer, _) in enumerate(arenas):
            self._announce(trainer, f"{self.recipe.name}, {mode}, {len(betas)} values of β", k)
            self._part += len(betas) - 1
            base = elbo.results[k]
            start = base.posterior, base.likelihood
            rows.append(train_grid(trainer, self.recipe, *start, betas, base, held))
            self._failures += trainer.failures
            trainer.failures = []
            for result in rows[-1]:
                self._note(result)
            if self._ended or len(rows[-1]) < len(betas):
                return []
        members = zip(betas, zip(*rows, strict=True), strict=True)
        return [self._judged(arenas, mode, beta, many) for beta, many in members]

    def _try(
        self, arenas: Sequence[Arena], mode: str, beta: float, name: str, training: Training
    ) -> list[Trial]:
        """The candidate, or nothing where it failed or the training has ended."""
        results: list[TrainingResult] = []
        for k, arena in enumerate(arenas):
            if self._ended:
                return []
            self._announce(arena.trainer, name, k)
            try:
                results.append(training(k, arena))
            except NumericalError as error:
                self._failures.append(Failure(beta, mode, str(error)))
                return []
            self._note(results[-1])
        return [self._judged(arenas, mode, beta, results)]

    def _judged(
        self, arenas: Sequence[Arena], mode: str, beta: float, results: Sequence[TrainingResult]
    ) -> Trial:
        loss = self.recipe.validation_loss()
        pairs = zip(arenas, results, strict=True)
        losses = torch.cat([arena.split.losses(result, loss) for arena, result in pairs])
        return Trial(mode, beta, tuple(results), losses)

    def _on_all(self, base: Solution, chosen: Trial) -> TrainingResult:
        """The chosen candidate trained on all examples, from where it was on a part of them."""
        found = chosen.results[0]
        if chosen.hyperparameters == "elbo":
            return base.result
        if self._ended or isinstance(self.validation, Given):
            return found
        trainer = self._trainer(self.data, "all examples")
        try:
            result = self._again(trainer, base, chosen)
        except NumericalError as error:
            self._failures.append(Failure(chosen.beta, "all examples", str(error)))
            return found
        self._note(result)
        return result

    def _again(self, trainer: Trainer, base: Solution, chosen: Trial) -> TrainingResult:
        if chosen.hyperparameters == "fixed":
            return fixed_run(trainer, self.recipe, base.result, chosen.beta)
        found = chosen.results[0]
        likelihood = _with_parameters(base.model.likelihood, found.likelihood)
        return joint_run(trainer, self._brief(found), found.posterior, likelihood, chosen.beta)

    def _brief(self, near: TrainingResult) -> Recipe:
        """The recipe with the steps of a run that starts near its optimum."""
        m = near.posterior.Z.shape[-2]
        optimizer = self.recipe.chosen_optimizer(len(self.data), m)
        return brief(self.recipe, optimizer, near.likelihood)

    def _trainer(self, data: Data, name: str) -> Trainer:
        trainer = Trainer(data, self.generator, Journal(), self.since)
        if name:
            self._announce(trainer, name)
        return trainer

    def _announce(self, trainer: Trainer, name: str, fold: int | None = None) -> None:
        """Tell the monitors what comes next."""
        self._part += 1
        folded = isinstance(self.validation, Folds) and fold is not None
        where = f", fold {(fold or 0) + 1}" if folded else ""
        trainer.phase = Phase(name + where, self._part, max(self._part, self._parts))


def _single(betas: Sequence[float], modes: Sequence[str]) -> bool:
    """Whether β and mode are given, so that only the model is to be chosen."""
    return len(betas) == len(modes) == 1 and modes[0] != "elbo"


def _with_parameters(likelihood: Likelihood, trained: Likelihood) -> Likelihood:
    """The likelihood of all examples, with the parameters of one trained on some of them."""
    twin = copy.deepcopy(likelihood)
    twin.load_state_dict(trained.state_dict())
    return twin
