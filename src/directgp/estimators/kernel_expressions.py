"""Read the parameter `kernel` as an expression, and describe the columns it looks at."""

from collections.abc import Sequence
from dataclasses import replace

from gpytorch.kernels import Kernel

from directgp.estimators.column_kinds import ColumnKinds
from directgp.estimators.preprocessing import Scalings
from directgp.kernels import RBF, ColumnFacts, Expression, Matern12, Matern32, Matern52, parse
from directgp.kernels.parts.stationary import DistancePart
from directgp.registry import KernelName

_NAMED: dict[KernelName, type[DistancePart]] = {
    "rbf": RBF,
    "matern12": Matern12,
    "matern32": Matern32,
    "matern52": Matern52,
}
"""Maps the name of a kernel to its part."""


def is_text(kernel: object) -> bool:
    """Return whether the parameter `kernel` is an expression as text, and not a name."""
    return isinstance(kernel, str) and "(" in kernel


def kernel_of(kernel: str | Kernel | Expression) -> str | Kernel | Expression:
    """Return the parameter `kernel` with text as an expression."""
    return parse(str(kernel)) if is_text(kernel) else kernel


def of_all_columns(name: KernelName, ard: bool) -> Expression:
    """Return the named kernel of all columns, in which levels are one lengthscale apart."""
    return _NAMED[name](ard=ard)


def column_facts(
    names: Sequence[str], kinds: ColumnKinds | None, scalings: Scalings, num_stacked: int = 0
) -> list[ColumnFacts]:
    """Return what each column of the scaled inputs is; the columns of a stack come last."""
    imputation = scalings.imputation
    all_names = [*names] if imputation is None else imputation.names(names)
    columns = []
    for j, name in enumerate(all_names):
        shift, scale = (float(v[j]) for v in (scalings.inputs.shift, scalings.inputs.scale))
        column = ColumnFacts(name, shift=shift, scale=scale)
        if kinds is not None and j < len(kinds.columns):
            own = kinds.columns[j]
            column = replace(column, kind=own.kind, unit=own.unit, num_levels=len(own.levels))
        columns.append(column)
    return columns + [ColumnFacts(f"stack {k}") for k in range(num_stacked)]


def name_of(expression: Expression, num_columns: int) -> str:
    """Return the name of a kernel of all columns, with "ARD", or "" if it is another one."""
    for name, part in _NAMED.items():
        if type(expression) is part and len(expression.columns) == num_columns:
            return f"{name} ARD" if expression.ard and num_columns > 1 else name
    return ""
