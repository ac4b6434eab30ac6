"""Choose kernel, likelihood, mode, β and number of inducing inputs: a race of candidates."""

import math
import time
from collections.abc import Sequence
from dataclasses import astuple, dataclass, field, replace
from typing import cast, final

import torch
from typing_extensions import override

from directgp.errors import NumericalError
from directgp.likelihoods.base import ConjugateLikelihood, Likelihood
from directgp.training.beta_path import nearest_one, outwards
from directgp.training.coverage import Coverage, Examples, Group, noise_depends_on_inputs
from directgp.training.data import Model
from directgp.training.model_choice import ModelChoice, evidence, start_of
from directgp.training.race import FIRST_STEPS, MAX_STEPS, Race, Trial, mean_loss
from directgp.training.result import (
    INTERRUPTED,
    BetaPath,
    Failure,
    ModelTried,
    PathPoint,
    Progress,
    StageResult,
    Status,
    Stop,
    TrainingResult,
)
from directgp.training.run import Monitor, RelativeDecrease, close
from directgp.training.trainer import Trainer, elbo_run, fixed_run, joint_run, without_steps
from directgp.training.validation import Folds, Given, Split, compare, for_rows_of, split

_COARSE = 4.0
"""Factor of the tolerance while β and the number of inducing inputs are not chosen."""

_STEPS_PER_DOUBLING = 125
"""Steps for which twice as many inducing inputs have to pay."""

_ROWS_PER_INDUCING = 5
"""Smallest number of training examples for each inducing input of a candidate."""

_ALIKE = 0.5
"""Standard errors of the paired difference up to which two candidates count as equally good."""

_NEARLY = 1.05
"""Factor up to which their root mean square errors do."""

_PRICE_OF_COVERAGE = 0.05
"""Largest rise of the mean validation loss, in nats, for intervals that cover better."""


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


