"""Less and less memory: each program ends with an answer or one sentence, and nothing half-written.

A trial limits the address space of a program (RLIMIT_AS) to what it had when its imports were done
and a number of MiB more; the ladder goes from 0 to 1,900 MiB.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from campaign.models import corpus
from campaign.trials import HELD, Trial

STEP = 100
"""MiB between two rungs."""

_HANG = 280.0
"""Seconds after which a program counts as one that does not end."""

_PROGRAMS = {
    "fit": "fit {table} --target y --effort fast --max-iter 20 --out {out}/model",
    "compare": "compare {table} --target y --methods elbo,mean --repeats 1 --out {out}/report",
    "predict": "predict {model} {model}.csv --out {out}/predictions.csv",
}

_START = """
import resource, sys
import torch, pyarrow.csv, pyarrow.parquet, sklearn, scipy.optimize
from directgp.cli.main import main
import directgp.estimators
pages = int(open("/proc/self/statm").read().split()[0])
limit = pages * resource.getpagesize() + int(sys.argv.pop(1)) * 2**20
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
main()
"""


def attack(number: int) -> Trial:
    names = list(_PROGRAMS)
    name, rung = names[number % len(names)], number // len(names)
    with tempfile.TemporaryDirectory() as folder:
        table, out = Path(folder, "rows.csv"), Path(folder, "out")
        out.mkdir()
        rows = (f"{i % 97},{i * i % 89},{i % 13 - i % 7}" for i in range(3_000))
        table.write_text("\n".join(["a,b,y", *rows]))
        words = (
            _PROGRAMS[name]
            .format(table=table, out=out, model=corpus()["folder regression"])
            .split()
        )
        try:
            done = subprocess.run(
                [sys.executable, "-c", _START, str(rung * STEP), *words],
                capture_output=True,
                text=True,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                timeout=_HANG,
            )
        except subprocess.TimeoutExpired:
            return Trial(name, "hang", f"+{rung * STEP} MiB")
        drafts = [file.name for file in Path(folder).rglob("*") if ".tmp" in file.name]
        model = out / "model"
        half = model.is_dir() and not (model / "model.safetensors").is_file()
    said = done.stderr.strip().splitlines() or [""]
    facts = {"MiB": rung * STEP, "answered": int(done.returncode == 0)}
    if done.returncode < 0:
        return Trial(
            name, "crash", f"+{rung * STEP} MiB: signal {-done.returncode}: {said[-1]}", facts
        )
    if "Traceback" in done.stderr or "unexpectedly" in done.stderr:
        return Trial(name, "traceback", f"+{rung * STEP} MiB: {said[-1]}", facts)
    if drafts or half:
        return Trial(name, "left behind", f"+{rung * STEP} MiB: {drafts}", facts)
    return Trial(name, HELD, facts=facts)


SUMS = ("answered",)
