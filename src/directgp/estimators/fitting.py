"""Train the members of an estimator on prepared rows: one run, or a race of candidates."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, final

import torch
from jaxtyping import Float
from torch import Tensor

from directgp.errors import NumericalError, require
from directgp.estimators.members import Member
from directgp.estimators.preprocessing import TrainingTable
from directgp.estimators.series import column_of_kind
from directgp.estimators.settings import FitSettings
from directgp.estimators.starting_models import Models
from directgp.likelihoods.base import ConjugateLikelihood, Likelihood
from directgp.log_expectations.api import check_own
from directgp.race.candidates import Candidate, Choices
from directgp.race.coverage import Coverage, MemberExamples
from directgp.race.entrants import Entrant, Trainers
from directgp.race.final import ended, on_all, settled
from directgp.race.race import EFFORTS, Race
from directgp.race.record import path_of
from directgp.text import plural
from directgp.training.beta_path import beta_grid
from directgp.training.beta_path import path_of as path_along
from directgp.training.data import Data, Model, check_data
from directgp.training.result import BetaPath, Phase, StageResult, Status, TrainingResult
from directgp.training.run import Recipe, close
from directgp.training.train import train, update
from directgp.training.trainer import Trainer, as_elbo, elbo_run, fixed_run, joint_run
from directgp.training.validation import (
    Folds,
    Forward,
    Given,
    Groups,
    HoldOut,
    Split,
    Validation,
    for_rows_of,
    split,
)

_ROWS_FOR_FOLDS = 1000
"""Fewer rows are validated in folds, which uses each of them."""

_FOLDS = 3
"""Number of folds."""

_HELD_OUT = 0.2
"""Part of the rows for validation where there are no folds."""

_ORIGINS = 3
"""Number of origins of forecasts."""

_FORWARD_SHARE = 0.15
"""Part of the rows that is forecast from each origin."""

_BETAS_IN_BATCHES = (10.0, 1.0, 0.1)
"""Candidates of β for batches, as in the paper's experiment with millions of rows."""


class Fitted(NamedTuple):
    """The trained members, and the candidates they were chosen from."""

    members: tuple[Member, ...]
    """Trained models, the heaviest first."""

    weights: tuple[float, ...]
    """Their weights, which sum to 1."""

    result: TrainingResult
    """Training of the heaviest member."""

    path: BetaPath | None = None
    """The candidates; None if nothing was chosen."""

    end: StageResult | None = None
    """The run during which a budget, the user or a callback ended the race."""

    untried: tuple[str, ...] = ()
    """Candidates that were not tried because the race was ended."""

    coverage: Coverage = Coverage()
    """Coverage of 90 % intervals, on validation rows if there are some, else on training rows."""

    def with_losses(self, path: BetaPath | None) -> "Fitted":
        """Return the members with their validation losses in a path."""
        points = () if path is None else path.members
        if len(points) != len(self.members):
            return self
        pairs = zip(self.members, points, strict=True)
        members = tuple(replace(member, loss=point.validation_loss) for member, point in pairs)
        return self._replace(members=members)

    @classmethod
    def of(cls, result: TrainingResult, **fields: Any) -> "Fitted":
        """Return a single member."""
        return cls((member_of(result),), (1.0,), result, **fields)


def member_of(result: TrainingResult, label: str = "", stacked: bool = False) -> Member:
    """Return the model that a run has trained."""
    return Member(
        posterior=result.posterior,
        likelihood=result.likelihood.rows.without(result.likelihood),
        beta=result.beta,
        hyperparameters=result.hyperparameters,
        label=label,
        stacked=stacked,
    )


