"""The options --columns and --kernel: kinds of columns, levels, dates and places."""

import datetime as dt
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest

from directgp.cli.model_folder import load_folder
from tests.cli.running import run, write_csv, write_parquet

QUICK = (
    *("--objective", "elbo", "--beta", "1", "--likelihood", "gaussian", "--stack", "none"),
    *("--max-iter", "2", "--inducing", "5", "--quiet"),
)
"""Options of a short fit with one candidate if a kernel is given."""

ROWS = 40


def visits() -> pa.Table:
    """Return visits of patients on dates at places, with a target that depends on the patient."""
    random = np.random.default_rng(0)
    patient = random.integers(0, 8, ROWS)
    x = random.normal(size=ROWS)
    return pa.table(
        {
            "date": [str(dt.date(2020, 1, 1) + dt.timedelta(7 * i)) for i in range(ROWS)],
            "patient": [f"P{p}" for p in patient],
            "shop": 100 + patient,
            "lat": random.uniform(40, 50, ROWS).round(2),
            "lon": random.uniform(5, 15, ROWS).round(2),
            "x": x,
            "y": patient + x,
        }
    )


def fit(*words: object, data: str = "visits.csv") -> None:
    answer = run("fit", data, "--target", "y", *QUICK, *words, "--out", "model")
    assert answer.code == 0, answer.err


def refusal(*words: object) -> str:
    answer = run("fit", "visits.csv", "--target", "y", *words, "--out", "model", *QUICK)
    assert answer.code != 0
    assert not Path("model").exists()
    return answer.err.strip()


def kinds() -> dict[str, str]:
    """Return the kinds of the columns of the model."""
    columns = load_folder(Path("model"), "cpu")[0].columns_
    return {} if columns is None else {column.name: column.kind for column in columns.columns}


def predicted(rows: dict[str, list[object]], *words: object) -> pa.Table:
    """Return predictions of rows, of which columns that are not given have the first values."""
    count = len(next(iter(rows.values())))
    first = visits().slice(0, 1).to_pylist()[0]
    table = {name: rows.get(name, [value] * count) for name, value in first.items() if name != "y"}
    write_csv(pa.table(table), Path("new.csv"))
    answer = run("predict", "model", "new.csv", "--out", "p.csv", *words, "--quiet")
    assert answer.code == 0, answer.err
    return pa.csv.read_csv("p.csv", convert_options=pa.csv.ConvertOptions(strings_can_be_null=True))


@pytest.fixture
def table(here: Path) -> pa.Table:
    write_csv(visits(), here / "visits.csv")
    return visits()


@pytest.mark.usefixtures("table")
class TestKinds:
    def test_every_kind_reaches_the_estimator(self) -> None:
        all_kinds = "date=time,patient=group,lat=place,lon=place"
        fit("--columns", all_kinds, "--columns", "shop=category", "--kernel", "rbf", "--ard")
        model, card = load_folder(Path("model"), "cpu")
        assert kinds() == {
            "date": "time",
            "patient": "group",
            "shop": "category",
            "lat": "place",
            "lon": "place",
            "x": "number",
        }
        columns = {column.name: column for column in model.columns_.columns}
        assert columns["date"].unit == "days"
        assert columns["patient"].levels == tuple(f"P{k}" for k in range(8))
        assert columns["shop"].levels == tuple(range(100, 108))
        assert (columns["lat"].unit, columns["lon"].unit) == ("degrees north", "degrees east")
        assert card.format == 2

    def test_without_the_option_everything_stays(self) -> None:
        fit("--dates", "days", "--kernel", "rbf", "--ard")
        _, card = load_folder(Path("model"), "cpu")
        assert kinds() == {}
        assert card.format == 1
        assert "patient=P1" in card.encoding.feature_names

    def test_the_order_of_a_place_is_by_name(self) -> None:
        fit("--drop", "date", "--columns", "lon=place,lat=place", "--kernel", "rbf", "--ard")
        model, _ = load_folder(Path("model"), "cpu")
        units = {column.name: column.unit for column in model.columns_.columns}
        assert (units["lat"], units["lon"]) == ("degrees north", "degrees east")

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            (
                "date=tme",
                "The kind of 'date' in --columns must be number, time, category, group or place."
                " Got 'tme'. Did you mean 'time'?",
            ),
            (
                "dat=time",
                "--columns must name columns of the table. Got 'dat'. Did you mean 'date' or"
                " 'lat'?",
            ),
            (
                "date",
                "--columns must have pairs such as date=time. Got 'date'. Give a name with commas"
                " by a --columns of its own.",
            ),
            (
                "shop=group,shop=time",
                "--columns must give one kind to each column. Got group and time for 'shop'. Leave"
                " one out.",
            ),
            (
                "lat=place",
                "--columns must be of two columns that are a place, the latitude and the longitude,"
                " or of none. Got 1.",
            ),
            (
                "date=time,patient=number",
                "Column 'patient' of --columns has no numbers, but values such as 'P6': use another"
                " kind in --columns or --drop patient.",
            ),
            (
                "date=time,shop=place,x=place",
                "Column 'shop' of --columns must be latitudes from −90 to 90 degrees. Got 106 in"
                " row 1. Correct it, or use --columns without a place.",
            ),
            ("y=number", "must be a column to predict from, with a name. Got 'y'."),
        ],
    )
    def test_wrong_kinds(self, words: str, message: str) -> None:
        assert message in refusal("--columns", words)

    def test_a_column_is_not_both_levels_and_0_and_1(self) -> None:
        err = refusal("--columns", "patient=group", "--categories", "patient")
        assert "must be left out of --categories" in err


