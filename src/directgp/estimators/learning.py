"""Fitting of an estimator: from a table to what is learnt."""

import copy
import time
from dataclasses import replace

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_random_state

from directgp.errors import require
from directgp.estimators.base import Column, Columns, SparseGPEstimator
from directgp.estimators.fitting import Choice, Fitted, fit_model
from directgp.estimators.reports import advice
from directgp.estimators.reports.findings import findings_of_training, issue, still_falling
from directgp.estimators.settings import choice_of, device_of, dtype_of, recipe_of
from directgp.estimators.starting_models import (
    ModelSettings,
    auto_inducing,
    check_kernel,
    given_inducing,
    starting_models,
)
from directgp.estimators.tables.checks import about, check_parts
from directgp.estimators.tables.training_table import Scalings, TrainingTable, training_table
from directgp.estimators.user_types import ArrayLike, ValidationData
from directgp.likelihoods.base import Likelihood
from directgp.likelihoods.counts import CountLikelihood, exposed
from directgp.posteriors.sparse import SparsePosterior
from directgp.training.candidates import Model
from directgp.training.recipe import Recipe
from directgp.training.result import TrainingResult
from directgp.training.validation import Given

STRUCTURE = ("kernel", "ard", "mean", "likelihood", "num_inducing", "inducing", "standardize")
"""Parameters that say what the model is."""


