"""Convert kernels that are expressions to specs."""

from collections.abc import Mapping

import torch
from torch import Tensor

from directgp.errors import ModelFileError
from directgp.kernels import Categorical, ColumnFacts, Expression, parse
from directgp.kernels.structured import StructuredKernel
from directgp.persistence.schema import ExpressionSpec

# Tensors give the sizes, and the text gives everything else. The kernel of a spec is made from
# inputs of zeros, as any other kernel is made from training inputs: so its tensors have the names
# and the shapes that the text implies.


def expression_spec(kernel: StructuredKernel) -> ExpressionSpec:
    """Return the spec of a kernel."""
    return ExpressionSpec(expression=repr(kernel.expression), coded=list(kernel.coded))


def build_structured(
    spec: ExpressionSpec, tensors: Mapping[str, Tensor], num_features: int
) -> StructuredKernel:
    """Return the kernel of a spec, without its state."""
    expression = parse(spec.expression)
    if any(position >= num_features for position in spec.coded):
        raise ModelFileError(f"codes of a kernel are not among {num_features} features")
    columns = [
        # A period as text is a number of days, whatever the column.
        ColumnFacts(f"x{j}", kind="category" if j in spec.coded else "number", unit="days")
        for j in range(num_features)
    ]
    zeros = torch.zeros(2, num_features, dtype=torch.float64)
    kernel = StructuredKernel.from_data(
        expression, zeros, _with_levels(columns, expression, tensors)
    )
    if repr(kernel.expression) != spec.expression or list(kernel.coded) != spec.coded:
        raise ModelFileError("a kernel does not have the positions of its columns")
    return kernel


def _with_levels(
    columns: list[ColumnFacts], expression: Expression, tensors: Mapping[str, Tensor]
) -> list[ColumnFacts]:
    """Return the columns with the number of levels that have a vector."""
    columns = [*columns]
    for index, part in enumerate(expression.leaves()):
        vectors = tensors.get(f"raw_{index}_vectors")
        if isinstance(part, Categorical) and part.rank is not None and vectors is not None:
            (position,) = part.columns
            if isinstance(position, int) and 0 <= position < len(columns):
                column = columns[position]
                number = vectors.numel() // part.rank
                columns[position] = ColumnFacts(
                    column.name, column.kind, unit=column.unit, num_levels=number
                )
    return columns
