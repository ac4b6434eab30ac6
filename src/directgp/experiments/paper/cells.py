"""One cell of the paper's experiments: all that decides one result."""

import hashlib
from typing import Annotated, Any, Literal, TypeVar, final

from pydantic import Field, TypeAdapter

from directgp.datasets.problem import Task
from directgp.experiments.cells import Frozen
from directgp.experiments.methods import METHODS
from directgp.experiments.paper.rules import EXACT, RuleFacts

Protocol = Literal["paper", "best"]
"""The paper's optimiser, rules and grid to the letter; or ours."""

_Self = TypeVar("_Self", bound="_Cell")


class _Cell(Frozen):
    """What every cell says."""

    dataset: str
    """Name in the registry."""

    data: str
    """Fingerprint of the rows."""

    task: Task
    size: int
    """Rows that are trained on."""

    num_inducing: int
    repeat: int
    """Which of the random splits."""

    seed: int

    @property
    def key(self) -> str:
        """sha256 of all of it: equal for equal cells only."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()

    def but(self: _Self, **changes: Any) -> _Self:
        """The same but for some fields."""
        return type(self).model_validate({**dict(self), **changes})


@final
class FitCell(_Cell):
    """A method trained until it has converged, β chosen by validation: fig. 1a to 1e."""

    kind: Literal["fit"] = "fit"
    method: str
    """One of `directgp.experiments.methods.METHODS`."""

    betas: tuple[float, ...]
    """To choose from, falling; β = 1 alone where it is not chosen."""

    protocol: Protocol
    rule: RuleFacts = EXACT
    max_steps: int | None = None
    """Of one run; None is the protocol's own."""

    @property
    def start(self) -> "FitCell | None":
        """The ELBO solution of the same split, where the method begins there or borrows from it."""
        method = METHODS[self.method]
        from_elbo = method.chooses_beta and self.protocol == "best"
        if not from_elbo and method.hyperparameters != "fixed":
            return None
        return self.but(method="elbo", betas=(1.0,), rule=EXACT)

    @property
    def title(self) -> str:
        """In words."""
        return f"{self.dataset}, {self.size:,} rows, {self.method}, repeat {self.repeat + 1}"


@final
class CurveCell(_Cell):
    """Adam with one β and one rule, looked at on the way: learning curves, fig. 1f and 1i."""

    kind: Literal["curve"] = "curve"
    objective: Literal["elbo", "log_loss"]
    hyperparameters: Literal["joint", "fixed"]
    beta: float
    rule: RuleFacts = EXACT
    ard: bool = False
    learning_rate: float
    batch_size: int | None
    """None is all rows."""

    steps: int
    every: int
    """Steps between two looks at the test rows."""

    num_test: int
    """Test rows at most."""

    @property
    def start(self) -> "CurveCell | None":
        """The ELBO solution, β = 1, whose hyperparameters are held."""
        if self.hyperparameters == "joint":
            return None
        return self.but(objective="elbo", hyperparameters="joint", beta=1.0, rule=EXACT)

    @property
    def title(self) -> str:
        """In words."""
        what = "ELBO" if self.objective == "elbo" else f"DLM {self.hyperparameters}"
        how = "" if self.objective == "elbo" else f", {self.rule.label}"
        return f"{self.dataset}, {what}, β = {self.beta:g}{how}, repeat {self.repeat + 1}"


@final
class GradientCell(_Cell):
    """Draws of gradients right after initialisation, compared with the exact one: fig. 1g, 1h."""

    kind: Literal["gradients"] = "gradients"
    rules: tuple[RuleFacts, ...]
    draws: int
    """Of each rule's gradient."""

    beta: float
    truth_samples: int
    """Of the bMC gradient that the paper takes for the truth; the exact one is ours."""

    @property
    def start(self) -> None:
        """None: it begins at the beginning."""
        return None

    @property
    def title(self) -> str:
        """In words."""
        return f"{self.dataset}, gradients after initialisation, repeat {self.repeat + 1}"


@final
class SamplerCell(_Cell):
    """Product sampling along a training: draws rejected, and time, of the paper's and of ours."""

    kind: Literal["samplers"] = "samplers"
    looks: tuple[int, ...]
    """Steps of Adam after which the samplers are looked at; 0 is the start."""

    samples: int
    beta: float
    learning_rate: float

    @property
    def start(self) -> None:
        """None: it begins at the beginning."""
        return None

    @property
    def title(self) -> str:
        """In words."""
        return f"{self.dataset}, product samplers along training, repeat {self.repeat + 1}"


PaperCell = FitCell | CurveCell | GradientCell | SamplerCell

_READER: TypeAdapter[PaperCell] = TypeAdapter(Annotated[PaperCell, Field(discriminator="kind")])


def read_cell(text: str) -> PaperCell:
    """A cell from its JSON."""
    return _READER.validate_json(text)