class TestNames:
    def test_names_with_commas_and_equals_signs(self, here: Path) -> None:
        names = ["when, where", "who=which", "shop", "lat", "lon", "x", "y"]
        write_csv(visits().rename_columns(names), here / "visits.csv")
        options = ("--columns", "when, where=time", "--columns", "who=which=group")
        fit(*options, "--columns", "shop=group , x=number", "--kernel", "rbf", "--ard")
        assert [*kinds().values()][:3] == ["time", "group", "group"]


@pytest.mark.usefixtures("table")
class TestKernels:
    def test_an_expression_names_columns(self) -> None:
        text = 'Matern52("x") + Group("patient") + Periodic("date", period="1y")'
        fit("--kernel", text)
        # Text in a Group is a group, and a year is one of dates, without --columns.
        assert kinds()["patient"] == "group"
        assert kinds()["date"] == "time"
        assert kinds()["shop"] == "number"
        assert predicted({"x": [0.0]})["mean"].to_pylist()[0] is not None

    def test_a_number_in_a_group_alone_has_levels(self) -> None:
        fit("--drop", "date", "--kernel", "Matern52('x') + Group('shop') + RBF('lat') * Group('x')")
        assert kinds()["shop"] == "group"
        assert kinds()["x"] == "number"

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            ("RBF('z')", "--kernel: columns of RBF must be columns to predict from. Got 'z'."),
            ("RBF('y')", "--kernel: columns of RBF must be columns to predict from. Got 'y'."),
            ("RBF('x'", "--kernel must be a sum or product of parts such as"),
            ("Sphere('lat')", "--kernel: columns of Sphere must be 2 in number. Got 1."),
            (
                "RBF('patient') + Linear('x')",
                "--kernel: columns of RBF must be features. Got 'patient', which is encoded as"
                " columns of 0 and 1: 'patient=P",
            ),
            (
                "Periodic('x', period='1y')",
                "--kernel: period of Periodic('x') must be a number for a column that is not of"
                " dates. Got '1y'.",
            ),
            (
                "Linear('patient') + Group('patient')",
                "--kernel: columns of Linear must be features. Got 'patient'",
            ),
            ("rfb", "Got 'rfb'. Did you mean 'rbf'?"),
        ],
    )
    def test_wrong_kernels(self, words: str, message: str) -> None:
        assert message in refusal("--kernel", words, "--columns", "date=time")

    def test_levels_need_a_part_of_levels(self) -> None:
        err = refusal("--kernel", "Linear('patient')", "--columns", "date=time,patient=group")
        assert "--kernel: columns of Linear must be numbers. Got 'patient', a group." in err


