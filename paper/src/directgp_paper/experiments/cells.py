"""Define the cells of the paper's experiments and their outcomes."""

from typing import Any, ClassVar, Literal, NamedTuple, final

from typing_extensions import override

from directgp.datasets import Task
from directgp.experiments import (
    METHODS,
    Cell,
    FailedRecord,
    Frozen,
    Method,
    Outcome,
    Record,
    TrainingOutcome,
)
from directgp.log_expectations import BiasedMonteCarlo, ProductSampling, Rule

SMOOTHING = 1e-4
"""ν of smooth-bMC, as in the authors' code."""

ELBO = METHODS["elbo"]
"""Methods that choose β start from its solution."""

AIRLINE = "airline"
"""The data set without validation rows: β is not chosen there."""

AIRLINE_BETAS = (0.1, 1.0, 10.0)

BETA_METHODS = ("beta-elbo", "log-joint", "log-fixed")
"""Methods that choose β by NLL."""

FITC_OF_ELBO = Method(
    "fitc-of-elbo",
    "FITC, ELBO's hyperparameters",
    "fitc",
    "fixed",
    False,
    "FITC's predictions with the hyperparameters of the ELBO, as in the authors' script.",
    gaussian_only=True,
)

PAPER_METHODS = {**METHODS, FITC_OF_ELBO.name: FITC_OF_ELBO}
"""The methods of the experiments, in table order."""


@final
class RuleFacts(Frozen):
    """A rule by its name and its number of samples."""

    name: Literal["exact", "bmc", "smooth-bmc", "ups", "ups-mixed", "ups-paper"] = "exact"
    """"ups" has the score gradient of the paper, "ups-mixed" ours with control variates, both with
    our sampler; "ups-paper" has sampler and gradient of the paper."""

    samples: int = 0
    """Number of samples; 0 for the exact rule."""

    @property
    def label(self) -> str:
        """Name in figures."""
        if self.name == "exact":
            return "exact"
        called = {"bmc": "bMC", "smooth-bmc": "smooth-bMC", "ups-mixed": "uPS (ours)"}
        sampler = " with the paper's sampler" if self.name == "ups-paper" else ""
        return f"{called.get(self.name, 'uPS')}-{self.samples}{sampler}"

    def rule(self) -> Rule | str:
        """Return the rule as `directgp.train` takes it."""
        match self.name:
            case "exact":
                return "auto"
            case "bmc":
                return BiasedMonteCarlo(self.samples)
            case "smooth-bmc":
                return BiasedMonteCarlo(self.samples, nu=SMOOTHING)
            case "ups":
                return ProductSampling(self.samples, gradient="score")
            case "ups-mixed":
                return ProductSampling(self.samples)
            case "ups-paper":
                return ProductSampling(self.samples, sampler="paper", gradient="score")


EXACT = RuleFacts()


def rules(name: str, *samples: int) -> tuple[RuleFacts, ...]:
    """Return a rule with each number of samples."""
    return tuple(RuleFacts.model_validate({"name": name, "samples": count}) for count in samples)


BMC = rules("bmc", 1, 10, 100)
SMOOTH_BMC = rules("smooth-bmc", 1, 10, 100)
UPS = rules("ups", 1, 10)


ProtocolName = Literal["paper", "best"]
"""The paper's optimiser, rules and grid; or the defaults of directgp."""


@final
class BetaScores(Frozen):
    """The scores of one β; losses of the kind that is optimised, of the normalised target."""

    beta: float
    """Weight of the KL term."""

    validation: float
    """Validation NLL, or MSE for square loss."""

    error: float
    """Standard error of `validation`."""

    test: dict[str, float]
    """Mean test scores by name."""


@final
class FitOutcome(TrainingOutcome):
    """The numbers of a `FitCell`; scores are of the normalised target."""

    kind: Literal["fit"] = "fit"
    """Tag in a file."""

    num_training: int
    """Rows of the training part; a learning curve uses fewer."""

    path: tuple[BetaScores, ...]
    """Scores by falling β; empty where β is not chosen."""

    history: tuple[tuple[int, float], ...]
    """(step, objective) of the chosen run, thinned."""


@final
class CurvePoint(Frozen):
    """Test scores at one step of a learning curve."""

    step: int
    """Steps of Adam before the scoring."""

    epoch: float
    """Passes over the training rows."""

    scores: dict[str, float]
    """Means over the test rows."""

    seconds: float
    """Training time up to this step."""


