"""Coverage-guided inputs for every reader, by atheris in an environment of its own.

``make campaign-fuzz`` makes the environment. Each trial runs one reader in a child, from sound
files, and continues from the inputs that earlier trials found. An input is a file, or for models,
checkpoints and descriptions of tables also a manifest, which gets a right checksum.
"""

import contextlib
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from campaign.trials import FOLDER, HELD, Trial

SUMS = ("inputs", "new coverage")

_PYTHON = os.environ.get("FUZZ_PYTHON", ".venv-fuzz/bin/python")
_INPUTS = int(os.environ.get("FUZZ_INPUTS", "125000"))
"""The Python of the environment, and inputs of a trial."""

_MAX_BYTES = 2**16
_SECONDS_OF_ONE = 20
_MEGABYTES = 3000
"""Limits of one input: its size, its time, and the memory of the process."""


_INSTRUMENTED = [
    *("directgp.files", "directgp.io", "directgp.persistence", "directgp.training.checkpoint"),
    *("directgp.training.result", "directgp.estimators.saving", "directgp.estimators.summary"),
    *("directgp.cli.model_folder", "directgp.datasets", "directgp.experiments.store"),
]
"""Modules whose branches guide the inputs; those of numbers would cost more than they say."""


class Target(NamedTuple):
    """A reader: `make` returns a function of bytes, which raises nothing but directgp's errors."""

    make: Callable[[Path], Callable[[bytes], object]]
    """Returns the reader, given a folder."""

    seeds: Callable[[Path], object]
    """Writes sound inputs to a folder."""