@pytest.mark.usefixtures("table")
class TestPredictions:
    def test_unseen_levels_are_predicted_with_a_note(self) -> None:
        fit("--drop", "date", "--columns", "patient=group,shop=category", "--kernel", "rbf")
        table = predicted({"patient": ["P1", " P2 ", "Q7"], "shop": ["101", "new", "101"]})
        assert table["mean"].null_count == 0
        assert table["reason"].to_pylist() == [
            None,
            "shop is 'new', not seen in training (predicted as a new level)",
            "patient is 'Q7', not seen in training (predicted as a new level)",
        ]

    def test_levels_are_known_by_value(self, here: Path) -> None:
        """In another order, of a column of text with the same values, and of another format."""
        fit("--drop", "date", "--columns", "patient=group,shop=group", "--kernel", "rbf")
        write_csv(visits().drop_columns("y"), here / "own.csv")
        turned = visits().drop_columns("y").take(pa.array(range(ROWS)[::-1]))
        shop = pa.array([str(value) for value in turned["shop"].to_pylist()])
        patient = turned["patient"].dictionary_encode()
        turned = turned.set_column(2, "shop", shop).set_column(1, "patient", patient)
        write_parquet(turned, here / "turned.parquet")
        for name in ("own.csv", "turned.parquet"):
            answer = run("predict", "model", name, "--out", f"{name}.csv", "--quiet")
            assert answer.code == 0
        own, other = (pa.csv.read_csv(f"{name}.csv") for name in ("own.csv", "turned.parquet"))
        assert own["mean"].to_pylist() == other["mean"].to_pylist()[::-1]
        assert other["reason"].null_count == ROWS

    def test_a_wrong_angle_is_one_row_without_a_prediction(self) -> None:
        fit("--drop", "date", "--columns", "lat=place,lon=place", "--kernel", "rbf")
        table = predicted({"lat": [45.0, 95.0, 45.0], "lon": [10.0, 10.0, -361.0]})
        assert [mean is None for mean in table["mean"].to_pylist()] == [False, True, True]
        assert table["reason"].to_pylist()[1:] == [
            "lat is 95, not a latitude from −90 to 90 degrees",
            "lon is −361, not a longitude from −360 to 360 degrees",
        ]

    def test_columns_named_lat_and_lon_are_numbers_without_the_option(self) -> None:
        fit("--drop", "date", "--kernel", "rbf")
        assert kinds() == {}
        assert predicted({"lat": [95.0]})["reason"].to_pylist() == [None]

    def test_dates_of_another_form_are_no_dates(self) -> None:
        fit("--columns", "date=time", "--kernel", "rbf")
        table = predicted({"date": ["2021-01-01", "soon", "2021-01-01 10:30"]})
        assert [mean is None for mean in table["mean"].to_pylist()] == [False, True, False]

    def test_a_new_process_without_pandas(self) -> None:
        fit("--columns", "date=time", "--kernel", 'RBF("x","date") + Group("patient")')
        table = predicted({"x": [0.5, 1.0], "patient": ["P1", "Q"]})
        code = (
            "import builtins, sys\n"
            "load = builtins.__import__\n"
            "def without(name, *more, **rest):\n"
            "    if name.partition('.')[0] == 'pandas':\n"
            "        raise ModuleNotFoundError(name, name=name)\n"
            "    return load(name, *more, **rest)\n"
            "builtins.__import__ = without\n"
            "from directgp.cli.main import main\n"
            "main()\n"
        )
        words = ("predict", "model", "new.csv", "--out", "q.csv", "--quiet")
        subprocess.run([sys.executable, "-c", code, *words], check=True)
        assert pa.csv.read_csv("q.csv")["mean"] == table["mean"]


class TestMissing:
    def holed(self, here: Path) -> None:
        table = visits().drop_columns("date")
        for name in ("patient", "shop"):
            values = pa.array(table[name].to_pylist(), mask=np.arange(ROWS) % 9 == 4)
            table = table.set_column(table.column_names.index(name), name, values)
        write_csv(table, here / "visits.csv")

    def test_it_is_an_error_by_default(self, here: Path) -> None:
        self.holed(here)
        err = refusal("--columns", "patient=group,shop=group")
        assert "Values are missing in 'patient' (4) and 'shop' (4)" in err

    @pytest.mark.parametrize("policy", ["level", "impute"])
    def test_it_is_a_level(self, here: Path, policy: str) -> None:
        self.holed(here)
        kinds = ("--columns", "patient=group,shop=group", "--missing", policy)
        fit(*kinds, "--kernel", "rbf", "--max-iter", "20", "--inducing", "30")
        model, _ = load_folder(Path("model"), "cpu")
        assert model.num_rows_ == ROWS
        for column in model.columns_.columns[:2]:
            assert column.levels[-1] is None
        table = predicted({"patient": ["", "P1"], "shop": [101, 101]})
        assert table["reason"].null_count == 2
        assert table["mean"].to_pylist()[0] != table["mean"].to_pylist()[1]
        assert "(missing)" in run("inspect", "model").out

    def test_rows_are_left_out(self, here: Path) -> None:
        self.holed(here)
        fit("--columns", "patient=group,shop=group", "--missing", "drop", "--kernel", "rbf")
        assert load_folder(Path("model"), "cpu")[0].num_rows_ == 36
        assert "patient is missing" in predicted({"patient": ["", "P1"]})["reason"].to_pylist()[0]

    def test_a_first_gap_is_a_new_level(self, here: Path) -> None:
        write_csv(visits(), here / "visits.csv")
        fit("--drop", "date", "--columns", "patient=group", "--missing", "level", "--kernel", "rbf")
        reason = "patient is missing (predicted as a new level)"
        table = predicted({"patient": ["", "Q"]})
        assert table["reason"].to_pylist()[0] == reason
        assert table["mean"].to_pylist()[0] == table["mean"].to_pylist()[1]


