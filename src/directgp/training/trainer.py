"""Train in stages: ELBO, warm-up, joint and fixed runs, each a problem and an optimiser."""

import copy
import math
import time
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, cast, final

import torch
from torch import Tensor

from directgp.errors import CheckpointError, LostProcessError, NumericalError
from directgp.integration.contract import has
from directgp.likelihoods.base import ConjugateLikelihood
from directgp.likelihoods.gaussian import Gaussian
from directgp.likelihoods.starts import RoughStart
from directgp.objectives.base import GibbsLoss, Objective
from directgp.posteriors.collapsed import Whitened, calibrate
from directgp.posteriors.sparse import SparsePosterior
from directgp.training.adam import AdamState, adam
from directgp.training.checkpoint import Checkpoint, Tensors, model_tensors, require_like, under
from directgp.training.data import (
    Batches,
    Data,
    DistributedBatches,
    Model,
    RandomBatches,
    Randomness,
    StreamBatches,
)
from directgp.training.distributed import ProcessGroup
from directgp.training.lbfgs import Learnt, lbfgs
from directgp.training.problems import FreeProblem, HeldProblem, ModelProblem, UnwhitenedProblem
from directgp.training.profiled import ProfiledProblem
from directgp.training.result import Failure, Phase, StageResult, Status, Stop, TrainingResult
from directgp.training.run import LossRange, Recipe, Run

if TYPE_CHECKING:
    from directgp.datasets.streams import ParquetRows

_NO_CHECKPOINT = "There is no checkpoint: with checkpoints=Checkpoints(path) a job can resume."

_ROUGH_NOISE = 0.1
"""Noise variance of the rough values of f, as a share of their variance."""


