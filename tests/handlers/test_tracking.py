from types import SimpleNamespace

import pytest
import torch
from monai.handlers import MLFlowHandler, from_engine

from monai_spct.handlers import Progress, track_scalars


def handler(tag: str) -> MLFlowHandler:
    """As MONAI's settings make it, without a database, which takes mlflow."""
    made = MLFlowHandler.__new__(MLFlowHandler)
    made.tag_name, made.output_transform, made.iteration_log = tag, from_engine(["loss"], first=True), True
    return made


def test_the_handler_of_monais_tracking_gets_every_number_of_the_output():
    [tracking] = handlers = [handler("train_loss")]
    track_scalars(handlers, every=10)
    output = {
        "image": torch.zeros(2, 1, 4, 4),
        "loss": torch.tensor(0.75),
        "supervised_loss": torch.tensor(0.5),
        "gamma": 2,
    }
    assert tracking.output_transform(output) == {"loss": 0.75, "supervised_loss": 0.5, "gamma": 2.0}
    assert all(type(value) is float for value in tracking.output_transform(output).values())


def test_it_logs_the_first_iteration_and_then_some():
    [tracking] = handlers = [handler("train_loss")]
    track_scalars(handlers, every=3)
    assert [n for n in range(1, 10) if tracking.iteration_log(SimpleNamespace(), n)] == [1, 4, 7]


def test_other_handlers_stay_as_they_are():
    own, bar = handler("my_loss"), Progress()
    before = dict(vars(own))
    track_scalars([bar, own], every=3)
    assert vars(own) == before


@pytest.mark.parametrize("every", [0, -1, 1.5])
def test_an_interval_that_is_none_is_refused(every):
    with pytest.raises(ValueError, match="`every` must be a whole number of at least 1, got"):
        track_scalars([], every=every)
