"""Choose kernel, likelihood, mode, β and number of inducing inputs: a race of candidates."""

import copy
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import final

import torch
from typing_extensions import override

from directgp.errors import NumericalError
from directgp.likelihoods.base import ConjugateLikelihood
from directgp.posteriors.sparse import SparsePosterior
from directgp.training.beta_path import nearest_one, outwards
from directgp.training.data import Data, Model
from directgp.training.race import FIRST_STEPS, MAX_STEPS, Race, Trial
from directgp.training.result import (
    BetaPath,
    Failure,
    ModelTried,
    PathPoint,
    Progress,
    Status,
    Stop,
    TrainingResult,
)
from directgp.training.run import Monitor, RelativeDecrease, close
from directgp.training.trainer import Trainer, elbo_run, fixed_run, joint_run
from directgp.training.validation import Folds, Given, Split, compare, for_rows_of, split

_COARSE = 4.0
"""Factor of the tolerance while β and the number of inducing inputs are not chosen."""

_FEW_INDUCING = 50
"""Inducing inputs with which models are compared."""

_PER_DOUBLING = 0.0125
"""Fall of the mean objective that pays for twice as many inducing inputs, times the cost."""

_ROWS_PER_INDUCING = 8
"""Smallest number of training examples for each inducing input that is added."""

_EXPLAINED = 0.05
"""Share of the variance that an ELBO solution has to explain if a joint run starts from it."""


@final
@dataclass
class Reached(Monitor):
    """Stops where the objective has fallen to a value, or by another rule."""

    value: float
    otherwise: Monitor

    @override
    def __call__(self, progress: Progress) -> Stop | None:
        if progress.loss > self.value:
            return self.otherwise(progress)
        return Stop(
            Status.CONVERGED,
            f"The objective of all examples, {progress.loss:.5g}, is as low as that of the training"
            " examples where the validation loss was lowest.",
        )

    @override
    def reset(self) -> None:
        self.otherwise.reset()