@final
class Trainer:
    """Runs the stages of a training on one set of data.

    Without `checkpoint` nothing is stored. `since` is `time.perf_counter` at the start of the whole
    training. With `rows`, the examples are read from there, and `data` is the first batch of this
    process.
    """

    def __init__(
        self,
        data: Data,
        generator: torch.Generator,
        checkpoint: Checkpoint | None = None,
        since: float | None = None,
        group: ProcessGroup | None = None,
        rows: "ParquetRows | None" = None,
    ) -> None:
        self.data = data
        self._rows = rows
        self._group = group
        self._generator = generator
        self._checkpoint = checkpoint
        self._since = time.perf_counter() if since is None else since
        self.failures: list[Failure] = []
        """Candidates that could not be trained."""
        self.phase = Phase()
        """The phase of the next run, for callbacks."""
        self.learnt: Learnt | None = None
        """Coordinates and curvature of L-BFGS, which a run of one stage starts from and updates."""

    def optimizer(self, recipe: Recipe, posterior: SparsePosterior) -> Literal["lbfgs", "adam"]:
        """Return the optimiser that the recipe chooses for these data."""
        return recipe.chosen_optimizer(len(self.data), posterior.Z.shape[-2])

    def stage(
        self,
        name: str,
        recipe: Recipe,
        model: Model,
        beta: float | Tensor,
        held: bool = False,
        before: Whitened | None = None,
    ) -> StageResult:
        """Minimise the recipe's objective in place; with the hyperparameters held, over q(u) alone.

        With `before`, an earlier q(u) that takes the place of the prior, the posterior holds q(u)
        relative to it. A stage that the checkpoint has as finished is loaded.
        """
        if self._checkpoint is not None:
            finished = self._restored(self._checkpoint, name, model)
            if finished is not None:
                return finished
        try:
            problem = self._problem(recipe, model, beta, held, before)
            result = self._run(name, recipe, problem, held)
        except NumericalError as error:
            # Save the failed stage too: stages are resumed in the order in which they were saved.
            failed = without_steps(name, Status.FAILED, str(error))
            self._save_finished(failed, model)
            raise
        except LostProcessError as error:
            error.add(
                _NO_CHECKPOINT if self._checkpoint is None else self._checkpoint.resume_hint()
            )
            raise
        except KeyboardInterrupt:
            return without_steps(name, Status.INTERRUPTED, "Interrupted before the first step.")
        if not result.ends_training:
            # A stage ended by a budget, a callback or Ctrl-C resumes from its last checkpoint.
            self._save_finished(result, model)
        return result

    def _restored(self, checkpoint: Checkpoint, name: str, model: Model) -> StageResult | None:
        """Return the next stage and set the model, if the checkpoint has the stage as finished."""
        finished = checkpoint.next_finished()
        if finished is None:
            return None
        result, tensors = finished
        if result.stage != name:
            raise CheckpointError(
                f"The checkpoint must have '{name}' for its next stage. Got '{result.stage}'. "
                "Resume with the version that wrote it, or start again."
            )
        with checkpoint.restoring():
            if result.status != Status.FAILED:
                require_like(tensors, self._state(model))
            model.posterior.load_state_dict(under("posterior.", tensors))
            model.likelihood.load_state_dict(under("likelihood.", tensors))
            self._generator.set_state(tensors["generator"])
        if result.status == Status.FAILED:
            raise NumericalError(result.reason)
        return result

    def _save_finished(self, result: StageResult, model: Model) -> None:
        if self._checkpoint is not None:
            self._checkpoint.finish(result, self._state(model))

    def start_roughly(self, model: Model) -> None:
        """Set an untrained q(u) in place to the optimum for rough values of f with Gaussian noise.

        From q(u) = p(u), training of some likelihoods ends in an optimum where everything is noise.
        """
        posterior, likelihood = model
        data = self.data
        in_memory = self._rows is None and self._group is None
        if not (in_memory and has(likelihood, RoughStart)) or bool(posterior.u_mean.any()):
            return
        latent = cast(RoughStart, likelihood).starting_latent(data.y)
        if not float(latent.var(correction=0)) > 0:
            return
        noise = Gaussian(_ROUGH_NOISE * float(latent.var(correction=0))).to(data.X)
        objective = Objective(GibbsLoss(), len(data), 1.0)
        rough_data = Data(data.X, latent, data.weights)
        rough_model = Model(posterior, noise)
        randomness = Randomness(self._generator, False)
        problem = ProfiledProblem(rough_model, rough_data, objective, randomness, "vfe", held=True)
        with torch.no_grad():
            problem.prepare()
            problem.write_q()

    def value(self, recipe: Recipe, model: Model, beta: float) -> float:
        """Return the objective of all examples, as a mean."""
        data = self.data
        posterior, likelihood = model
        objective = Objective(recipe.point_loss(), len(data), beta)
        with torch.no_grad():
            marginals = posterior.predict(data.X)
            kl = posterior.kl()
            losses = objective.point_loss(likelihood, data.y, marginals, generator=self._generator)
            return float(objective.combine(losses, kl, data.weights))

    def result(
        self, recipe: Recipe, model: Model, beta: float, mode: str, stages: tuple[StageResult, ...]
    ) -> TrainingResult:
        """Return the result of stages that were run."""
        seconds = time.perf_counter() - self._since
        return TrainingResult(*model, recipe.name, beta, mode, stages, seconds)

    def _run(self, name: str, recipe: Recipe, problem: ModelProblem, held: bool) -> StageResult:
        optimizer = self.optimizer(recipe, problem.posterior)
        steps = recipe.chosen_max_steps(optimizer, problem.likelihood)
        noisy = not problem.deterministic
        stopping = recipe.chosen_stopping(optimizer, problem.likelihood, noisy, held)
        agree = None if self._group is None else self._group.agree
        run = Run(name, steps, (stopping, *recipe.monitors), self._since, self.phase, agree)
        if not problem.parameters:
            stop = Stop(Status.CONVERGED, "The optimum is a formula.")
        else:
            with problem.threads(), closing(problem.batches):
                by_lbfgs = optimizer == "lbfgs"
                stop = self._lbfgs(problem, run) if by_lbfgs else self._adam(problem, run, recipe)
        if problem.deterministic:
            with torch.no_grad():
                problem.prepare()
                (value,) = problem.average(problem.value(0))
            loss = float(value.mean())
        else:
            loss = run.losses[-1] if run.losses else math.nan
        problem.write_q()
        ends = stop.status in (Status.CANCELLED, Status.INTERRUPTED)
        return StageResult(
            stage=name,
            status=stop.status,
            reason=stop.reason,
            steps=run.steps,
            evaluations=run.evaluations,
            loss=loss,
            losses=tuple(run.losses),
            jitter=problem.jitter,
            at_floor=problem.at_floor(),
            ends_training=ends or (stop.status == Status.BUDGET and not run.exhausted),
        )

    def _problem(
        self,
        recipe: Recipe,
        model: Model,
        beta: float | Tensor,
        held: bool,
        before: Whitened | None,
    ) -> ModelProblem:
        group = self._group
        optimizer = self.optimizer(recipe, model.posterior)
        number = len(self.data) if self._rows is None else self._rows.num_rows
        objective = Objective(recipe.point_loss(), number, beta)
        draws = not objective.point_loss.deterministic
        rank = group.rank if draws and group is not None else None
        randomness = Randomness(self._generator, draws and optimizer == "lbfgs", rank)
        batches = self._batches(recipe, model)
        kind = recipe.eliminated(model.likelihood, beta, optimizer, not batches.whole)
        common = model, self.data, objective, randomness
        if kind is not None:
            return ProfiledProblem(*common, kind, held, before)
        if held:
            return HeldProblem(*common, batches, group, before)
        problem = FreeProblem if recipe.whitened else UnwhitenedProblem
        return problem(*common, batches, group)

    def _batches(self, recipe: Recipe, model: Model) -> Batches:
        data = self.data
        random = self._generator
        rank, number = (0, 1) if self._group is None else (self._group.rank, self._group.size)
        if self._rows is not None:
            seed = int(torch.randint(2**31, (), generator=random, device=random.device))
            stream = self._rows.batches(len(data), seed, (rank, number))
            return StreamBatches(stream, data, model.likelihood)
        size = recipe.chosen_batch_size(len(data), model.posterior.Z.shape[-2])
        batches = Batches(data) if size is None else RandomBatches(data, size, random)
        return batches if number == 1 else DistributedBatches(batches, rank, number)

    def _lbfgs(self, problem: ModelProblem, run: Run) -> Stop:
        checkpoint = self._checkpoint
        if checkpoint is None:
            return lbfgs(problem, run, learnt=self.learnt)

        def tensors() -> Tensors:
            return {name: p.detach() for name, p in problem.parameters.items()}

        interrupted = checkpoint.resume_stage(run)
        if interrupted is not None:
            with torch.no_grad(), checkpoint.restoring():
                require_like(interrupted, tensors())
                for name, parameter in problem.parameters.items():
                    parameter.copy_(interrupted[name])

        def save() -> None:
            checkpoint.save_progress(run, tensors())

        return lbfgs(problem, run, checkpoint.every, save, self.learnt)

    def _adam(self, problem: ModelProblem, run: Run, recipe: Recipe) -> Stop:
        # The paper's rates.
        rate = recipe.learning_rate or (0.1 if problem.batches.whole else 1e-3)
        state = AdamState(problem, rate)
        observer = recipe.observer
        checkpoint = self._checkpoint
        every = None if checkpoint is None else checkpoint.every
        interrupted = None if checkpoint is None else checkpoint.resume_stage(run)
        if checkpoint is not None and interrupted is not None:
            with checkpoint.restoring():
                state.resume(interrupted)
                self._generator.set_state(interrupted["generator"])
                problem.batches.load_state(under("batches.", interrupted))
            problem.randomness.renew(run.steps)

        def observe() -> None:
            if observer is not None and run.steps % observer.every == 0:
                problem.write_q()
                observer.see(run.steps, problem.posterior, problem.likelihood)

        def after_segment() -> None:
            observe()
            if checkpoint is None or run.steps % checkpoint.every != 0:
                return
            tensors = state.to_save()
            tensors["generator"] = self._generator.get_state()
            batches = problem.batches.state()
            tensors |= {f"batches.{name}": value for name, value in batches.items()}
            checkpoint.save_progress(run, tensors)
            problem.randomness.renew(run.steps)

        spans = [span for span in (every, observer and observer.every) if span is not None]
        segment = math.gcd(*spans) if spans else None
        try:
            return adam(run, state, segment, after_segment, observe)
        except LostProcessError as error:
            error.add(f"That was at step {run.steps + 1} of {run.stage}.")
            raise

    def _state(self, model: Model) -> Tensors:
        return model_tensors(model) | {"generator": self._generator.get_state()}