@final
class CurveOutcome(Outcome):
    """The numbers of a `CurveCell`.

    The array "losses" has the NLL of some test rows at the last points, (points, rows): at all of
    them on airline, which is compared along training, else at the last one.
    """

    kind: Literal["curve"] = "curve"
    """Tag in a file."""

    points: tuple[CurvePoint, ...]
    """Scores along training."""

    num_test: int
    """Rows of the test part."""

    num_training: int = 0
    """Rows of the training part; 0 if not recorded."""

    status: str
    """How the run stopped."""

    reason: str
    """Why the run ended."""

    @property
    @override
    def headline(self) -> dict[str, float]:
        return self.points[-1].scores


@final
class Measured(Frozen):
    """A number and its standard error."""

    value: float
    """Mean over the draws."""

    error: float
    """Standard error of the mean."""


@final
class GradientRow(Frozen):
    """One rule and one block of parameters; the last three in units of ‖g*‖²."""

    rule: RuleFacts
    """The rule that estimates the gradient."""

    block: str
    """"u_mean" or "u_chol"."""

    alignment: Measured
    """Condition (i): ⟨g, g*⟩/‖g*‖²."""

    squared_norm: Measured
    """Condition (ii): ‖g‖²/‖g*‖²."""

    squared_error: Measured
    """Squared error of one draw, which the paper's figure calls bias."""

    variance: Measured
    """Variance of one draw."""

    squared_bias: Measured
    """Squared bias of one draw, without the Monte Carlo floor; it may be negative."""

    seconds: float
    """Processor time of one draw of the marginals' gradients."""


@final
class GradientOutcome(Outcome):
    """The numbers of a `GradientCell`.

    The arrays have alignment, squared_norm and squared_error of each draw under
    ``{statistic}.{rule label}.{block}``, each of shape (draws,).
    """

    kind: Literal["gradients"] = "gradients"
    """Tag in a file."""

    rows: tuple[GradientRow, ...]
    """One row for each rule and block."""

    truth_error: dict[str, float]
    """Squared distance of the paper's truth from the exact gradient, by block, over ‖g*‖²."""


@final
class SamplerPoint(Frozen):
    """Measurements of the samplers at one step of training."""

    step: int
    """Steps of Adam before the measurement."""

    proposals: Measured
    """Mean proposals per draw of the paper's sampler."""

    proposals_narrow: Measured
    """Mean proposals per draw of the paper's sampler with width 1."""

    proposals_ours: Measured
    """Mean proposals per draw of our sampler."""

    expected_proposals: float
    """Mean of p_max / E_q[p]: the expectation for the paper's sampler, whatever its width."""

    one_by_one_seconds: float
    """Time of a draw for every example by the paper's sampler, in a loop."""

    vectorised_seconds: float
    """Time of a draw for every example by the paper's sampler, all at once."""

    bmc_seconds: float
    """Time of a gradient by bMC."""

    paper_ups_seconds: float
    """Time of a gradient by the paper's sampler and score, with as many samples."""

    our_ups_seconds: float
    """Time of a gradient by our sampler with control variates, with as many samples."""

    bmc_error: float
    """Squared error of bMC's gradient of the marginals, over the squared norm of the exact one."""

    paper_ups_error: float
    """Relative squared error of the gradient by the paper's sampler and score."""

    our_ups_error: float
    """Relative squared error of the gradient by our sampler with control variates."""


@final
class SamplerOutcome(Outcome):
    """The numbers of a `SamplerCell`."""

    kind: Literal["samplers"] = "samplers"
    """Tag in a file."""

    samples: int
    """Samples of each gradient."""

    looks: tuple[SamplerPoint, ...]
    """Measurements along training."""


class _PaperCell(Cell):
    """The fields of every cell."""

    dataset: str
    """Name of the data set."""

    data: str
    """Fingerprint of the data set's rows."""

    task: Task
    """Kind of prediction."""

    size: int
    """Training rows."""

    num_inducing: int
    """Inducing inputs."""

    repeat: int
    """Number of the random split."""

    seed: int
    """Seed of the split and of training."""

    group_name: ClassVar[str] = ""

    @property
    @override
    def group(self) -> str:
        return self.group_name

    @property
    @override
    def title(self) -> str:
        return f"{self.dataset}, {self._about}, repeat {self.repeat + 1}"

    @property
    def _about(self) -> str:
        """Description without data set and repeat."""
        return self.group


@final
class FitCell(_PaperCell):
    """A method trained to convergence, with β chosen by validation: fig. 1a to 1e."""

    outcome_type = FitOutcome

    kind: Literal["fit"] = "fit"
    """Tag in a file."""

    method: str
    """A key of `PAPER_METHODS`."""

    betas: tuple[float, ...]
    """Candidates, falling; (1.0,) where β is not chosen."""

    protocol: ProtocolName
    """How the model is trained."""

    rule: RuleFacts = EXACT
    """Rule of the log loss."""

    max_steps: int | None = None
    """Steps of the run of each β; None is the default of the protocol."""

    @property
    @override
    def start(self) -> "FitCell | None":
        """The ELBO of the same split, if the method starts there or fixes its hyperparameters."""
        method = PAPER_METHODS[self.method]
        from_elbo = method.chooses_beta and self.protocol == "best"
        if not from_elbo and method.hyperparameters != "fixed":
            return None
        return self.replace(method=ELBO.name, betas=(1.0,), rule=EXACT)

    @property
    @override
    def group(self) -> str:
        return PAPER_METHODS[self.method].label

    @property
    @override
    def _about(self) -> str:
        return f"{self.size:,} rows, {self.method}"