@final
@dataclass
class Search(Race):
    """Chooses kernel, likelihood, mode, β and number of inducing inputs.

    Candidates race: each is trained for a few steps, those that another one beats by more than
    their paired standard error are given up, and the others go on from where they were, until the
    fall of their validation loss does not pay for the steps. `beta_path` trains the whole grid of
    the paper instead. `run` sets the results.
    """

    grows: bool = False
    """Whether the number of inducing inputs may grow."""

    best: TrainingResult = field(init=False)
    path: BetaPath = field(init=False)
    """The candidates with their mean losses; `chosen` is 0 where there are none."""

    trials: list[Trial] = field(default_factory=list, init=False)
    """Candidates of the best model, from the most to the least regularised."""

    models: dict[str, ModelTried] = field(default_factory=dict, init=False)

    def run(
        self, models: Sequence[Sequence[Model]], betas: Sequence[float], modes: Sequence[str]
    ) -> "Search":
        """Choose a model, then mode and β; train on all examples.

        A row of `models` has one kernel, a column one likelihood; the first ones are preferred. β
        falls along the grid, and the modes are "elbo", "fixed" and "joint".
        """
        chosen, points = 0, tuple[PathPoint, ...]()
        try:
            if len(modes) == 1 and (modes[0] == "elbo" or len(betas) == 1):
                self.parts = len(models) + len(models[0]) + 2
                self.best = self._by_evidence(models, modes[0], betas[0])
            else:
                self.best, chosen = self._by_validation(models, betas, modes)
        finally:
            close(self.recipe.monitors)
        if self.trials:
            comparison = compare(torch.stack([trial.losses for trial in self.trials]))
            points = tuple(
                # The state may be that from which it started.
                replace(point, beta=trial.beta, hyperparameters=trial.hyperparameters)
                for point, trial in zip(
                    comparison.points([trial.results[0] for trial in self.trials]),
                    self.trials,
                    strict=True,
                )
            )
        self.path = BetaPath(
            points=points,
            chosen=chosen,
            loss=self.recipe.point_loss().validation_loss().name,
            seconds=time.perf_counter() - self.since,
            failed=tuple(self.failures),
            grid=tuple(betas),
            models=tuple(self.models.values()),
        )
        return self

    # Models

    def _by_evidence(
        self, models: Sequence[Sequence[Model]], mode: str, beta: float
    ) -> TrainingResult:
        """Choose a model by its evidence, and train the only candidate on all examples."""
        part = Split(self.data, models[0][0].likelihood, self.data, models[0][0].likelihood)
        self.splits = [self.some(part, self.effort.rows_for_candidates)]
        solutions: dict[str, tuple[Model, TrainingResult]] = {}
        seen: set[str] = set()

        def evidence(model: Model) -> float:
            if model.name not in seen and not self.leaves_out(model.name):
                found = self.elbo(model, 4 * FIRST_STEPS)
                if found is not None:
                    solutions[model.name] = model, found[0]
                    self.models[model.name] = ModelTried(model.name, self._evidence(found[0]))
            seen.add(model.name)
            return _or_worst(self.models.get(model.name, ModelTried(model.name)).evidence)

        row = max(models, key=lambda row: evidence(row[0]))
        best = max(row, key=evidence)
        if not solutions:
            raise NumericalError(self.failures[0].reason)
        model, found = solutions.get(best.name) or next(iter(solutions.values()))
        self.models[model.name] = replace(self.models[model.name], chosen=True)
        if self.end is not None:
            return found
        start = Model(found.posterior, for_rows_of(found.likelihood, model.likelihood))
        name = f"ELBO, {model.name}, all examples"
        trainer = self.trainer(self.data, name, final=mode == "elbo")
        result = self.noted(elbo_run(trainer, self.recipe, start, near=True))
        if mode == "elbo" or self.end is not None:
            return result
        name = f"{self.recipe.name}, {mode}, all examples"
        trainer = self.trainer(self.data, name, final=True)
        if mode == "fixed":
            return self.noted(fixed_run(trainer, self.recipe, result, beta))
        return self.noted(joint_run(trainer, self.recipe, Model.of(result), beta))

    def _evidence(self, result: TrainingResult) -> float:
        """Return ELBO − ½ k log n of Schwarz, the ELBO of some examples as that of all."""
        parameters = (*result.posterior.prior.parameters(), *result.likelihood.parameters())
        k = sum(parameter.numel() for parameter in parameters if parameter.requires_grad)
        weights = self.data.weights
        n = len(self.data) if weights is None else float(weights.sum())
        evidence = -len(self.data) * result.loss - 0.5 * k * math.log(max(n, 1.0))
        return evidence if math.isfinite(evidence) else -math.inf

    def _choose_model(self, models: Sequence[Sequence[Model]]) -> tuple[Model, Model]:
        """Return the model for a first ELBO run, and the one to train, of the same kernel.

        ARD, kernel and likelihood are chosen in turn: on few examples by the evidence, else by the
        validation loss after a few joint steps on some training examples of the first split.
        """
        if len(models) == len(models[0]) == 1:
            return models[0][0], models[0][0]
        whole, few = self.splits, isinstance(self.validation, Folds)
        part = Split(self.data, models[0][0].likelihood, *whole[0].examples)
        self.splits = [self.some(part if few else whole[0], self._rows_for_models())]
        solutions: dict[str, TrainingResult] = {}
        tried: dict[str, Trial] = {}
        seen: set[str] = set()

        def try_model(model: Model, start: TrainingResult | None = None) -> None:
            if model.name in seen:
                return
            seen.add(model.name)
            if self.leaves_out(model.name):
                return
            small = model if few else self._with_few_inducing(model)
            if start is None or few:
                near = small if start is None else Model.of(start)._replace(name=model.name)
                found = self.elbo(near, 2 * FIRST_STEPS if few else FIRST_STEPS)
                if found is None:
                    return
                solutions[model.name] = start = found[0]
                self.models[model.name] = ModelTried(model.name, self._evidence(start))
            trial = self.trial(small, "joint", 1.0, [start])
            if not few and not self.by_adam(small):
                trial = self.advanced([trial], FIRST_STEPS)[0]
            tried[model.name] = trial
            if not few:
                known = self.models.get(model.name, ModelTried(model.name))
                self.models[model.name] = replace(known, loss=trial.loss)

        def best_of(candidates: Sequence[Model]) -> Model | None:
            for model in candidates:
                try_model(model)
            known = [model for model in candidates if model.name in tried]
            if not known:
                return None
            if few:
                return max(known, key=lambda model: _or_worst(self.models[model.name].evidence))
            losses = torch.stack([tried[model.name].losses for model in known])
            return known[compare(losses).chosen]

        starts = [row[0] for row in models]
        pair = [model for model in starts if _kernel(model) == _kernel(starts[0])]
        kind = best_of(pair) or pair[0]
        first = best_of([m for m in starts if m is kind or _has_ard(m) == _has_ard(kind)])
        if first is None:
            self.splits = whole
            if self.end is not None:
                return starts[0], starts[0]
            raise NumericalError(self.failures[0].reason)
        row, solution = models[starts.index(first)], solutions[first.name]
        for other in row[1:]:
            try_model(other, self._with_likelihood(solution, other, self.splits[0].training))
        # The tails of the last likelihood are the heaviest: safest where both fit alike.
        chosen = best_of(row[::-1]) or first
        self.splits = whole
        self.models[chosen.name] = replace(self.models[chosen.name], chosen=True)
        if few:
            # The folds start from the solution of all examples.
            trained = solutions[chosen.name]
            likelihood = for_rows_of(trained.likelihood, chosen.likelihood)
            first = chosen = Model(trained.posterior, likelihood, chosen.name)
        return first, chosen

    def _rows_for_models(self) -> int:
        return max(self.effort.rows_for_models, min(len(self.data) // 4, 2000))

    def _with_few_inducing(self, model: Model) -> Model:
        posterior = model.posterior
        step = -(-len(posterior.Z) // _FEW_INDUCING)
        prior = copy.deepcopy(posterior.prior)
        few = SparsePosterior(prior, posterior.Z.detach()[::step], posterior.nugget)
        few.Z.requires_grad_(posterior.Z.requires_grad)
        return Model(few, model.likelihood, model.name)

    def _with_likelihood(
        self, solution: TrainingResult, model: Model, data: Data
    ) -> TrainingResult:
        """Return an ELBO solution with the likelihood of a model to start from."""
        likelihood = copy.deepcopy(model.likelihood)
        if likelihood.additive:
            # Its start is noise of a tenth of the variance of the targets.
            residual = data.y - solution.posterior.predict(data.X).mean
            likelihood = type(likelihood).from_targets(math.sqrt(10) * residual).to(data.X)
        return replace(solution, likelihood=likelihood)

    # Candidates

    def _by_validation(
        self, models: Sequence[Sequence[Model]], betas: Sequence[float], modes: Sequence[str]
    ) -> tuple[TrainingResult, int]:
        """Choose model, mode and β; return the chosen one on all examples, and its place."""
        like = models[0][0]
        whole = split(self.validation, self.data, like.posterior, like.likelihood, self.generator)
        self.splits = [self.some(part, self.effort.rows_for_candidates) for part in whole]
        self.parts = 2 * len(models) + len(models[0]) + 12 * len(whole)
        first, model = self._choose_model(models)
        solutions = self._solved(first)
        if solutions is None and self.last is not None and self.leaves_out("every candidate"):
            return self.last, 0
        if solutions is None:
            raise NumericalError(self.failures[-1].reason)
        self._add_trials(first, model, solutions, betas, modes)
        chosen = self._chosen()
        if any(some is not all for some, all in zip(self.splits, whole, strict=True)):
            if self.leaves_out("training on more than a sample of the rows"):
                return self.trials[chosen].results[0], chosen
            self.splits = whole
            known = self.trials[chosen]
            found = self._solved(first, solutions)
            if found is not None:
                starts = self._starts(first, model, found)
                again = self.trial(known.model, known.hyperparameters, known.beta, starts)
                self.trials[chosen] = self.race([again], 1.0)[0]
        else:
            self.trials[chosen] = self.race([self.trials[chosen]], 1.0)[0]
        return self._on_all(first, self.trials[chosen]), chosen

    def _starts(
        self, first: Model, model: Model, solutions: Sequence[TrainingResult]
    ) -> list[TrainingResult]:
        """Return the states from which candidates start, with the likelihood of the model."""
        starts = []
        for found, part in zip(solutions, self.splits, strict=True):
            start = found
            if model is not first:
                start = self._with_likelihood(found, model, part.training)
            starts.append(self._or_untrained(start, model))
        return starts

    def _add_trials(
        self,
        first: Model,
        model: Model,
        solutions: Sequence[TrainingResult],
        betas: Sequence[float],
        modes: Sequence[str],
    ) -> None:
        """Train candidates of each mode, along β while that lowers the validation loss."""
        starts = self._starts(first, model, solutions)
        middle = betas[nearest_one(betas)]
        paths: dict[str, list[Trial]] = {}
        if "joint" in modes:
            joint = self.trial(model, "joint", middle, starts)
            (joint,) = self.race([joint], _COARSE, 2 * FIRST_STEPS)
            paths["joint"] = self._along(joint, betas)
        best = min(paths.get("joint", []), key=lambda trial: trial.loss, default=None)
        elbo = self.trial(model, "elbo", 1.0, starts)
        if model is not first and not self.leaves_out("the ELBO"):
            elbo = self.advanced([elbo], FIRST_STEPS)[0]
        if "joint" not in modes or not (best is not None and elbo.is_beaten(best)):
            elbo = self.race([elbo], _COARSE)[0]
            if "fixed" in modes and not self.leaves_out("hyperparameters held"):
                fixed = self.trial(model, "fixed", middle, elbo.results)
                fixed = replace(fixed, losses=fixed.losses + math.inf)
                fixed = self.advanced([fixed], 2 * FIRST_STEPS)[0]
                fixed = replace(fixed, rate=0.0)
                hopeless = best is not None and fixed.is_beaten(best)
                paths["fixed"] = [fixed] if hopeless else self._along(fixed, betas)
        others = [*paths.get("fixed", []), *paths.get("joint", [])]
        others = [trial for trial in others if math.isfinite(trial.loss)]
        self.trials = [elbo, *others] if "elbo" in modes or not others else others

    def _or_untrained(self, solution: TrainingResult, model: Model) -> TrainingResult:
        """Return the ELBO solution, or the untrained model where all is noise for the solution."""
        data = self.splits[0].training
        mean = solution.posterior.predict(data.X).mean
        if not model.likelihood.additive or float(mean.var()) > _EXPLAINED * float(data.y.var()):
            return solution
        likelihood = for_rows_of(model.likelihood, solution.likelihood)
        return replace(solution, posterior=copy.deepcopy(model.posterior), likelihood=likelihood)

    def _along(self, middle: Trial, betas: Sequence[float]) -> list[Trial]:
        """Return the candidates from the middle of the grid to where the losses rise."""

        def candidate(beta: float, neighbour: Trial | None) -> Trial | None:
            if neighbour is None:
                return middle
            if self.leaves_out(f"β = {beta:.3g}"):
                return None
            # Losses of another β are no reason to keep its state.
            start = replace(neighbour, beta=beta, losses=neighbour.losses + math.inf)
            trained = self.advanced([start], FIRST_STEPS)[0]
            return None if math.isinf(trained.loss) else trained

        def rising(passed: Sequence[Trial | None], left: int) -> bool:
            *before, last = passed
            known = [trial for trial in before if trial is not None]
            if last is None or not known:
                return last is None and bool(before)
            # More steps at one β would have lowered the loss, too.
            expected = middle.rate * FIRST_STEPS
            return not last.loss < min(trial.loss for trial in known) - expected

        return outwards(betas, candidate, rising)

    def _solved(
        self, model: Model, near: Sequence[TrainingResult] = ()
    ) -> list[TrainingResult] | None:
        """Return ELBO solutions of the splits, with more inducing inputs where that pays.

        Their number is doubled while a few steps with twice as many lower the objective enough.
        """
        results = self.elbo(model, FIRST_STEPS, near)
        conjugate = isinstance(model.likelihood, ConjugateLikelihood)
        few = isinstance(self.validation, Folds)
        if results is None or few or not (self.grows and conjugate):
            return results
        cuda = self.data.X.is_cuda
        most = self.effort.max_inducing_cuda if cuda else self.effort.max_inducing
        rows, rate = min(len(part.training) for part in self.splits), math.inf
        steps = FIRST_STEPS
        while self.end is None:
            number, loss = len(results[0].posterior.Z), _mean_loss(results)
            if rate >= _COARSE * self.effort.tolerance and steps < 200:
                # More steps before more inducing inputs.
                further = self.elbo(model, steps, results)
                if further is None:
                    return results
                rate = (loss - _mean_loss(further)) / (steps * self.cost(number))
                results, steps = further, 2 * steps
                continue
            if 2 * number > min(most, rows // _ROWS_PER_INDUCING):
                return results
            grown = [
                replace(result, posterior=result.posterior.grown(part.training.X, number))
                for result, part in zip(results, self.splits, strict=True)
            ]
            further = self.elbo(model, FIRST_STEPS, grown)
            if further is None:
                return results
            fall = loss - _mean_loss(further)
            if fall < _PER_DOUBLING * self.cost(2 * number):
                return results
            results, rate, steps = further, math.inf, 2 * FIRST_STEPS
        return results

    def _chosen(self) -> int:
        """Return the place of the chosen candidate.

        It is the mode with the lowest loss, and of its β the largest that is not distinguishable
        from the best. On few examples it is the most regularised mode that is not distinguishable
        from the best.
        """
        losses = torch.stack([trial.losses for trial in self.trials])
        modes = [trial.hyperparameters for trial in self.trials]
        few = isinstance(self.validation, Folds)
        mode = modes[compare(losses, modes, threshold=1.0 if few else 0.25).chosen]
        places = [i for i, each in enumerate(modes) if each == mode]
        return places[compare(losses[places]).chosen]

    def _on_all(self, first: Model, chosen: Trial) -> TrainingResult:
        """Train the chosen candidate on all examples."""
        results, mode, beta = chosen.results, chosen.hyperparameters, chosen.beta
        result = _settled(results[0]) if self.end is None else results[0]
        if isinstance(self.validation, Given):
            return result
        last = "training on all rows, those for validation too"
        if self.leaves_out(last):
            return result
        trainer = self.trainer(self.data, "all examples", final=True)
        try:
            if len(results) > 1:
                repeated = self.noted(self._repeated(trainer, first, chosen))
                # From the start, and ended: a model of one fold has been trained for longer.
                return result if self.leaves_out(last) else repeated
            likelihood = for_rows_of(result.likelihood, chosen.model.likelihood)
            start = replace(result, likelihood=likelihood)
            tolerance = 20 * self.effort.tolerance
            stopping = Reached(result.loss, RelativeDecrease(20, tolerance))
            recipe = self.recipe
            if not self.by_adam(chosen.model):
                recipe = replace(recipe, stopping=stopping, max_steps=recipe.max_steps or MAX_STEPS)
            if mode == "elbo":
                return self.noted(elbo_run(trainer, recipe, Model.of(start), near=True))
            if mode == "fixed":
                return self.noted(fixed_run(trainer, recipe, start, beta, start))
            return self.noted(joint_run(trainer, recipe, Model.of(start), beta))
        except NumericalError as error:
            self.failures.append(Failure(beta, "all examples", str(error)))
            return result

    def _repeated(self, trainer: Trainer, first: Model, chosen: Trial) -> TrainingResult:
        """Train on all examples from the start, for as many steps as validation has chosen."""
        mode, stages = chosen.hyperparameters, chosen.results[0].stages
        steps = [max(1, stage.steps) for stage in stages]
        result = elbo_run(trainer, self.recipe_of(first, steps[0]), first, near=True)
        if result.ended:
            return result
        if chosen.model is not first:
            result = self._with_likelihood(result, chosen.model, self.data)
        if mode == "joint":
            result = self._or_untrained(result, chosen.model)
        if mode != "joint":
            own = [k for k, stage in zip(steps, stages, strict=True) if stage.stage == "elbo"][1:]
            recipe = self.recipe_of(first, max(1, sum(own)))
            result = elbo_run(trainer, recipe, Model.of(result), near=True)
        if mode == "fixed":
            return fixed_run(trainer, self.recipe, result, chosen.beta)
        if mode == "joint":
            recipe = self.recipe_of(chosen.model, max(1, sum(steps[1:])))
            result = joint_run(trainer, recipe, Model.of(result), chosen.beta)
        return _settled(result)


def _mean_loss(results: Sequence[TrainingResult]) -> float:
    return sum(result.loss for result in results) / len(results)


def _or_worst(evidence: float | None) -> float:
    return -math.inf if evidence is None else evidence


def _kernel(model: Model) -> str:
    return model.name.split(",")[0].removesuffix(" ARD")


def _has_ard(model: Model) -> bool:
    return model.name.split(",")[0].endswith(" ARD")


def _settled(result: TrainingResult) -> TrainingResult:
    """Return a result that ended where validation chose, as converged."""
    *before, last = result.stages
    if last.ends_training or last.status is not Status.BUDGET:
        return result
    reason = "More steps lower the validation loss by less than they cost."
    return replace(result, stages=(*before, replace(last, status=Status.CONVERGED, reason=reason)))
