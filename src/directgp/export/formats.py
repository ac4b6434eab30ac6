"""Write a fitted estimator as an ONNX model, a `torch.export` program, or files for NumPy."""

import io
import json
import os
from collections.abc import Callable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, final

import numpy as np
import torch
from torch import Tensor, nn

from directgp.errors import require, require_extra
from directgp.export.predictions import program_of
from directgp.export.program import Program, run
from directgp.files import make_folder, replace_file

if TYPE_CHECKING:
    from torch.export import ExportedProgram

LEVELS = (0.05, 0.5, 0.95)
"""Levels of the exported quantiles."""

_FORMAT = 1
"""Version of the NumPy files."""

_OPSET = 17
"""Operators of ONNX 1.12, which runtimes of the last years read."""

_IR_VERSION = 8
"""File format of ONNX 1.12."""


_INPUTS = {"ReduceSum": ("axes",), "Reshape": ("shape",)}
"""Attributes of operations that are inputs in ONNX."""


def to_numpy(
    model: Any,
    folder: str | os.PathLike[str],
    *,
    levels: Sequence[float] = LEVELS,
    row_value: float | None = None,
) -> Path:
    """Write `model.npz` and `predictor.py` to a folder, and return the path of the first.

    `predictor.py` needs NumPy alone: ``from predictor import load``, then
    ``load("model.npz").predict(X)`` returns a dictionary of arrays. For real numbers and counts
    these are "mean", "std" and "quantiles", as `predict_frame` returns them; for labels
    "probabilities", in the order of the classes.

    Parameters
    ----------
    model : estimator
        A fitted estimator with a kernel "rbf" or "matern…", or an expression. Its columns are
        numbers: dates, categories and groups have to be encoded before the fit. A model with a
        part `Linear` needs Gaussian noise.
    folder : path
        Created if it is missing; the two files are replaced.
    levels : sequence of float
        Levels of the quantiles; () for none.
    row_value : float
        The exposure, trials or noise of every row, for a likelihood that needs one.
    """
    contents = numpy_files(program_of(model, levels, row_value))
    where = Path(folder)
    make_folder(where)
    for name, data in contents.items():
        replace_file(where / name, data)
    return where / "model.npz"


def to_onnx(
    model: Any,
    path: str | os.PathLike[str],
    *,
    levels: Sequence[float] = LEVELS,
    row_value: float | None = None,
    dtype: Literal["float64", "float32"] = "float64",
) -> None:
    """Write an ONNX model with the input "X" and the outputs of `to_numpy`.

    Parameters
    ----------
    model, levels, row_value
        As in `to_numpy`.
    path : path
        The file, which is replaced.
    dtype : {"float64", "float32"}
        Type of X and of the outputs. The program inside is in float64: a covariance matrix has no
        digits to spare.
    """
    require(dtype in ("float64", "float32"), "dtype of to_onnx", "'float64' or 'float32'", dtype)
    require_extra("directgp.export.to_onnx", "export", "onnx")
    replace_file(Path(path), onnx_model(program_of(model, levels, row_value), dtype))


def to_torch(
    model: Any,
    *,
    levels: Sequence[float] = LEVELS,
    row_value: float | None = None,
) -> "ExportedProgram":
    """Return a `torch.export` program from X in float64 to a dictionary, as in `to_numpy`.

    `torch.export.save` writes it; ``program.module()(X)`` runs it, for any number of rows.

    Parameters
    ----------
    model, levels, row_value
        As in `to_numpy`.
    """
    return torch_program(program_of(model, levels, row_value))


def torch_program(program: Program) -> "ExportedProgram":
    """Return a program as one of `torch.export`."""
    X = torch.zeros(3, program.facts["num_features"], dtype=torch.float64)
    rows = torch.export.Dim("rows", min=1)
    return torch.export.export(_Module(program), (X,), dynamic_shapes={"X": {0: rows}})


def numpy_files(program: Program) -> dict[str, bytes]:
    """Return a program and its reader as files, by name."""
    nodes = [[node.op, node.inputs, node.output, dict(node.attributes)] for node in program.nodes]
    text = json.dumps(
        {"format": _FORMAT, "nodes": nodes, "outputs": program.outputs, "facts": program.facts}
    )
    arrays: dict[str, Any] = {str(number): value for number, value in program.constants.items()}
    buffer = io.BytesIO()
    np.savez_compressed(buffer, program=np.frombuffer(text.encode(), np.uint8), **arrays)
    reader = files("directgp.export").joinpath("numpy_predictor.py").read_bytes()
    return {"predictor.py": reader, "model.npz": buffer.getvalue()}


