from pathlib import Path
from typing import Any

import pytest
import torch
from ignite.engine import Engine

from monai_spct.handlers import SaveCheckpoints


def run_with(folder: Path, settings: dict[str, Any], epochs: int, **options: Any) -> Engine:
    trainer = Engine(lambda *_: None)
    model = torch.nn.Linear(1, 1)
    SaveCheckpoints(folder, model, {"model": model}, resume=True, settings=settings, **options).attach(trainer)
    trainer.run([0, 1], max_epochs=epochs)
    return trainer


def test_other_settings_are_shown_and_refused(tmp_path):
    run_with(tmp_path, {"seed": 0, "loss": {"weight": 1}}, 1)
    with pytest.raises(ValueError, match="is of a run with other settings") as error:
        run_with(tmp_path, {"loss": {"weight": 2}}, 2)
    assert "\n  `seed` was 0, is not there\n  `loss#weight` was 1, is 2\nResume with those" in str(error.value)
    assert torch.load(tmp_path / "last.pt", weights_only=True)["run"]["epoch"] == 1


def test_they_are_accepted_if_told_so_and_kept_from_then_on(tmp_path, caplog):
    run_with(tmp_path, {"seed": 0}, 1)
    run_with(tmp_path, {"seed": 1}, 2, accept_changes=True)
    assert "with other settings:\n  `seed` was 0, is 1" in caplog.text
    run_with(tmp_path, {"seed": 1}, 3)


def test_many_differences_are_counted(tmp_path):
    run_with(tmp_path, {str(n): n for n in range(1, 14)}, 1)
    with pytest.raises(ValueError, match=r"`10` was 10, is -10\n  and 3 more\n"):
        run_with(tmp_path, {str(n): -n for n in range(1, 14)}, 2)


@pytest.mark.parametrize(("before", "after"), [({}, {"seed": 1}), ({"seed": 1}, {})])
def test_settings_that_are_not_known_are_not_compared(tmp_path, before, after):
    run_with(tmp_path, before, 1)
    assert run_with(tmp_path, after, 2).state.iteration == 4