@final
@dataclass(frozen=True, kw_only=True)
class Fit:
    """The settings, rows and starting models of one call of `fit`."""

    settings: FitSettings
    """Parameters of the call."""

    recipe: Recipe
    """Objective, rule, optimiser and stopping rule of every run."""

    table: TrainingTable
    """The training rows."""

    models: Models
    """Makes the untrained models."""

    seed: int
    """Seed of splits and runs."""

    since: float
    """`time.perf_counter` at the start of the fit, from which a race counts its time."""

    @property
    def likelihood(self) -> Likelihood:
        """A likelihood with the row values of the table."""
        return next(iter(self.models.likelihoods.values()))

    def train(self, examples: Given | None) -> Fitted:
        """Train the only candidate, or race several if the settings leave a choice.

        The candidates are validated by these examples, or by a part of the rows.
        """
        self._check()
        choices = self.models.choices(self._modes(), self._betas())
        if self.settings.task == "classification" and not _varies(self.table.y):
            return self._of_one_class(choices.first())
        return self._train_one(choices) if choices.single else self._race(choices, examples)

    def _check(self) -> None:
        """Raise `InvalidInputError` if the rows do not fit a starting model."""
        choices = self.models.choices(["joint"], [1.0])
        for name, likelihood in self.models.likelihoods.items():
            model = self.models.model(replace(choices.first(), likelihood=name))
            check_data("fit", self.models.data(choices.stacked[0]), *model)
            check_own(likelihood, self.table.y)

    def _train_one(self, choices: Choices) -> Fitted:
        """Train the only candidate."""
        candidate = choices.first()
        posterior, likelihood = self.models.model(candidate)
        data = self.models.data(candidate.stacked)
        result = train(
            posterior,
            likelihood,
            data.X,
            data.y,
            hyperparameters="fixed" if candidate.mode == "fixed" else "joint",
            **arguments_of(self.recipe, data, candidate.beta, self.seed),
        )
        result = replace(result, hyperparameters=candidate.mode)
        predicted = MemberExamples(1.0, result.posterior, result.likelihood, data)
        return Fitted(
            members=(member_of(result, candidate.label, candidate.stacked),),
            weights=(1.0,),
            result=result,
            coverage=Coverage.of([[predicted]], self.recipe.point_loss(), self.table.X.shape[1]),
        )

    def _of_one_class(self, candidate: Candidate) -> Fitted:
        """Update q(u) alone, with hyperparameters at their starting values."""
        # The most likely mean of one class is infinite, and later rows could not correct it.
        beta = 1.0 if self.settings.beta == "auto" else self.settings.beta
        posterior, likelihood = self.models.model(candidate)
        data = self.models.data(candidate.stacked)
        arguments = arguments_of(self.recipe, data, beta, self.seed)
        result = update(posterior, likelihood, data.X, data.y, **arguments)
        return Fitted.of(replace(result, hyperparameters="held"))

    def _race(self, choices: Choices, examples: Given | None) -> Fitted:
        """Race the candidates, and train those of the result on all rows."""
        got = "one, repeated" if self.table.num_merged else "one"
        who = "rows to choose a model by"
        remedy = "Give validation_data, or set beta, hyperparameters, likelihood and ard."
        enough = examples is not None or len(self.table.y) > 1
        require(enough, who, "at least two different ones", got, remedy)
        validation, description = validation_of(self.settings, self.table, examples)
        effort = EFFORTS[self.settings.effort]
        generator = torch.Generator().manual_seed(self.seed)
        whole = self._splits(choices, validation, generator)
        decisions: Sequence[str] = ()
        if False in whole:
            # The race needs the other half of the time.
            deadline = self.since + (self.settings.time_budget or math.inf) / 2
            structures, decisions = self.models.search(whole[False], deadline)
            choices = replace(choices, structures=structures)
        state = generator.get_state()
        some = {}
        for stacked, parts in whole.items():
            # The same rows for both.
            generator.set_state(state)
            some[stacked] = [_some(part, effort.rows, generator) for part in parts]
        trainers = Trainers(
            self.recipe, self.models, some, generator, self.settings.jobs, self.since
        )
        race = Race(trainers, choices, effort, self.settings.combine)
        race.decisions += decisions
        try:
            race.run()
            sampled = any(len(part.training) > effort.rows for part in whole[choices.stacked[0]])
            if sampled and race.entrants and trainers.end is None:
                race.widen(whole)
                race.run()
            return self._fitted(race, choices, validation, description)
        finally:
            close(self.recipe.monitors)

    def _splits(
        self, choices: Choices, validation: Validation, generator: torch.Generator
    ) -> dict[bool, list[Split]]:
        """Return the splits of the rows, with the columns of the stack and without."""
        state = generator.get_state()
        found = {}
        for stacked in choices.stacked:
            # The same rows for both.
            generator.set_state(state)
            model = self.models.model(replace(choices.first(), stacked=stacked))
            how = validation
            if isinstance(how, Given):
                how = replace(how, X=self.models.inputs(how.X, stacked))
            found[stacked] = split(how, self.models.data(stacked), *model, generator)
        return found

    def _fitted(
        self, race: Race, choices: Choices, validation: Validation, description: str
    ) -> Fitted:
        """Return the members of the result, trained on all rows."""
        trainers = race.trainers
        if not race.entrants:
            if trainers.last is None or trainers.end is None:
                raise NumericalError(trainers.failures[0].reason if trainers.failures else "")
            candidate, last = trainers.last
            member = member_of(last, candidate.label, candidate.stacked)
            untried = tuple(race.untried)
            return Fitted((member,), (1.0,), last, end=trainers.end, untried=untried)
        path = path_of(race, choices.betas, description)
        weights = race.weights
        order = weights.argsort(descending=True, stable=True)
        order = order[weights[order] > 0]
        chosen = [race.entrants[i] for i in order.tolist()]
        coverage = self._coverage(race, chosen, weights[order].tolist())
        if isinstance(validation, Given):
            results = [entrant.results[0] for entrant in chosen]
            if trainers.end is None:
                results = [settled(result) for result in results]
        else:
            results = on_all(trainers, chosen, EFFORTS[self.settings.effort].tolerance)
            if trainers.end is not None:
                race.untried.append("training on all rows, those for validation too")
        members = tuple(
            member_of(result, entrant.state.label, entrant.candidate.stacked)
            for result, entrant in zip(results, chosen, strict=True)
        )
        result = results[0]
        if trainers.end is not None and trainers.end.status is not Status.BUDGET:
            result = ended(result, trainers.end)
        return Fitted(
            members=members,
            weights=tuple(weights[order].tolist()),
            result=result,
            path=replace(path, failed=tuple(trainers.failures)),
            end=trainers.end,
            untried=tuple(race.untried),
            coverage=coverage,
        )

    def _coverage(
        self, race: Race, entrants: Sequence[Entrant], weights: Sequence[float]
    ) -> Coverage:
        """Return the coverage of the validation examples, each split with its own models."""
        splits = race.trainers.splits
        parts = []
        for k in range(len(entrants[0].results)):
            part = []
            for entrant, weight in zip(entrants, weights, strict=True):
                result = entrant.results[k]
                data, likelihood = splits[entrant.candidate.stacked][k].examples_for(result)
                part.append(MemberExamples(weight, result.posterior, likelihood, data))
            parts.append(part)
        return Coverage.of(parts, self.recipe.point_loss(), self.table.X.shape[1])

    def _modes(self) -> list[str]:
        """Return the modes to choose from; with "auto" the plain ELBO solution is one of them."""
        if self.recipe.collapsed is not None:
            return ["joint"]
        if self.recipe.name == "elbo" and self.settings.beta == 1.0:
            # q(u) for the held hyperparameters of the ELBO is the ELBO's own.
            return ["elbo"]
        mode = self.settings.hyperparameters
        return ["elbo", "joint"] if mode == "auto" else [mode]

    def _betas(self) -> list[float]:
        """Return the given β, or every second value of the paper's grid."""
        if self.settings.beta != "auto":
            return [self.settings.beta]
        if self.recipe.collapsed is not None:
            return [1.0]
        number = self.models.num_inducing
        if self.recipe.chosen_batch_size(len(self.table.y), number) is not None:
            return list(_BETAS_IN_BATCHES)
        grid = beta_grid(max(1, round(self.table.count)))
        return grid[::2] if len(grid) % 2 else [*grid[::2], grid[-1]]