def onnx_model(program: Program, dtype: Literal["float64", "float32"]) -> bytes:
    """Return a program as an ONNX model, checked by onnx."""
    import onnx
    from onnx import helper

    outer = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    nodes = [helper.make_node("Cast", ["X"], ["0"], to=onnx.TensorProto.DOUBLE)]
    constants = {str(number): value for number, value in program.constants.items()}
    for node in program.nodes:
        attributes = dict(node.attributes)
        inputs = [str(number) for number in node.inputs]
        if "to" in attributes:
            attributes["to"] = helper.np_dtype_to_tensor_dtype(np.dtype(attributes["to"]))
        for name in _INPUTS.get(node.op, ()):
            numbers = attributes.pop(name)
            constants[f"{name}{numbers}"] = np.array(numbers, dtype=np.int64)
            inputs.append(f"{name}{numbers}")
        nodes.append(helper.make_node(node.op, inputs, [str(node.output)], **attributes))
    nodes += [
        helper.make_node("Cast", [str(number)], [name], to=outer)
        for name, number in program.outputs.items()
    ]
    tensors = [onnx.numpy_helper.from_array(value, name) for name, value in constants.items()]
    X = helper.make_tensor_value_info("X", outer, ["n", program.facts["num_features"]])
    outputs = [
        helper.make_tensor_value_info(name, outer, shape)
        for name, shape in _shapes(program).items()
    ]
    model = helper.make_model(
        helper.make_graph(nodes, "directgp", [X], outputs, tensors),
        opset_imports=[helper.make_opsetid("", _OPSET)],
        ir_version=_IR_VERSION,
        producer_name="directgp",
    )
    facts = {name: json.dumps(value) for name, value in program.facts.items()}
    helper.set_model_props(model, facts)
    onnx.checker.check_model(model, full_check=True)
    data: bytes = model.SerializeToString()
    return data


def _shapes(program: Program) -> dict[str, list[str | int]]:
    """Return the shape of each output, with n rows."""
    d = program.facts["num_features"]
    outputs = run(program, np.zeros((2, d)))
    return {name: ["n", *value.shape[1:]] for name, value in outputs.items()}


_TORCH: dict[str, Callable[..., Tensor]] = {
    "Add": torch.add,
    "Sub": torch.sub,
    "Mul": torch.mul,
    "Div": torch.div,
    "Max": torch.maximum,
    "Min": torch.minimum,
    "MatMul": torch.matmul,
    "Less": torch.lt,
    "Equal": torch.eq,
    "Where": torch.where,
    "Exp": torch.exp,
    "Log": torch.log,
    "Sin": torch.sin,
    "Sqrt": torch.sqrt,
    "Floor": torch.floor,
    "Round": torch.round,
    "IsNaN": torch.isnan,
    "Cast": lambda x, to: x.to(getattr(torch, to)),
    "Concat": lambda *parts, axis: torch.cat(parts, axis),
    "Gather": lambda x, index, axis: torch.index_select(x, axis, index),
    "GatherElements": lambda x, index, axis: torch.gather(x, axis, index),
    "ReduceMax": lambda x, axes: torch.amax(x, axes, keepdim=True),
    "ReduceSum": lambda x, axes: torch.sum(x, axes, keepdim=True),
    "Reshape": lambda x, shape: x.reshape(shape),
}


@final
class _Module(nn.Module):
    """Run a program by operations of torch."""

    def __init__(self, program: Program) -> None:
        super().__init__()
        self.program = program
        for number, value in program.constants.items():
            self.register_buffer(f"c{number}", torch.from_numpy(np.array(value)))

    def forward(self, X: Tensor) -> dict[str, Tensor]:
        """Return the outputs by name."""
        values = {0: X} | {number: getattr(self, f"c{number}") for number in self.program.constants}
        for op, inputs, output, attributes in self.program.nodes:
            values[output] = _TORCH[op](*(values[number] for number in inputs), **attributes)
        return {name: values[number] for name, number in self.program.outputs.items()}
