"""What the gradients of the rules do, and what the paper's theory asks of them."""

from directgp.diagnostics.attained_bounds import tight_bounds
from directgp.diagnostics.bounds import DerivativeBounds
from directgp.diagnostics.bounds_check import (
    MISPRINTS,
    BoundCheck,
    bounds_table,
    check_bounds,
    format_checks,
)
from directgp.diagnostics.gradient_comparison import compare_gradients, gradient_draws
from directgp.diagnostics.gradient_statistics import (
    EachDraw,
    GradientStatistics,
    Measurement,
    block_statistics,
)
from directgp.diagnostics.published_bounds import paper_bounds
from directgp.diagnostics.sample_sizes import Difficulty, difficulty
from directgp.diagnostics.schedules import (
    SampleSchedule,
    SampleSize,
    SmoothingSchedule,
    bmc_schedule,
    harmonic_step_size,
    smooth_bmc_schedules,
)

__all__ = [
    "MISPRINTS",
    "BoundCheck",
    "DerivativeBounds",
    "Difficulty",
    "EachDraw",
    "GradientStatistics",
    "Measurement",
    "SampleSchedule",
    "SampleSize",
    "SmoothingSchedule",
    "block_statistics",
    "bmc_schedule",
    "bounds_table",
    "check_bounds",
    "compare_gradients",
    "difficulty",
    "format_checks",
    "gradient_draws",
    "harmonic_step_size",
    "paper_bounds",
    "smooth_bmc_schedules",
    "tight_bounds",
]