@final
class CurveCell(_PaperCell):
    """A learning curve of Adam with one β and one rule: fig. 1f and 1i."""

    outcome_type = CurveOutcome
    group_name = "learning curves"

    kind: Literal["curve"] = "curve"
    """Tag in a file."""

    objective: Literal["elbo", "log_loss"]
    """The training objective."""

    hyperparameters: Literal["joint", "fixed"]
    """Whether hyperparameters are trained with q(u), or keep their values from the ELBO."""

    beta: float
    """Weight of the KL term."""

    rule: RuleFacts = EXACT
    """Rule of the log loss."""

    learning_rate: float
    """Step size of Adam."""

    batch_size: int | None
    """Rows of a batch; None for all."""

    steps: int
    """Steps of Adam."""

    every: int
    """Steps between two scorings of the test rows."""

    num_test: int
    """Maximum number of test rows."""

    whitened: bool = True
    """Whether Adam changes q(u) relative to the prior, as we do, or m and V themselves, as the
    authors do for labels and counts."""

    @property
    @override
    def start(self) -> "CurveCell | None":
        """The ELBO with β = 1, whose hyperparameters are kept if they are fixed."""
        if self.hyperparameters == "joint":
            return None
        changes = {"objective": "elbo", "hyperparameters": "joint", "beta": 1.0, "rule": EXACT}
        return self.replace(**changes, whitened=True)

    @property
    def method(self) -> str:
        """Name of the method that trains the curve."""
        if self.objective == "log_loss":
            return f"log-{self.hyperparameters}"
        return "elbo" if self.beta == 1 else "beta-elbo"

    @property
    @override
    def _about(self) -> str:
        if self.objective == "elbo":
            return f"ELBO, β = {self.beta:g}"
        form = "" if self.whitened else ", unwhitened"
        return f"DLM {self.hyperparameters}, β = {self.beta:g}, {self.rule.label}{form}"


@final
class GradientCell(_PaperCell):
    """Draws of gradients right after initialisation, compared with the exact one: fig. 1g, 1h."""

    outcome_type = GradientOutcome
    group_name = "gradients after initialisation"

    kind: Literal["gradients"] = "gradients"
    """Tag in a file."""

    rules: tuple[RuleFacts, ...]
    """Rules that are compared."""

    draws: int
    """Draws of each gradient."""

    beta: float
    """Weight of the KL term."""

    truth_samples: int
    """Samples of the bMC gradient that the paper takes as the truth; ours is exact."""


@final
class SamplerCell(_PaperCell):
    """Proposals and time of product samplers along a training run, the paper's and ours."""

    outcome_type = SamplerOutcome
    group_name = "product samplers along training"

    kind: Literal["samplers"] = "samplers"
    """Tag in a file."""

    looks: tuple[int, ...]
    """Steps of Adam after which the samplers are measured; 0 is the start."""

    samples: int
    """Samples of each gradient."""

    beta: float
    """Weight of the KL term."""

    learning_rate: float
    """Step size of Adam."""

    batch_size: int | None = None
    """Rows of a batch; None for all."""

    examples: int
    """Maximum number of training rows at which the samplers are measured."""


PaperCell = FitCell | CurveCell | GradientCell | SamplerCell
PaperOutcome = FitOutcome | CurveOutcome | GradientOutcome | SamplerOutcome
PaperRecord = Record[PaperCell, PaperOutcome]


class Results(NamedTuple):
    """The results of a sweep, by kind of cell."""

    records: tuple[PaperRecord, ...]
    """Cells that finished, with their outcomes."""

    failed: tuple[FailedRecord[PaperCell], ...] = ()
    """Cells that failed, with the reason."""

    missing: tuple[PaperCell, ...] = ()
    """Cells of the sweep that have not been run."""

    @property
    def cells(self) -> list[PaperCell]:
        """All cells of the sweep."""
        run = [record.cell for record in self.records]
        return [*run, *(failure.cell for failure in self.failed), *self.missing]

    def of(self, kind: type[PaperCell]) -> list[Record[Any, Any]]:
        """Return the records of one kind of cell."""
        return [record for record in self.records if isinstance(record.cell, kind)]