def without_steps(name: str, status: Status, reason: str) -> StageResult:
    """Return the result of a stage that took no step."""
    return StageResult(
        stage=name,
        status=status,
        reason=reason,
        steps=0,
        evaluations=0,
        loss=math.nan,
        losses=(),
        jitter=0.0,
        at_floor=(),
        ends_training=status == Status.INTERRUPTED,
    )


# Runs: one or more stages that give a result.

_SHORT_RUN = {"lbfgs": 50, "adam": 300}
"""Steps of the ELBO run before a joint run."""


def elbo_run(trainer: Trainer, recipe: Recipe, model: Model, near: bool = False) -> TrainingResult:
    """Train for the ELBO until it converges; with `near`, without a warm-up."""
    elbo = as_elbo(recipe)
    model = copy.deepcopy(model)
    trainer.start_roughly(model)
    stages = () if near else warm_up(trainer, elbo, model, 1.0)
    if not any(stage.ends_training for stage in stages):
        stages = (*stages, trainer.stage("elbo", elbo, model, 1.0))
    return trainer.result(elbo, model, 1.0, "elbo", stages)


def short_elbo_run(trainer: Trainer, recipe: Recipe, model: Model) -> TrainingResult:
    """Train for the ELBO for a few steps, to start a joint run from."""
    steps = _SHORT_RUN[trainer.optimizer(as_elbo(recipe), model.posterior)]
    steps = min(steps, recipe.max_steps or steps)
    return elbo_run(trainer, replace(recipe, max_steps=steps), model, near=True)


