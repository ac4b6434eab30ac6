"""`partial_fit` of the estimators: q(u) updated with new rows, the rest as `fit` left it."""

import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_random_state

from directgp.estimators.learning import LearningEstimator
from directgp.estimators.reports import advice
from directgp.estimators.reports.findings import issue, still_falling
from directgp.estimators.settings import device_of, recipe_of
from directgp.estimators.tables.training_table import TrainingTable
from directgp.estimators.user_types import ArrayLike
from directgp.likelihoods.base import Likelihood
from directgp.likelihoods.gaussian import Gaussian
from directgp.objectives.square_loss import SquareLoss
from directgp.training.candidates import Model
from directgp.training.recipe import Recipe
from directgp.training.result import TrainingResult
from directgp.training.runs import as_elbo
from directgp.training.update import update


class UpdatableEstimator(LearningEstimator):
    """An estimator that learns from rows as they come."""

    @property
    def _is_trained(self) -> bool:
        return hasattr(self, "posterior_")

    def _partial_fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None,
        exposure: ArrayLike | None = None,
    ) -> None:
        """Check everything, update q(u), and only then change the model."""
        self._validate_params()
        who = f"{type(self).__name__}.partial_fit"
        here = self.posterior_.Z.device
        device = here if self.device == "auto" else device_of(self.device, who)
        checked = self._checked(X, y, sample_weight, who, reset=False, least=1)
        exposures = self._exposure(exposure, len(checked[0]), who)
        table = self._training_table(*checked, exposures, device, warm=True)
        random = check_random_state(self.random_state).randint(2**31 - 1)
        num_inducing = len(self.posterior_.Z)
        recipe = recipe_of(self.get_params(deep=False), len(table.X), num_inducing)
        ((model,),) = self._models(recipe, table, num_inducing, random, warm=True)
        kept = self.hyperparameters_ == "elbo" and recipe.point_loss().uses_variance(
            model.likelihood
        )
        if kept or _is_of_squares(recipe, model.likelihood):
            recipe, beta = as_elbo(recipe), 1.0
        else:
            beta = self.beta_
        generator = torch.Generator(device).manual_seed(random)
        self._learn_more(updated(recipe, model, table, beta, generator), table)

    def _learn_more(self, result: TrainingResult, table: TrainingTable) -> None:
        """Set what an update has changed, and warn where it was cut off."""
        self._learn_result(result)
        self.num_rows_ += table.num_rows
        self.num_merged_ += table.num_merged
        self.fit_seconds_ = result.seconds
        found = self._advice_on_scaling(table) + advice.cut_short(result.status, result.reason)
        issue(found)
        unfinished = []
        if still_falling(result):
            unfinished = advice.not_converged(result.status, result.reason)
            issue(unfinished, ConvergenceWarning)
        # What is found again in every part is kept once.
        self.findings_ = tuple(dict.fromkeys((*self.findings_, *found, *unfinished)))

    def _advice_on_scaling(self, table: TrainingTable) -> list[str]:
        """Of new rows, where inputs are scaled at all."""
        if not table.scalings.inputs.rounded:
            return []
        names = getattr(self, "feature_names_in_", None)
        return advice.outside_scaling(table.X.double().cpu().numpy(), names)


def _is_of_squares(recipe: Recipe, likelihood: Likelihood) -> bool:
    """Whether the model is the Gaussian one, of β = 1, whose mean is that of square loss."""
    return isinstance(recipe.point_loss(), SquareLoss) and isinstance(likelihood, Gaussian)


def updated(
    recipe: Recipe, model: Model, table: TrainingTable, beta: float, generator: torch.Generator
) -> TrainingResult:
    """The model after the rows of a table, all but q(u) as it was."""
    return update(
        model.posterior,
        model.likelihood,
        table.X,
        table.y,
        objective=recipe.objective,
        beta=beta,
        rule=recipe.rule,
        optimizer=recipe.optimizer,
        weights=table.weights,
        batch_size=recipe.batch_size,
        max_steps=recipe.max_steps,
        stopping=recipe.stopping,
        monitors=recipe.monitors,
        generator=generator,
    )