@final
@dataclass(frozen=True, kw_only=True)
class Continuation:
    """The settings, rows and trained members of a call that continues an earlier fit."""

    settings: FitSettings
    """Parameters of the call."""

    recipe: Recipe
    """Objective, rule, optimiser and stopping rule of every run."""

    table: TrainingTable
    """The training rows."""

    members: Sequence[Member]
    """Copies of the trained members, with the row values of the table."""

    weights: Sequence[float]
    """Their weights."""

    columns: Float[Tensor, "n k"] | None
    """The scaled columns of the stack; None without a stack."""

    seed: int
    """Seed of the runs."""

    @property
    def likelihood(self) -> Likelihood:
        """A likelihood with the row values of the table."""
        return self.members[0].likelihood

    def data(self, stacked: bool) -> Data:
        """Return the rows as examples, with the columns of the stack or without."""
        X = self.table.X
        if stacked and self.columns is not None:
            X = torch.cat([X, self.columns], 1)
        return Data(X, self.table.y, self.table.weights)

    def train(self, examples: Given | None) -> Fitted:
        """Train all parameters of each member on the rows, or one member along the given β."""
        if self.settings.task == "classification":
            who = "y of fit with warm_start"
            require(_varies(self.table.y), who, "of at least two classes", "one class")
        for member in self.members:
            data = self.data(member.stacked)
            check_data("fit", data, member.posterior, member.likelihood)
            check_own(member.likelihood, data.y)
            self.recipe.check(member.likelihood)
        if self.settings.betas:
            return self._along(examples)
        since = time.perf_counter()
        try:
            fitted = self._each(lambda member, number: self._trained(member, number, since))
        finally:
            close(self.recipe.monitors)
        predicted = []
        for weight, before, after in zip(self.weights, self.members, fitted.members, strict=True):
            likelihood = for_rows_of(after.likelihood, before.likelihood)
            data = self.data(after.stacked)
            predicted.append(MemberExamples(weight, after.posterior, likelihood, data))
        d = self.table.X.shape[1]
        return fitted._replace(coverage=Coverage.of([predicted], self.recipe.point_loss(), d))

    def _trained(self, member: Member, number: int, since: float) -> tuple[Member, TrainingResult]:
        mode, beta = member.hyperparameters, member.beta
        # With one class the hyperparameters were held at their start.
        mode = "joint" if mode == "held" else mode
        if mode != "elbo" and self.settings.hyperparameters != "auto":
            mode = self.settings.hyperparameters
        recipe = self.recipe
        if self.settings.beta != "auto" and mode != "elbo":
            beta = self.settings.beta
        if mode == "elbo":
            recipe, beta = as_elbo(recipe), 1.0
        data, model = self.data(member.stacked), Model(member.posterior, member.likelihood)
        generator = torch.Generator(data.X.device).manual_seed(self.seed)
        trainer = Trainer(data, generator, since=since)
        trainer.phase = Phase(member.label, number, len(self.members), final=True)
        if mode == "fixed":
            result = fixed_run(trainer, recipe, elbo_run(trainer, recipe, model), beta)
        else:
            result = joint_run(trainer, recipe, model, beta, "scratch")
        same = (mode, beta) == (member.hyperparameters, member.beta)
        label = member.label if same else ""
        member = replace(member, hyperparameters=mode, beta=beta, label=label, loss=None)
        return member, replace(result, objective=self.recipe.name, hyperparameters=mode)

    def update(self) -> Fitted:
        """Update q(u) of each member with the rows; hold all other parameters."""
        return self._each(lambda member, _: (member, self._updated(member)))

    def _updated(self, member: Member) -> TrainingResult:
        recipe, beta, likelihood = self.recipe, member.beta, member.likelihood
        loss = recipe.point_loss()
        is_elbo = member.hyperparameters == "elbo" and loss.uses_variance(likelihood)
        # Square loss gives the mean of the Gaussian model with β = 1, which is updated instead.
        conjugate = isinstance(likelihood, ConjugateLikelihood)
        if is_elbo or (conjugate and loss.eliminates == "square_loss"):
            recipe = as_elbo(recipe)
            beta = 1.0
        data = self.data(member.stacked)
        arguments = arguments_of(recipe, data, beta, self.seed)
        return update(member.posterior, likelihood, data.X, data.y, **arguments)

    def _each(self, run: Callable[[Member, int], tuple[Member, TrainingResult]]) -> Fitted:
        """Train the members one after the other; their weights stay.

        Where a budget, a callback or Ctrl-C ends a run, the members after it stay as they are.
        """
        members, results = list[Member](), list[TrainingResult]()
        end = None
        for number, member in enumerate(self.members, start=1):
            if end is None:
                member, result = run(member, number)
                member = replace(
                    member,
                    posterior=result.posterior,
                    likelihood=result.likelihood.rows.without(result.likelihood),
                )
                results.append(result)
                end = result.stages[-1] if result.ended else None
            members.append(member)
        first = results[0] if end is None else ended(results[0], end)
        return Fitted(tuple(members), tuple(self.weights), first)

    def _along(self, examples: Given | None) -> Fitted:
        """Train the member along the given β, and take the lowest validation loss."""
        (member,) = self.members
        validation, description = validation_of(self.settings, self.table, examples)
        data = self.data(member.stacked)
        path = path_along(
            self.recipe,
            Model(member.posterior, member.likelihood),
            data,
            betas=self.settings.betas,
            validation=validation,
            hyperparameters=self.settings.hyperparameters,
            checkpoints=None,
            generator=torch.Generator(data.X.device).manual_seed(self.seed),
            start="given",
            falling=True,
        )
        return Fitted.of(path.best, path=replace(path, validation=description))