def joint_run(
    trainer: Trainer, recipe: Recipe, model: Model, beta: float, start: str = "near"
) -> TrainingResult:
    """Train q(u) and hyperparameters: from "near" the optimum, "scratch", or a short "elbo" run."""
    template = model.posterior
    model = copy.deepcopy(model)
    stages: tuple[StageResult, ...] = ()
    if start != "near":
        trainer.start_roughly(model)
    # Skip the ELBO run for many counts or labels: log loss with small β does not leave its long
    # lengthscales, and a warm-up gets further.
    discrete = model.likelihood.task != "regression"
    skipped = discrete and _warm_up_helps(trainer, recipe, model, beta)
    if start == "elbo" and not skipped and recipe.name not in ("elbo", "vfe", "fitc"):
        base = short_elbo_run(trainer, recipe, model)
        if base.ended:
            return base
        model = Model.of(base)
        stages = base.stages
    sees_variance = recipe.point_loss().uses_variance(model.likelihood)
    if not sees_variance:
        model = model._replace(posterior=model.posterior.with_unit_scale())
    if start != "near":
        stages = (*stages, *warm_up(trainer, recipe, model, beta))
    if not any(stage.ends_training for stage in stages):
        stages = (*stages, trainer.stage(recipe.name, recipe, model, beta))
    if not sees_variance:
        model = _with_variances(trainer, recipe, model, beta, template)
    return trainer.result(recipe, model, beta, "joint", stages)


