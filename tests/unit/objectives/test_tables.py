"""Nothing is missing from the table of point losses."""

from directgp.objectives import PointLoss, resolve_point_loss
from tests.properties.test_tables import concrete
from tests.unit.objectives.tables import POINT_LOSSES


def test_no_missing_point_losses() -> None:
    assert concrete(PointLoss) == {type(row.loss) for row in POINT_LOSSES}


def test_every_point_loss_has_a_name_of_its_own() -> None:
    classes = concrete(PointLoss)
    names = {row.loss.name for row in POINT_LOSSES}
    assert len(names) == len(classes)
    assert {type(resolve_point_loss(name)) for name in names} == classes