def _varies(y: Tensor) -> bool:
    return bool(y.min() < y.max())


def _some(part: Split, number: int, generator: torch.Generator) -> Split:
    """Return the split with at most that number of training examples, drawn at random."""
    n = len(part.training)
    if n <= number:
        return part
    rows = torch.randperm(n, generator=generator)[:number].to(part.training.X.device)
    some = part.training.take(rows)
    return replace(part, training=some, likelihood=part.likelihood.for_rows(rows))


def validation_of(
    settings: FitSettings, table: TrainingTable, examples: Given | None
) -> tuple[Validation, str]:
    """Return how candidates are validated, and a description of it."""
    if examples is not None:
        return examples, f"{len(examples.y)} examples given for validation"
    n = len(table.y)
    fraction = settings.validation_fraction
    share = _FORWARD_SHARE if fraction == "auto" else fraction
    way = settings.validation
    if way == "forward":
        column = column_of_kind(settings, "time")
        falls = float(table.scalings.inputs.scale[column]) < 0
        number = max(1, min(_ORIGINS, math.ceil(1 / share) - 1))
        forward = Forward(column, falls, number, share)
        return forward, f"forecasts from {plural(number, 'origin')} in time"
    if way == "groups":
        name = settings.feature_names[column_of_kind(settings, "group")]
        groups = Groups(column_of_kind(settings, "group"), _FOLDS)
        return groups, f"all {n} examples, in {_FOLDS} folds by {name}"
    if fraction == "auto" and n < _ROWS_FOR_FOLDS:
        return Folds(_FOLDS), f"all {n} examples, in {min(_FOLDS, n)} folds"
    held_out = HoldOut(_HELD_OUT if fraction == "auto" else fraction)
    return held_out, f"{max(1, round(held_out.fraction * n))} of {n} examples, held out"


def arguments_of(recipe: Recipe, data: Data, beta: float, seed: int) -> dict[str, Any]:
    """Return the arguments that `train` and `update` share."""
    return {
        "objective": recipe.objective,
        "rule": recipe.rule,
        "optimizer": recipe.optimizer,
        "batch_size": recipe.batch_size,
        "learning_rate": recipe.learning_rate,
        "max_steps": recipe.max_steps,
        "stopping": recipe.stopping,
        "monitors": recipe.monitors,
        "beta": beta,
        "weights": data.weights,
        "generator": torch.Generator(data.X.device).manual_seed(seed),
    }