def fixed_run(
    trainer: Trainer,
    recipe: Recipe,
    base: TrainingResult,
    beta: float,
    near: TrainingResult | None = None,
) -> TrainingResult:
    """Train q(u) with the hyperparameters of an ELBO run, from q(u) = p(u) or a near result."""
    if base.ended:
        return base
    model = copy.deepcopy(Model.of(base))
    posterior = model.posterior
    if near is None:
        posterior.reset()
    else:
        # Rescale u_mean: the output scale of the near result may have been calibrated.
        start = near.posterior
        ratio = (start.prior.scale / posterior.prior.scale).detach().sqrt()
        posterior.set_q(ratio.unsqueeze(-1) * start.u_mean.detach(), start.u_chol.detach())
    stage = trainer.stage(recipe.name, recipe, model, beta, held=True)
    stage = replace(stage, at_floor=base.at_floor)
    if not recipe.point_loss().uses_variance(model.likelihood):
        model = _with_variances(trainer, recipe, model, beta, base.posterior)
    return trainer.result(recipe, model, beta, "fixed", (*base.stages, stage))


def as_elbo(recipe: Recipe) -> Recipe:
    """Return the recipe with the ELBO for its objective."""
    return replace(recipe, objective=GibbsLoss(), rule="auto", observer=None)


_WARM_UP_FROM = 1000
"""Rows from which a warm-up by Adam saves time before L-BFGS."""

_SMALL_BETA = 0.5
"""Below it log loss needs more steps of warm-up; above it, and for the ELBO, fewer do."""


def warm_up(trainer: Trainer, recipe: Recipe, model: Model, beta: float) -> tuple[StageResult, ...]:
    """Train by Adam, in place, if this saves time before L-BFGS; end at the best state."""
    if not _warm_up_helps(trainer, recipe, model, beta):
        return ()
    far = beta < _SMALL_BETA and not recipe.point_loss().gibbs
    steps = 100 if far else 50
    rate = 0.1
    if isinstance(model.likelihood, ConjugateLikelihood):
        # Take more and smaller steps: losses with Gaussian noise are steeper.
        steps = 300
        rate = 0.05
    by_adam = replace(
        recipe,
        optimizer="adam",
        # All examples at once, even where "auto" would choose batches.
        batch_size=len(trainer.data),
        learning_rate=rate,
        max_steps=min(steps, recipe.max_steps or steps),
        stopping=LossRange(20, 1e-4),
    )
    name = f"{recipe.name}, warm-up"
    try:
        return (trainer.stage(name, by_adam, model, beta),)
    except NumericalError as error:
        # Continue from the last good state: a line search may descend from there.
        return (without_steps(name, Status.FAILED, str(error)),)


def _warm_up_helps(trainer: Trainer, recipe: Recipe, model: Model, beta: float) -> bool:
    """Return whether L-BFGS trains q(u) and Z next, on many rows, with a deterministic loss."""
    if len(trainer.data) < _WARM_UP_FROM or not model.posterior.Z.requires_grad:
        return False
    loss = recipe.point_loss()
    lbfgs = trainer.optimizer(recipe, model.posterior) == "lbfgs"
    free = recipe.eliminated(model.likelihood, beta, "lbfgs", batches=False) is None
    return lbfgs and free and loss.deterministic and loss.uses_variance(model.likelihood)


def _with_variances(
    trainer: Trainer, recipe: Recipe, model: Model, beta: float, template: SparsePosterior
) -> Model:
    """Return the model with calibrated variances of f and noise, for a loss without them.

    The loss is replaced by ½p·(y − μ)² with the p that gives the same sum; p = 1 for square loss.
    Parameters require a gradient as those of the template do.
    """
    data = trainer.data
    likelihood = model.likelihood
    with torch.no_grad():
        marginals = model.posterior.predict(data.X)
        losses = recipe.point_loss()(likelihood, data.y, marginals)
        square = (data.y - marginals.mean).square()
        if data.weights is not None:
            losses = data.weights * losses
            square = data.weights * square
        total = float(square.sum())
        precision = 2 * float(losses.sum()) / total if total > 0 else 1.0
    y = data.y.to(data.X)
    calibrated = calibrate(model.posterior, data.X, y, beta / precision, data.weights)
    if isinstance(likelihood, ConjugateLikelihood):
        likelihood.set_noise(calibrated.noise)
    for before, after in zip(template.parameters(), calibrated.posterior.parameters(), strict=True):
        after.requires_grad_(before.requires_grad)
    return model._replace(posterior=calibrated.posterior)
