"""Public names, signatures, options and estimator attributes are those of the golden file."""

import pytest

from tests.frozen.golden import FOLDER, assert_same_document, read_json
from tests.frozen.public_names import describe_all

REMEDY = "If this is meant: python -m tests.frozen.write public_names"


@pytest.mark.usefixtures("without_shape_checks")
def test_public_names_have_not_changed() -> None:
    golden = read_json(FOLDER / "public_names.json")
    assert_same_document(describe_all(), golden, 0.0, REMEDY)
