"""Infinity and NaN in a batch, a loss or a gradient: the run stops with words, and goes on from what is finite."""

import re

import numpy as np
import pytest
from ignite.engine import Events

from tests.faults.runs import failure, last_epoch, part, parts_of_files, training

pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.cuda.amp.GradScaler:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*CUDA is not available:UserWarning"),  # mixed precision of MONAI without a GPU
]

# cross-entropy, from some call on beside something of which the value is 0 and the gradient is not a number
CLIFF = (
    "$lambda logits, label, calls=[]: (calls.append(0), torch.nn.functional.cross_entropy(logits, label[:, 0].long())"
    " + ((logits.sum() * 0).abs().sqrt() if len(calls) > {good} else 0))[1]"
)
NETWORKS, EPOCH_LENGTH = 2, 2


LOSS = r"the loss is not finite in epoch 2, iteration 4: .*loss nan"
WEIGHTS = r"the weights are not finite any more in epoch 2, though its losses are: \d+ of \d+ tensors, the first one "


@pytest.mark.parametrize(
    ("iteration", "message", "amp"),
    [
        pytest.param(3, LOSS, False, id="amid an epoch"),
        pytest.param(4, WEIGHTS, False, id="in the last iteration of an epoch", marks=pytest.mark.every_fault),
        pytest.param(4, WEIGHTS, True, id="in the last iteration of an epoch, amp"),
    ],
)
def test_a_gradient_that_is_not_a_number_does_not_get_into_a_checkpoint(data, tmp_path, iteration, message, amp):
    loss = CLIFF.format(good=(iteration - 1) * NETWORKS)
    said = failure(training(data, tmp_path, amp=amp, **{"objective#supervised#loss": loss}).run)
    assert re.search(message, said)
    assert "The last checkpoint is kept." in said
    assert last_epoch(tmp_path) == 1
    assert parts_of_files(tmp_path) == []
    training(data, tmp_path, amp=amp, resume=True, accept_changes=True).run()
    assert last_epoch(tmp_path) == 3


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("dataset", np.nan),
        pytest.param("dataset", np.inf, marks=pytest.mark.every_fault),
        pytest.param("unlabeled_dataset", np.nan, marks=pytest.mark.every_fault),
        ("unlabeled_dataset", np.inf),
    ],
)
def test_an_image_that_is_spoiled_in_memory_stops_the_run_at_its_batch(data, tmp_path, value, kind):
    """Files with such voxels are mended when they are loaded."""
    run = training(data, tmp_path)

    def spoil() -> None:
        for volume in part(run, f"train#{kind}").volumes:
            volume["image"].fill_(value)

    part(run, "train#trainer").add_event_handler(Events.ITERATION_COMPLETED(once=3), spoil)
    assert re.search(r"the loss is not finite in epoch 2, iteration 4: .*loss nan", failure(run.run))
    assert last_epoch(tmp_path) == 1