class LearningEstimator(SparseGPEstimator):
    """An estimator that is fitted to a table."""

    def _fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None,
        validation_data: ValidationData | None,
        exposure: ArrayLike | None = None,
        classes_known: bool = False,
    ) -> None:
        """Check everything, train, and only then change what was learnt before."""
        since = time.perf_counter()
        self._validate_params()
        who = f"{type(self).__name__}.fit"
        warm = bool(self.warm_start) and hasattr(self, "posterior_")
        inputs, targets, weights = self._checked(
            X, y, sample_weight, who, reset=not warm, classes_known=classes_known
        )
        exposures = self._exposure(exposure, len(inputs), who)
        device = device_of(self.device, who, len(inputs))
        table = self._training_table(inputs, targets, weights, exposures, device, warm)
        random = check_random_state(self.random_state).randint(2**31 - 1)
        num_inducing = self._number_of_inducing(len(table.X))
        recipe = recipe_of(self.get_params(deep=False), len(table.X), num_inducing)
        models = self._models(recipe, table, num_inducing, random, warm)
        given = self._given(validation_data, table.scalings, exposure is not None, models[0][0])
        generator = torch.Generator(device).manual_seed(random)
        choice = replace(choice_of(self.get_params(deep=False)), warm=warm)
        fitted = self._trained(recipe, choice, models, table, given, generator)
        self._learn(fitted, table)
        self.exposed_ = exposure is not None
        self.fit_seconds_ = time.perf_counter() - since
        self._tell(fitted, table, targets)

    def _trained(
        self,
        recipe: Recipe,
        choice: Choice,
        models: list[list[Model]],
        table: TrainingTable,
        given: Given | None,
        generator: torch.Generator,
    ) -> Fitted:
        return fit_model(recipe, choice, models, table, given, generator)

    def _training_table(
        self,
        X: Columns,
        y: Column,
        weights: Column | None,
        exposure: Column | None,
        device: torch.device,
        warm: bool,
    ) -> TrainingTable:
        scale = bool(self.standardize)
        own = isinstance(self.kernel, str) and isinstance(self.inducing, str)
        scalings = (
            self.scalings_
            if warm
            else Scalings.from_data(
                X, y, weights, inputs=scale, targets=scale and self._scales_targets
            )
        )
        return training_table(
            X,
            y,
            weights,
            exposure,
            scalings,
            # A kernel of one's own, and a trained one, may know directions.
            turn=scale and own and not warm,
            real_valued=self._scales_targets,
            dtype=dtype_of(self.dtype),
            device=device,
        )

    def _number_of_inducing(self, num_rows: int) -> int:
        if not isinstance(self.inducing, str):
            return len(np.asarray(self.inducing))
        if self.num_inducing == "auto":
            return auto_inducing(num_rows)
        return min(int(self.num_inducing), num_rows)

    def _models(
        self, recipe: Recipe, table: TrainingTable, num_inducing: int, seed: int, warm: bool
    ) -> list[list[Model]]:
        if warm:
            self._check_structure()
            posterior, likelihood = copy.deepcopy((self.posterior_, self.likelihood_))
            likelihood = exposed(likelihood.to(table.X), table.exposure)
            return [[Model(posterior.to(table.X), likelihood, "as before")]]
        d = table.X.shape[1]
        if not isinstance(self.kernel, str):
            check_kernel(self.kernel, d)
            require(
                self.ard == "auto",
                f"ard of {type(self).__name__} with a kernel of your own",
                "'auto'",
                repr(self.ard),
                "Give the kernel itself ard_num_dims.",
            )
        inducing = self.inducing
        if not isinstance(inducing, str):
            Z = given_inducing(inducing, d, f"{type(self).__name__}.fit")
            inducing = torch.as_tensor(table.scalings.inputs.forward(Z)).to(table.X)
        settings = ModelSettings(
            family=self._family,
            likelihood=self.likelihood,
            kernel=self.kernel,
            ard=self.ard,
            mean=self._default_mean if self.mean == "auto" else self.mean,
            num_inducing=num_inducing,
            inducing=inducing,
        )
        random = torch.Generator().manual_seed(seed)
        latent = self._latent(table)
        return starting_models(settings, recipe, table.X, table.y, latent, table.exposure, random)

    def _given(
        self,
        validation_data: ValidationData | None,
        scalings: Scalings,
        has_exposure: bool,
        model: Model,
    ) -> Given | None:
        """Validation examples of the user's own, in the units of training."""
        if validation_data is None:
            return None
        who, wanted = f"{type(self).__name__}.fit", 3 if has_exposure else 2
        what = "(X, y, exposure)" if has_exposure else "(X, y)"
        check_parts(validation_data, wanted, f"validation_data of {who}", what)
        who = f"{who}, validation_data"
        with about(f"{who} cannot be used"):
            X, y, _ = self._checked(
                validation_data[0], validation_data[1], None, who, reset=False, least=1
            )
        to, likelihood = model.posterior.Z, None
        if has_exposure:
            values = self._exposure(validation_data[2], len(X), who)
            likelihood = exposed(model.likelihood, torch.as_tensor(values).to(to))
        inputs = torch.as_tensor(scalings.inputs.forward(X)).to(to)
        return Given(inputs, torch.as_tensor(scalings.scaled_targets(y)).to(to), likelihood)

    def _check_structure(self) -> None:
        """Refuse parameters that a warm start cannot follow."""
        before = self._structure
        changed = [name for name in STRUCTURE if not _same(getattr(self, name), before[name])]
        require(
            not changed,
            f"parameters of {type(self).__name__} with warm_start",
            f"as in the fit before, for {', '.join(STRUCTURE)}",
            f"other values of {', '.join(changed)}",
            "Fit with warm_start=False.",
        )

    def _learn(self, fitted: Fitted, table: TrainingTable) -> None:
        """Set what was learnt."""
        self._learn_result(fitted.result)
        self._structure = {name: getattr(self, name) for name in STRUCTURE}
        self.scalings_ = table.scalings
        self.beta_ = fitted.result.beta
        self.hyperparameters_ = fitted.result.hyperparameters
        unit = abs(float(table.scalings.targets.scale[0]))
        self.beta_path_ = None if fitted.path is None else fitted.path.in_units(unit)
        self.num_rows_, self.num_merged_ = table.num_rows, table.num_merged

    def _learn_result(self, result: TrainingResult) -> None:
        """Set the model, and how it was trained."""
        likelihood = result.likelihood
        if isinstance(likelihood, CountLikelihood):
            likelihood = likelihood.without_exposure()
        self.training_result_ = replace(result, likelihood=likelihood)
        self.posterior_: SparsePosterior = result.posterior
        self.likelihood_: Likelihood = likelihood
        self.n_iter_ = result.steps

    def _tell(self, fitted: Fitted, table: TrainingTable, y: Column) -> None:
        """Warn of what a user should know, and remember it for `summary`."""
        names = getattr(self, "feature_names_in_", None)
        found = advice.constant_columns(table.X.double().cpu().numpy(), names)
        found += advice.merged_rows(table.num_merged, table.num_rows)
        found += advice.small_weights(table.count, table.num_rows)
        if self.warm_start:
            found += advice.outside_scaling(table.X.double().cpu().numpy(), names)
        if isinstance(self.num_inducing, int | np.integer) and isinstance(self.inducing, str):
            found += advice.too_few_rows(len(table.X), int(self.num_inducing))
        found += self._advice_on_target(y)
        found += findings_of_training(fitted.result, fitted.path, names)
        if fitted.end is not None and not fitted.result.ended:
            found += advice.cut_short(fitted.end.status, fitted.end.reason)
        issue(found)
        unfinished = []
        if still_falling(fitted.result):
            result, compared = fitted.result, fitted.path is not None
            unfinished = advice.not_converged(result.status, result.reason, compared)
            issue(unfinished, ConvergenceWarning)
        self.findings_ = (*found, *unfinished)

    def _advice_on_target(self, y: Column) -> list[str]:
        return []


def _same(one: object, other: object) -> bool:
    """Whether two parameters are equal; arrays by their entries, objects if they are the same."""
    if one is other:
        return True
    if isinstance(one, str) or isinstance(other, str):
        return one == other
    return bool(np.array_equal(np.asarray(one, dtype=object), np.asarray(other, dtype=object)))
