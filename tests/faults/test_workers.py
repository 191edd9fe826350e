"""A process that makes batches is killed: the training says so and ends, and the last epoch is there."""

import re
import signal

import pytest

from tests.faults.runs import in_a_process, last_epoch, parts_of_files, training

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="there is no such signal here")


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param("labeled worker", marks=pytest.mark.every_fault),
        "unlabeled worker",
        "worker between epochs",
    ],
)
def test_a_worker_that_is_killed_ends_the_training_which_can_go_on(data, tmp_path, fault):
    done = in_a_process(fault, data, tmp_path, num_workers=2)
    assert done.returncode == 1
    assert re.search(
        r"RuntimeError: DataLoader worker \(pid.* \d+\)? (is killed by signal: Killed|exited unexp)", done.stderr
    )
    assert parts_of_files(tmp_path) == []
    assert last_epoch(tmp_path) == 1
    training(data, tmp_path, resume=True).run()
    assert last_epoch(tmp_path) == 3
