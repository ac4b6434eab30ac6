"""Measure gradient estimates of the rules; compute the bounds and schedules of the paper."""

from directgp.diagnostics.bounds import (
    MISPRINTS,
    BoundCheck,
    DerivativeBounds,
    bounds_table,
    check_bounds,
    format_checks,
    paper_bounds,
    tight_bounds,
)
from directgp.diagnostics.gradients import (
    EachDraw,
    GradientStatistics,
    Measurement,
    block_statistics,
    compare_gradients,
    gradient_draws,
)
from directgp.diagnostics.schedules import (
    Difficulty,
    SampleSchedule,
    SampleSize,
    SmoothingSchedule,
    bmc_schedule,
    difficulty,
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