def _file(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


# Models, checkpoints and descriptions of tables


def _as_json(data: bytes) -> Any:
    """Return the document that the bytes are, or None."""
    if not data.startswith(b"{"):
        return None
    with contextlib.suppress(ValueError, RecursionError):
        return json.loads(data)
    return None


def _seed_files(kind: str, folder: Path) -> None:
    from campaign.models import corpus
    from directgp.io import read_file
    from directgp.persistence import MODEL
    from directgp.training.checkpoint import CHECKPOINT

    for name, path in corpus().items():
        if name.startswith(kind):
            shutil.copy(path, folder / name.replace(" ", "-"))
            contents = read_file(MODEL if kind == "model" else CHECKPOINT, path)
            text = json.dumps(contents.manifest)
            (folder / f"{name.replace(' ', '-')}.json").write_text(text)


def _model(place: Path) -> Callable[[bytes], object]:
    import directgp
    from campaign.models import corpus
    from directgp.estimators import saving
    from directgp.io import Contents, read_file
    from directgp.persistence import MODEL, models

    tensors = {}
    for name, path in corpus().items():
        if name.startswith("model"):
            contents = read_file(MODEL, path)
            tensors[contents.manifest["estimator"], json.dumps(contents.manifest["likelihood"])] = (
                contents
            )
    first = next(iter(tensors.values()))

    def read(data: bytes) -> object:
        manifest = _as_json(data)
        if not isinstance(manifest, dict):
            return directgp.load(_file(place, data), device="cpu")
        # Those of the model that the manifest was made from.
        kind = manifest.get("estimator"), json.dumps(manifest.get("likelihood"))
        own = tensors.get(kind, first) if isinstance(kind[0], str) else first
        try:
            state = models._decode(Contents(own.tensors, manifest))
            return saving._loaded(state, "cpu").summary()
        except Exception as error:
            # `load` makes one error of every exception here.
            if isinstance(error, MemoryError | RecursionError):
                raise
            return None

    return read


def _checkpoint(place: Path) -> Callable[[bytes], object]:
    from campaign.models import corpus, train
    from directgp.io import read_file, write_file
    from directgp.training.checkpoint import CHECKPOINT

    runs = {
        name: read_file(CHECKPOINT, corpus()[f"checkpoint {name}"]) for name in ("lbfgs", "adam")
    }

    def read(data: bytes) -> object:
        manifest = _as_json(data)
        if not isinstance(manifest, dict):
            return read_file(CHECKPOINT, _file(place, data))
        name = "adam" if len(data) % 2 else "lbfgs"
        manifest["fingerprint"] = runs[name].manifest["fingerprint"]
        write_file(CHECKPOINT, place, runs[name].tensors, manifest)
        return train(name, place)

    return read


def _seed_cards(folder: Path) -> None:
    from campaign.models import corpus
    from directgp.io import read_file
    from directgp.persistence import MODEL

    for name, path in corpus().items():
        if name.startswith("folder"):
            card = read_file(MODEL, path / "model.safetensors").manifest["table"]
            (folder / f"{name.split()[1]}.json").write_text(json.dumps(card))


def _card(place: Path) -> Callable[[bytes], object]:
    import directgp
    from campaign.models import corpus
    from directgp.cli import model_folder
    from directgp.cli.inspect import _card_sections

    models = [
        directgp.load(path / "model.safetensors", device="cpu")
        for name, path in corpus().items()
        if name.startswith("folder")
    ]

    def read(data: bytes) -> object:
        card = model_folder._read_card(_file(place, data))
        for model in models:
            with contextlib.suppress(ValueError):
                model_folder.check_card(card, model)
                return list(_card_sections(card))
        return None

    return read


# Stores and tables


def _seed_stores(folder: Path) -> None:
    from directgp.experiments.store import Store
    from tests.unit.experiments.cells import finished, small_cell

    with Store(folder / "store") as store:
        store.put(finished(small_cell("vfe"), 0.1, model=b"model"))
        store.fail(small_cell("fitc"), "It failed.")


def _store(place: Path) -> Callable[[bytes], object]:
    from directgp.experiments.store import Store
    from tests.unit.experiments.cells import small_cell

    cells = [small_cell("vfe"), small_cell("fitc")]

    def read(data: bytes) -> object:
        place.with_name(f"{place.name}-journal").unlink(missing_ok=True)
        with Store(_file(place, data), timeout=0.1) as store:
            return store.view(), store.records(cells), store.failures(cells)

    return read


def _seed_tables(suffix: str, folder: Path) -> None:
    import pandas as pd
    import pyarrow.feather

    table = pd.DataFrame(
        {"x": [1.5, 2, None], "day": ["2020-01-31"] * 3, "kind": ["a", "b", "ä"], "n": [1, 2, 3]}
    )
    path = folder / f"table{suffix}"
    if suffix == ".csv":
        table.to_csv(path, index=False)
        (folder / "marks").write_bytes("a;b\n1.000,5;€ 3\n\n2,5;'x\"\n".encode("utf-16"))
    elif suffix == ".xlsx":
        table.to_excel(path, index=False)
    elif suffix == ".parquet":
        table.to_parquet(path)
    else:
        pyarrow.feather.write_feather(table, path, compression="uncompressed")


def _table(suffix: str) -> Callable[[Path], Callable[[bytes], object]]:
    def make(place: Path) -> Callable[[bytes], object]:
        from directgp.datasets import Encoding, read_table

        path = place.with_suffix(suffix)

        def read(data: bytes) -> object:
            table = read_table(_file(path, data))
            return Encoding.learn(table).encode(table)

        return read

    return make


def _of_table(suffix: str) -> Target:
    return Target(_table(suffix), lambda folder: _seed_tables(suffix, folder))


TARGETS: dict[str, Target] = {
    "model": Target(_model, lambda folder: _seed_files("model", folder)),
    "checkpoint": Target(_checkpoint, lambda folder: _seed_files("checkpoint", folder)),
    "card": Target(_card, _seed_cards),
    "store": Target(_store, _seed_stores),
    "arrow": _of_table(".feather"),
    "parquet": _of_table(".parquet"),
    "csv": _of_table(".csv"),
    "xlsx": _of_table(".xlsx"),
}


# The child


def _mutate(atheris: Any) -> Callable[[bytes, int, int], bytes]:
    """Return a mutator that changes entries of JSON documents, and bytes of others."""
    from campaign.models import forge_entry

    def mutate(data: bytes, max_size: int, seed: int) -> bytes:
        dice, document = random.Random(seed), _as_json(data)
        if isinstance(document, dict) and document and dice.random() < 0.7:
            forge_entry(document, {}, dice)
            with contextlib.suppress(UnicodeEncodeError):
                changed = json.dumps(document).encode()
                if len(changed) <= max_size:
                    return changed
        mutated: bytes = atheris.Mutate(data, max_size)
        return mutated

    return mutate


def fuzz(name: str, arguments: list[str]) -> None:
    """Run a reader on inputs until the number of them is reached, or one raises an exception."""

    atheris: Any = import_module("atheris")
    with atheris.instrument_imports(include=_INSTRUMENTED):
        for module in ("directgp", "directgp.cli.model_folder", "directgp.experiments.store"):
            import_module(module)
        from directgp.errors import DirectGPError

        place = Path(tempfile.mkdtemp(dir="/dev/shm")) / "input"  # a disk in memory
        read = TARGETS[name].make(place)

    failed = Path(arguments[-2]).with_name("failed")

    def one(data: bytes) -> None:
        with contextlib.suppress(DirectGPError), open(os.devnull, "w") as nowhere:
            with contextlib.redirect_stdout(nowhere):
                try:
                    read(data)
                except Exception as error:
                    if not isinstance(error, DirectGPError):
                        failed.write_bytes(data)
                    raise

    import warnings

    warnings.simplefilter("ignore")
    atheris.Setup([sys.argv[0], *arguments], one, custom_mutator=_mutate(atheris))
    try:
        atheris.Fuzz()
    finally:
        shutil.rmtree(place.parent, ignore_errors=True)


# Trials


def attack(number: int) -> Trial:
    """Run a reader on inputs that its earlier ones lead to."""
    name = list(TARGETS)[number % len(TARGETS)]
    if not Path(_PYTHON).exists():
        return Trial(name, "not run", f"there is no {_PYTHON}: make campaign-fuzz")
    home = FOLDER / "fuzz" / name
    seeds = home / "seeds"
    corpus = home / "found"
    corpus.mkdir(parents=True, exist_ok=True)
    if not seeds.exists():
        seeds.mkdir()
        TARGETS[name].seeds(seeds)
    limits = [f"-max_len={_MAX_BYTES}", f"-timeout={_SECONDS_OF_ONE}"]
    limits += [f"-rss_limit_mb={_MEGABYTES}", f"-artifact_prefix={home}/", "-print_final_stats=1"]
    words = [f"-runs={_INPUTS}", f"-seed={number + 1}", *limits, str(corpus), str(seeds)]
    done = subprocess.run(
        [_PYTHON, "-m", "campaign.fuzz", name, *words],
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    said = done.stdout + done.stderr
    cover = [int(count) for count in re.findall(r"cov: (\d+)", said)]
    inputs = re.findall(r"#(\d+)\s", said)
    facts = {
        "inputs": int(inputs[-1]) if inputs else 0,
        "new coverage": max(cover) - min(cover) if cover else 0,
    }
    if done.returncode == 0:
        return Trial(name, HELD, "", facts)
    for word, outcome in (("ALARM: working on", "hang"), ("Uncaught Python", "traceback")):
        if word in said:
            lines = said[said.index(word) :].splitlines()
            at = [line for line in lines if re.match(r"\s*File|[\w.]*(Error|Invalid)", line)]
            seen = " | ".join([*at[-4:], str(home / "failed")])
            return Trial(name, outcome, seen[:600], facts)
    return Trial(name, "crash", f"exit {done.returncode}: {said[-400:]}", facts)


if __name__ == "__main__":
    fuzz(sys.argv[1], sys.argv[2:])