def test_any_number_of_levels(here: Path) -> None:
    """Identifiers that are different in every row, of which 0/1 columns are refused."""
    codes = [f"{7 * k:03d}" for k in range(ROWS - 1)] + ["x"]
    write_csv(visits().drop_columns("date").append_column("code", [codes]), here / "visits.csv")
    fit("--columns", "code=group", "--kernel", "rbf")
    model, _ = load_folder(Path("model"), "cpu")
    assert model.columns_.columns[-1].levels == tuple(sorted(codes))


def test_the_order_of_day_and_month_is_asked(here: Path) -> None:
    table = visits()
    dates = [f"{1 + k % 9}/{1 + k % 7}/2020" for k in range(ROWS)]
    write_csv(table.set_column(0, "date", [dates]), here / "visits.csv")
    err = refusal("--columns", "date=time")
    assert "Column 'date' has dates such as '1/1/2020', whose day or month may be first" in err
    fit("--columns", "date=time", "--dates", "dmy", "--kernel", "rbf")
    assert kinds()["date"] == "time"


def test_times_that_are_numbers_stay_numbers(here: Path) -> None:
    table = visits()
    write_csv(table.set_column(0, "date", [[1980 + k for k in range(ROWS)]]), here / "visits.csv")
    fit("--columns", "date=time", "--kernel", "rbf")
    column = load_folder(Path("model"), "cpu")[0].columns_.columns[0]
    assert (column.kind, column.unit) == ("time", "")


def test_numbers_by_force(here: Path) -> None:
    """Few different codes as text are categories, unless they are to be numbers."""
    codes = pa.array([str(k % 3) for k in range(ROWS)])
    write_parquet(visits().set_column(0, "date", codes), here / "visits.parquet")
    fit("--columns", "date=number", "--kernel", "rbf", data="visits.parquet")
    assert "date" in load_folder(Path("model"), "cpu")[1].encoding.feature_names


def test_what_inspect_says(here: Path) -> None:
    write_csv(visits(), here / "visits.csv")
    fit("--columns", "date=time,patient=group,lat=place,lon=place", "--kernel", "rbf")
    lines = run("inspect", "model").out.splitlines()
    assert lines[lines.index("Columns") + 1 :] == [
        "  - shop, x: numbers",
        "  - date: times",
        "  - lat, lon: a place",
        "  - patient: a group of levels, P0, P1, P2, P3, P4, P5, P6, P7",
    ]
    card = json.loads(run("inspect", "model", "--json").out)
    assert card["encoding"]["columns"][1]["levels"] == [f"P{k}" for k in range(8)]


@pytest.mark.usefixtures("table")
def test_compare_takes_kinds_and_kernels() -> None:
    options = ("--columns", "date=time,patient=group", "--kernel", 'RBF("x") + Group("patient")')
    methods = ("--methods", "elbo,log-joint,boosting", "--repeats", "1", "--max-iter", "3")
    words = (*options, *methods, "--likelihood", "gaussian", "--inducing", "5", "--jobs", "1")
    answer = run("compare", "visits.csv", "--target", "y", *words, "--out", "report", "--json")
    assert answer.code == 0, answer.err
    document = json.loads(answer.out)
    assert document["failed"] == []
    (note,) = (text for text in document["data"]["notes"] if "codes of levels" in text)
    assert note.endswith("get the codes of levels as numbers: 'patient'.")
    page = Path("report/index.html").read_text()
    assert "--columns date=time,patient=group" in page
    assert "Group(" in page and "patient" in page


@pytest.mark.usefixtures("table")
def test_an_expression_has_its_own_ard(here: Path) -> None:
    err = refusal("--dates", "days", "--kernel", 'RBF("x")', "--no-ard")
    assert "--no-ard must be given with the name of a kernel only." in err
    answer = run("compare", "visits.csv", "--target", "y", "--kernel", 'RBF("x")', "--ard")
    assert answer.code == 2
    assert not (here / "report").exists()