Solved = tuple[Model, Sequence[TrainingResult]]
"""A model and its ELBO solutions of the splits."""


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

    with_changing_noise: Likelihood | None = None
    noise_name: str = ""
    """A likelihood of several latents to compare, too, where the noise depends on the inputs, and
    its name."""

    best: TrainingResult = field(init=False)
    path: BetaPath = field(init=False)
    """The candidates with their mean losses; `chosen` is 0 where there are none."""

    _limited: bool = field(default=False, init=False)
    """Whether twice as many inducing inputs would have been too many for the rows."""

    trials: list[Trial] = field(default_factory=list, init=False)
    """Candidates of the best model."""

    _rivals: list[Trial] = field(default_factory=list, init=False)
    """Candidates of other likelihoods."""

    _firsts: dict[str, Model] = field(default_factory=dict, init=False)
    """The model whose ELBO solution a model starts from, by the name of the latter."""

    coverage: Coverage = field(default_factory=Coverage, init=False)
    """That of the chosen candidate, on its validation examples."""

    replaced: tuple[str, Group] | None = field(default=None, init=False)
    """The candidate that was not taken because its intervals are too narrow, and where."""

    models: dict[str, ModelTried] = field(default_factory=dict, init=False)

    def run(
        self, models: Sequence[Sequence[Model]], betas: Sequence[float], modes: Sequence[str]
    ) -> "Search":
        """Choose a model, then mode and β; train on all examples.

        A row of `models` has one kernel, a column one likelihood; the first ones are preferred. β
        falls along the grid, and the modes are some of "elbo", "fixed" and "joint".
        """
        chosen = 0
        try:
            if len(modes) == 1 and (modes[0] == "elbo" or len(betas) == 1):
                self.parts = len(models) + len(models[0]) + 2
                self.best = self._by_evidence(models, modes[0], betas[0])
            else:
                self.best, chosen = self._by_validation(models, betas, modes)
        except KeyboardInterrupt:
            # Between two runs; during a run it ends the run.
            if self.last is None:
                raise
            self.end = without_steps("search", *astuple(INTERRUPTED))
            chosen = self._chosen() if self.trials else 0
            self.best = self.trials[chosen].results[0] if self.trials else self.last
        finally:
            close(self.recipe.monitors)
        self._set_path(betas, chosen)
        return self

    def along(self, model: Model, mode: str, betas: Sequence[float]) -> "Search":
        """Train a model in one mode, along β from 1 outwards while that lowers the loss.

        The best has the lowest validation loss. A fixed run keeps the hyperparameters of the model.
        """
        self.by_objective = True
        posterior, likelihood, _ = model
        self.splits = split(self.validation, self.data, posterior, likelihood, self.generator)
        stage = without_steps("elbo", Status.CONVERGED, "Trained before.")
        start = TrainingResult(posterior, likelihood, "elbo", 1.0, "elbo", (stage,), 0.0)
        try:
            first = _anew(self.trial(model, mode, betas[nearest_one(betas)], [start]))
            (first,) = self.race([first], 1.0)
            self.trials = [each for each in self._along(first, betas) if math.isfinite(each.loss)]
            if not self.trials and (self.end is None or self.last is None):
                reasons = [failure.reason for failure in self.failures]
                raise NumericalError(reasons[-1] if reasons else "No validation loss is finite.")
            chosen = min(range(len(self.trials)), key=lambda i: self.trials[i].loss, default=0)
            if self.trials and self.trials[chosen] is not first:
                (self.trials[chosen],) = self.race([self.trials[chosen]], 1.0)
        finally:
            close(self.recipe.monitors)
        best = self.trials[chosen].results[0] if self.trials else cast(TrainingResult, self.last)
        self.best = _settled(best, "objective") if self.end is None else ended(best, self.end)
        self._set_path(betas, chosen)
        return self

    def choose(self, models: Sequence[Sequence[Model]]) -> tuple[Model, TrainingResult | None]:
        """Return the model of the highest evidence, and its short runs if there were several."""
        likelihood = models[0][0].likelihood
        self.splits = [Split(self.data, likelihood, self.data, likelihood)]
        _, model, known = self._choose_model(models, by_evidence=True)
        if known is not None:
            model = Model.of(known)._replace(
                likelihood=for_rows_of(known.likelihood, model.likelihood), name=model.name
            )
            return self._of_more_evidence(model, known)
        return model, known

    def _of_more_evidence(
        self, model: Model, known: TrainingResult
    ) -> tuple[Model, TrainingResult]:
        """Return a model of changing noise after short runs if it has more evidence than another.

        The examples of the test are those of training.
        """
        if self._for_changing_noise(model, [(known, self.data, model.likelihood)]) is None:
            return model, known
        # It may have been trained on a sample, whose evidence is another one.
        found = self.elbo(model, 2 * FIRST_STEPS)
        if found is None:
            return model, known
        other = self._for_changing_noise(model, [(found[0], self.data, model.likelihood)])
        if other is None:
            return model, known
        start = start_of(other, model, found[0], self.data)
        changed = self.elbo(Model.of(start)._replace(name=other.name), 2 * FIRST_STEPS)
        if changed is None:
            return model, known
        before, after = (evidence(each, self.data) for each in (found[0], changed[0]))
        known_evidence = self.models[model.name].evidence if model.name in self.models else None
        if known_evidence is not None:
            tried = ModelTried(other.name, known_evidence + after - before)
            self._note(tried, after > before)
        if after > before:
            return Model.of(changed[0])._replace(name=other.name), changed[0]
        return model, known

    def _set_path(self, betas: Sequence[float], chosen: int) -> None:
        points = tuple[PathPoint, ...]()
        if self.trials:
            found = compare(torch.stack([trial.losses for trial in self.trials]))
            results = found.points([trial.results[0] for trial in self.trials])
            points = tuple(
                # The state may be that from which it started.
                replace(
                    each,
                    beta=trial.beta,
                    hyperparameters=trial.hyperparameters,
                    status="",
                    rmse=trial.rmse,
                )
                for each, trial in zip(results, self.trials, strict=True)
            )
        self.path = BetaPath(
            points=points,
            chosen=chosen,
            loss=self.recipe.point_loss().validation_loss().name,
            seconds=time.perf_counter() - self.since,
            failed=tuple(self.failures),
            grid=tuple(betas),
            models=tuple(self.models.values()),
            replaced="" if self.replaced is None else self.replaced[0],
        )

    def _choose_model(
        self, models: Sequence[Sequence[Model]], by_evidence: bool
    ) -> tuple[Model, Model, TrainingResult | None]:
        """Return the model for a first ELBO run, the one to train, and what is trained of it.

        Raises `NumericalError` if none could be trained.
        """
        if len(models) == len(models[0]) == 1:
            return models[0][0], models[0][0], None
        choice = ModelChoice(self, by_evidence)
        found = choice.choose(models)
        self.models = choice.tried
        if found is None and self.end is None:
            raise NumericalError(self.failures[0].reason)
        first, model = found or (models[0][0], models[0][0])
        return first, model, choice.best

    def _by_evidence(
        self, models: Sequence[Sequence[Model]], mode: str, beta: float
    ) -> TrainingResult:
        """Choose a model by its evidence, and train the only candidate on all examples."""
        model, known = self.choose(models)
        if self.end is not None and (known := known or self.last) is not None:
            return known
        name = f"ELBO, {model.name}, all examples"
        trainer = self.trainer(self.data, name, final=mode == "elbo")
        result = self.noted(elbo_run(trainer, self.recipe, model, near=True))
        if mode == "elbo" or self.end is not None:
            return result
        name = f"{self.recipe.name}, {mode}, all examples"
        trainer = self.trainer(self.data, name, final=True)
        if mode == "fixed":
            return self.noted(fixed_run(trainer, self.recipe, result, beta))
        return self.noted(joint_run(trainer, self.recipe, Model.of(result), beta))

    def _by_validation(
        self, models: Sequence[Sequence[Model]], betas: Sequence[float], modes: Sequence[str]
    ) -> tuple[TrainingResult, int]:
        """Choose model, mode and β; return the chosen one on all examples, and its place."""
        like = models[0][0]
        whole = split(self.validation, self.data, like.posterior, like.likelihood, self.generator)
        self.splits = [self.some(part, self.effort.rows_for_candidates) for part in whole]
        self.parts = 2 * len(models) + len(models[0]) + 12 * len(whole)
        rivals: Sequence[Model] = ()
        if isinstance(self.validation, Folds):
            # The kernel by evidence, which is cheap; the folds compare likelihoods.
            column = [[row[0]] for row in models] if "joint" in modes else models
            first, model, known = self._choose_model(column, by_evidence=True)
            if "joint" in modes:
                rivals = next(row[1:] for row in models if row[0].name == first.name)
                # Only their kernels were compared so far.
                tried = self.models.items()
                self.models = {k: replace(v, name=v.name.split(",")[0]) for k, v in tried}
        else:
            first, model, known = self._choose_model(models, by_evidence=False)
        solutions = self._solved(first)
        if solutions is None:
            known = known or self.last
            if known is None or not self.leaves_out("every candidate"):
                raise NumericalError(self.failures[-1].reason)
            return known, 0
        self._add_trials(first, [model, *rivals], solutions, betas, modes)
        sampled = any(some is not all for some, all in zip(self.splits, whole, strict=True))
        chosen = self._chosen()
        self.trials[chosen] = self._finished(self.trials[chosen], whole, sampled)
        chosen = self._covering(chosen, whole, sampled)
        trial = self.trials[chosen]
        if trial.model.name in self.models:
            name = trial.model.name
            self.models = {k: replace(v, chosen=k == name) for k, v in self.models.items()}
        return self._on_all(self._firsts.get(trial.model.name, first), trial), chosen

    def _for_changing_noise(self, first: Model, parts: Sequence[Examples]) -> Model | None:
        """Return a model of changing noise, if examples scatter more in some places than in others.

        It starts from a solution of the first model.
        """
        likelihood = self.with_changing_noise
        if likelihood is None or self.end is not None or parts[0][2].num_latent > 1:
            return None
        if not noise_depends_on_inputs(parts):
            return None
        posterior = first.posterior.with_latents(likelihood.num_latent)
        return Model(posterior, likelihood, f"{first.name.split(',')[0]}, {self.noise_name}")

    def _with_changing_noise(self, best: Trial, solved: Solved) -> Trial:
        """Return the best joint candidate, or one of changing noise that clearly beats it.

        Trained for log loss, the variance of f may take the place of such noise: then validation
        examples of the best one scatter alike everywhere, and nothing is tried.
        """
        first, solutions = solved
        pairs = zip(best.results, self.splits, strict=True)
        model = self._for_changing_noise(first, [(e, *part.examples_for(e)) for e, part in pairs])
        if model is None:
            return best
        other, better = self._against(best, model, self._starts(first, model, solutions))
        self._rivals.append(best if better else other)
        return other if better else best

    def _against(
        self, best: Trial, model: Model, starts: Sequence[TrainingResult]
    ) -> tuple[Trial, bool]:
        """Train a candidate of another model, and return whether it clearly beats the best one."""
        other = self.trial(model, "joint", best.beta, starts)
        _, other = self.race([replace(best, rate=0.0), other], _COARSE, 2 * FIRST_STEPS)
        better = best.is_beaten(other)
        if (known := self.models.get(best.model.name)) and known.loss is not None:
            self._note(ModelTried(model.name, loss=known.loss + other.loss - best.loss), better)
        return other, better

    def _with_own_kernels(self, best: Trial) -> Trial:
        """Return the best candidate, or one whose latents have a kernel each that clearly beats it.

        It starts from the same state, so that the best one is trained for as many steps more.
        """
        posterior = best.results[0].posterior
        shared = posterior.num_latent > 1 and posterior.Z.dim() == 2
        if not shared or self.effort.first_only or self.leaves_out("a kernel for each latent"):
            return best
        model = best.model._replace(
            posterior=best.model.posterior.with_own_kernels(), name=f"{best.model.name}, one each"
        )
        starts = [replace(e, posterior=e.posterior.with_own_kernels()) for e in best.results]
        other, better = self._against(best, model, starts)
        if not better:
            return best
        (longer,) = self.advanced([best], max(1, other.steps))
        if not longer.is_beaten(other):
            return longer
        return replace(other, steps=best.steps + other.steps)

    def _note(self, tried: ModelTried, chosen: bool) -> None:
        """Add a model to those that were compared."""
        if chosen:
            self.models = {k: replace(v, chosen=False) for k, v in self.models.items()}
        self.models[tried.name] = replace(tried, chosen=chosen)

    def _finished(self, trial: Trial, whole: list[Split], sampled: bool) -> Trial:
        """Train a candidate while that pays, on all rows of the splits if it has seen a sample."""
        if sampled:
            if self.leaves_out("training on more than a sample of the rows"):
                return trial
            self.splits = whole
            results = tuple(
                replace(each, likelihood=for_rows_of(each.likelihood, part.likelihood))
                for each, part in zip(trial.results, whole, strict=True)
            )
            trial = replace(trial, results=results, rate=math.inf)
        (trial,) = self.race([trial], 1.0)
        return self._grown(trial) if sampled or self._limited else trial

    def _covering(self, chosen: int, whole: list[Split], sampled: bool) -> int:
        """Return the place of the chosen candidate, or of one that covers clearly better.

        Where 90 % intervals of the chosen one are too narrow, the best of those that cover clearly
        better, at nearly the same loss, is trained to the end, and takes its place if it still is.
        """
        best, self.coverage = self.trials[chosen], self._coverage_of(self.trials[chosen])
        if not self.coverage.narrow or self.end is not None:
            return chosen

        def better(other: Trial) -> bool:
            near = other.loss <= best.loss + _PRICE_OF_COVERAGE and not other.is_beaten(best)
            return near and self._coverage_of(other).clearly_better(self.coverage)

        candidates = [*self.trials, *self._rivals]
        others = sorted(range(len(candidates)), key=lambda i: candidates[i].loss)
        i = next((i for i in others if i != chosen and better(candidates[i])), chosen)
        if i == chosen:
            return chosen
        other = self._finished(candidates[i], whole, sampled)
        if not better(other):
            return chosen
        self.replaced = best.name, self.coverage.groups[0]
        self.coverage = self._coverage_of(other)
        if (name := other.model.name) in self.models:
            self.models = {k: replace(v, chosen=k == name) for k, v in self.models.items()}
        place = min(i, len(self.trials))
        self.trials[place : place + 1] = [other]
        return place

    def _coverage_of(self, trial: Trial) -> Coverage:
        """Return the coverage of the validation examples."""
        pairs = zip(trial.results, self.splits, strict=True)
        parts = [(result, *part.examples_for(result)) for result, part in pairs]
        return Coverage.of(parts, self.recipe.point_loss())

    def _solved(self, model: Model) -> list[TrainingResult] | None:
        """Return ELBO solutions of the splits, with more inducing inputs where that pays.

        Their number is doubled while a few steps with twice as many lower the objective enough.
        """
        results = self.elbo(model, FIRST_STEPS)
        if results is None or not isinstance(model.likelihood, ConjugateLikelihood):
            return results
        most = self._most_inducing(_ROWS_PER_INDUCING)
        self._limited = True
        rate, steps = math.inf, FIRST_STEPS
        while most and self.end is None:
            number, loss = results[0].posterior.num_inducing, mean_loss(results)
            if rate >= _COARSE * self.effort.tolerance and steps < 200:
                # More steps before more inducing inputs.
                further = self.elbo(model, steps, results)
                if further is None:
                    return results
                rate = (loss - mean_loss(further)) / (steps * self.cost(number))
                results, steps = further, 2 * steps
                continue
            if 2 * number > most:
                return results
            further = self.elbo(model, FIRST_STEPS, self._doubled(results))
            if further is None:
                return results
            fall = loss - mean_loss(further)
            if fall < self._price(2 * number):
                self._limited = False
                return results
            results, rate, steps = further, math.inf, 2 * FIRST_STEPS
        return results

    def _grown(self, trial: Trial) -> Trial:
        """Return the chosen candidate with more inducing inputs, doubled while that pays."""
        most = self._most_inducing(self.effort.rows_per_inducing)
        while 2 * trial.num_inducing <= most and trial.hyperparameters != "fixed":
            if self.leaves_out("more inducing inputs"):
                break
            before = trial.steps if trial.steps_before is None else trial.steps_before
            results = self._doubled(trial.results)
            grown = replace(trial, results=results, steps_before=before, learnt=())
            (grown,) = self.advanced([grown], FIRST_STEPS)
            if self.fall(trial.loss, grown.loss) < self._price(grown.num_inducing):
                break
            (trial,) = self.race([grown], 1.0)
        return trial

    def _doubled(self, results: Sequence[TrainingResult]) -> tuple[TrainingResult, ...]:
        """Return the results with as many inducing inputs again, and the same q(f)."""
        return tuple(
            replace(
                each, posterior=each.posterior.grown(part.training.X, each.posterior.num_inducing)
            )
            for each, part in zip(results, self.splits, strict=True)
        )

    def _price(self, num_inducing: int) -> float:
        """Return the fall of the loss for which the number of inducing inputs is doubled."""
        return _STEPS_PER_DOUBLING * self.effort.tolerance * self.cost(num_inducing)

    def _most_inducing(self, rows_each: int) -> int:
        """Return the largest number of inducing inputs; 0 where their number is given."""
        if not self.grows:
            return 0
        cuda = self.data.X.is_cuda
        most = self.effort.max_inducing_cuda if cuda else self.effort.max_inducing
        return min(most, min(len(part.training) for part in self.splits) // rows_each)

    def _solutions_of(
        self, first: Model, models: Sequence[Model], solutions: Sequence[TrainingResult]
    ) -> dict[str, Solved]:
        """Return the first model of each scale of f, and its ELBO solutions."""
        known: dict[str, Solved] = {first.likelihood.latent_scale: (first, solutions)}
        for model in models:
            scale = model.likelihood.latent_scale
            if scale not in known and not self.leaves_out(model.name):
                # As many steps as the solutions of the first one have had, or nearly.
                found = self.elbo(model, 2 * FIRST_STEPS)
                if found is not None:
                    known[scale] = model, found
            if scale in known:
                self._firsts[model.name] = known[scale][0]
        return known

    def _starts(
        self, first: Model, model: Model, solutions: Sequence[TrainingResult]
    ) -> list[TrainingResult]:
        """Return the states from which candidates start, with the likelihood of the model."""
        return [
            start_of(model, first, found, part.training)
            for found, part in zip(solutions, self.splits, strict=True)
        ]

    def _add_trials(
        self,
        first: Model,
        models: Sequence[Model],
        solutions: Sequence[TrainingResult],
        betas: Sequence[float],
        modes: Sequence[str],
    ) -> None:
        """Train candidates of each mode, along β while that lowers the validation loss."""
        model, middle = models[0], betas[nearest_one(betas)]
        found: list[Trial] = []
        known = self._solutions_of(first, models, solutions)
        if "joint" in modes:
            joint = [
                self.trial(each, "joint", middle, self._starts(start, each, solved))
                for each in models
                for start, solved in [known.get(each.likelihood.latent_scale, (first, ()))]
                if solved
            ]
            joint = self.race(joint, _COARSE, 2 * FIRST_STEPS)
            winner = min(joint, key=lambda trial: trial.loss)
            self._rivals = [trial for trial in joint if trial is not winner]
            solved = known[winner.model.likelihood.latent_scale]
            winner = self._with_changing_noise(winner, solved)
            found = [winner] if self.effort.first_only else self._along(winner, betas)
            best = min(found, key=lambda trial: trial.loss)
            found = [self._with_own_kernels(each) if each is best else each for each in found]
            model = winner.model
        first, solutions = known[model.likelihood.latent_scale]
        starts = self._starts(first, model, solutions)
        lowest = min(found, key=lambda trial: trial.loss, default=None)
        elbo = self.trial(model, "elbo", 1.0, starts)
        if model.name != first.name and not self.leaves_out("the ELBO"):
            self._rivals.append(self.trial(first, "elbo", 1.0, solutions))
            (elbo,) = self.advanced([elbo], FIRST_STEPS)
        if lowest is None or not elbo.is_beaten(lowest):
            (elbo,) = self.race([elbo], _COARSE)
        if "fixed" in modes and not self.leaves_out("hyperparameters held"):
            fixed = _anew(self.trial(model, "fixed", middle, elbo.results))
            fixed = replace(fixed, steps=elbo.steps)
            (fixed,) = self.advanced([fixed], 2 * FIRST_STEPS)
            found += self._along(replace(fixed, rate=0.0), betas)
        found = [trial for trial in found if math.isfinite(trial.loss)]
        self.trials = [elbo, *found] if "elbo" in modes or not found else found

    def _along(self, middle: Trial, betas: Sequence[float]) -> list[Trial]:
        """Return the candidates from the middle of the grid to where the losses rise."""

        def candidate(beta: float, neighbour: Trial | None) -> Trial | None:
            if neighbour is None:
                return middle
            if self.leaves_out(f"β = {beta:.3g}"):
                return None
            # What L-BFGS has learnt is nearly right for this β, too.
            (trained,) = self.advanced([_anew(replace(neighbour, beta=beta))], FIRST_STEPS)
            return None if math.isinf(trained.loss) else trained

        def rising(passed: Sequence[Trial | None], left: int) -> bool:
            *before, last = passed
            known = [trial for trial in before if trial is not None]
            if last is None or not known:
                return last is None and bool(before)
            # More steps at one β would have lowered the loss, too.
            lowest = min(trial.loss for trial in known)
            return not self.fall(lowest, last.loss) > middle.rate * FIRST_STEPS

        return outwards(betas, candidate, rising)

    def _chosen(self) -> int:
        """Return the place of the chosen candidate, of those whose losses are alike.

        Its predictions have nearly the lowest mean square error, and it is preferred to the others.
        """
        found = compare(torch.stack([trial.losses for trial in self.trials]))
        alike = found.difference <= _ALIKE * found.difference_error
        near = alike.nonzero()[:, 0].tolist()
        most = _NEARLY * min(self.trials[i].rmse for i in near)
        near = [i for i in near if not self.trials[i].rmse > most]
        return int(min(near, key=lambda i: self.trials[i].preference))

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
        mode, beta, start = chosen.hyperparameters, chosen.beta, first
        early, final = (each[0].posterior.num_inducing for each in (chosen.base, chosen.results))
        more = early - first.posterior.num_inducing
        if more > 0:
            start = first._replace(posterior=first.posterior.grown(self.data.X, more))
        stages, steps = chosen.results[0].stages, chosen.steps
        before = sum(stage.steps for stage in stages) - steps
        result = elbo_run(trainer, self.recipe_of(first, max(1, before)), start, near=True)
        if result.ended:
            return result
        result = start_of(chosen.model, first, result, self.data)
        if mode == "fixed":
            # Those of q(u) are none of the ELBO.
            steps = sum(stage.steps for stage in stages if stage.stage == "elbo") - before
        early_steps = chosen.steps_before or 0
        turns = [(early_steps, 0)] if early_steps else []
        for turn, added in [*turns, (max(1, steps - early_steps), final - early)]:
            model, recipe = Model.of(result), self.recipe_of(chosen.model, turn)
            if added > 0:
                posterior = model.posterior.grown(self.data.X, added)
                model = model._replace(posterior=posterior)
            if mode == "joint":
                result = joint_run(trainer, recipe, model, beta)
            else:
                result = elbo_run(trainer, recipe, model, near=True)
            if result.ended:
                return result
        if mode == "fixed":
            return fixed_run(trainer, self.recipe, result, beta)
        return _settled(result)


def _anew(trial: Trial) -> Trial:
    """Return a candidate whose losses, those of another β or mode, are no reason to keep it."""
    return replace(trial, losses=trial.losses + math.inf)


def ended(result: TrainingResult, end: StageResult) -> TrainingResult:
    """Return the best result of a search that was ended, with the reason for that."""
    *before, last = result.stages
    last = replace(last, status=end.status, reason=end.reason, ends_training=True)
    return replace(result, stages=(*before, last))


def _settled(result: TrainingResult, by: str = "validation loss") -> TrainingResult:
    """Return a result that ended where more steps did not pay, as converged."""
    *before, last = result.stages
    if last.ends_training or last.status is not Status.BUDGET:
        return result
    reason = f"More steps lower the {by} by less than they cost."
    return replace(result, stages=(*before, replace(last, status=Status.CONVERGED, reason=reason)))
