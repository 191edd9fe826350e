"""A training ends when its validations do not get better, also one that was interrupted, and stays ended."""

import logging

import pytest
from ignite.engine import Engine, Events
from torch import nn

from monai_spct.handlers import SaveCheckpoints, StopEarly

SCORES = [0.5, 0.7, 0.6, 0.7, 0.8, 0.8, 0.1, 0.79, 0.9]  # of the validations, one after each second epoch


class Run:
    """A training without a network, validated after each second epoch."""

    def __init__(self, folder, *, patience: int, resume: bool = False, crash: int | None = None) -> None:
        self.trainer, validator = Engine(lambda *_: None), Engine(lambda *_: None)
        validator.state.key_metric_name = "mean_dsc"
        rule = StopEarly(validator, patience=patience)
        rule.attach(self.trainer)

        def validate(engine: Engine) -> None:
            validator.state.metrics["mean_dsc"] = SCORES[engine.state.epoch // 2 - 1]
            validator.run([0])

        self.trainer.add_event_handler(Events.EPOCH_COMPLETED(every=2), validate)
        if crash is not None:
            self.trainer.add_event_handler(Events.EPOCH_COMPLETED(once=crash), self.crash)
        objects = {"stop_early": rule}
        SaveCheckpoints(folder, nn.Linear(1, 1), objects, resume=resume).attach(self.trainer)

    def crash(self) -> None:
        raise KeyError("the machine is gone")

    def __call__(self) -> int:
        """The last epoch."""
        self.trainer.run([0], max_epochs=2 * len(SCORES))
        return self.trainer.state.epoch


@pytest.mark.parametrize(("patience", "last"), [(1, 6), (2, 8), (3, 16), (4, 18)])
def test_it_ends_after_as_many_validations_in_a_row_that_were_not_better_than_the_best(
    tmp_path, caplog, patience, last
):
    with caplog.at_level(logging.INFO, "monai_spct"):
        assert Run(tmp_path, patience=patience)() == last
    best = max(SCORES[: last // 2 - patience])
    said = f"stopping after epoch {last} of 18: the last {patience} validations were not better than the best before"
    assert (f"{said}, {best:.4f}." in caplog.text) == (last < 18)


@pytest.mark.parametrize("crash", [5, 6, 7, 8], ids="in epoch {}".format)
def test_a_run_that_broke_off_ends_where_it_would_have_ended(tmp_path, crash):
    with pytest.raises(KeyError, match="the machine is gone"):
        Run(tmp_path, patience=2, crash=crash)()
    assert Run(tmp_path, patience=2, resume=True)() == 8


def test_a_run_that_was_stopped_stays_so_unless_it_is_given_more_patience(tmp_path, caplog):
    Run(tmp_path, patience=2)()
    with caplog.at_level(logging.INFO, "monai_spct"):
        assert Run(tmp_path, patience=2, resume=True)() == 8
    assert "nothing to do" in caplog.text
    assert Run(tmp_path, patience=3, resume=True)() == 16
