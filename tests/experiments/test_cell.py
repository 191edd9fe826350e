"""What lies in a cell's folder says how far the cell is, whenever its process was killed."""

import json
import os
from pathlib import Path

import pytest
import torch
from fire.parser import DefaultParseValue

from monai_spct.experiments import Grid, GridError, Job, State, finished_cells, format_states, plan, state_of
from monai_spct.experiments import cell as on_disk
from tests.experiments.tiny_bundle import write


@pytest.fixture
def job(tiny) -> Job:
    """A cell of four epochs."""
    return plan(Grid(("tiny",), axes={"seed": (3,)}, settings={"pictures": 0}), bundles=tiny).jobs[0]


@pytest.fixture
def folder(tmp_path, job) -> Path:
    """The cell's folder as it is when its training has been started."""
    path = tmp_path / "runs" / job.name
    path.mkdir(parents=True)
    on_disk.describe(job, path)
    on_disk.begin(path, "training")
    return path


def save_epoch(folder: Path, epoch: int, *, weights: bool = True) -> None:
    """What a trainer writes after an epoch, in its order."""
    (folder / "models").mkdir(exist_ok=True)
    for name, content in (("model.pt", {}), ("last.pt", {"run": {"epoch": epoch}})):
        if weights or name == "last.pt":
            torch.save(content, folder / "models" / name)


def finish(folder: Path, job: Job) -> None:
    on_disk.trained(folder, 60)
    write(folder / "eval" / "summary.json", {"mean": {"dsc_mean": 0.5}})
    on_disk.write_json(folder / "done.json", {"training_seconds": 60, "evaluating_seconds": 1, "hash": job.digest})


# States


def test_a_cell_waits_until_it_is_begun(tmp_path, job):
    assert state_of(job, tmp_path / "nowhere") == State("waiting")
    (tmp_path / "empty").mkdir()
    assert state_of(job, tmp_path / "empty") == State("waiting")


def test_a_training_that_broke_off_says_after_which_epoch(folder, job):
    assert str(state_of(job, folder)) == "interrupted: training, after epoch 0 of 4"
    save_epoch(folder, 3)
    assert str(state_of(job, folder)) == "interrupted: training, after epoch 3 of 4"
    assert on_disk.can_resume(job, folder)
    assert not on_disk.is_trained(job, folder)


def test_the_epochs_are_those_of_the_trainer(tiny):
    jobs = plan(Grid(("tiny",), axes={"train#trainer#max_epochs": (7, "$2 * @max_epochs")}), bundles=tiny).jobs
    assert [on_disk.epochs_planned(job) for job in jobs] == [7, 8]


def test_a_training_that_was_killed_after_its_last_epoch_is_complete(folder, job):
    save_epoch(folder, 4)
    assert on_disk.is_trained(job, folder)


def test_a_training_whose_weights_are_gone_is_run_anew(folder, job):
    save_epoch(folder, 4, weights=False)
    assert not on_disk.is_trained(job, folder)
    assert not on_disk.can_resume(job, folder)  # the trainer refuses to resume what is complete


def test_a_training_that_ended_amid_its_first_epoch_goes_on(folder, job):
    assert not on_disk.can_resume(job, folder)
    save_epoch(folder, 0)
    assert on_disk.can_resume(job, folder)


def test_a_training_whose_last_checkpoint_is_damaged_goes_on_from_the_one_before(folder, job):
    save_epoch(folder, 2)
    (folder / "models" / "last.pt").rename(folder / "models" / "last_1.pt")
    (folder / "models" / "last.pt").write_bytes(b"half of it")
    assert str(state_of(job, folder)) == "interrupted: training, after epoch 2 of 4"
    assert on_disk.can_resume(job, folder)
    (folder / "models" / "last_1.pt").unlink()
    assert on_disk.can_resume(job, folder)  # and never anew: the training says what is wrong


def test_a_cell_that_was_killed_while_it_was_evaluated_says_so(folder, job):
    on_disk.trained(folder, 60)
    assert str(state_of(job, folder)) == "interrupted: evaluating"
    on_disk.begin(folder, "evaluating")
    assert state_of(job, folder) == State("interrupted", "evaluating", 60)
    assert on_disk.is_trained(job, folder)


def test_a_cell_whose_lock_is_held_is_running(folder, job):
    with on_disk.lock_of(folder).acquire(timeout=0):
        save_epoch(folder, 2)
        state = state_of(job, folder)
    assert str(state) == "running: training, after epoch 2 of 4"
    assert 0 <= state.seconds < 60
    assert state_of(job, folder).name == "interrupted"


def test_a_failed_cell_has_its_error_until_it_is_begun_again(folder, job):
    on_disk.failed(folder, "out of memory", 5)
    assert state_of(job, folder) == State("failed", "out of memory", 5)
    on_disk.begin(folder, "training")
    assert state_of(job, folder).name == "interrupted"


def test_a_cell_is_done_when_it_has_its_scores_and_its_record(folder, job):
    on_disk.trained(folder, 60)
    write(folder / "eval" / "summary.json", {"mean": {"dsc_mean": 0.5}})
    assert state_of(job, folder).name == "interrupted"  # the record is written last
    finish(folder, job)
    assert state_of(job, folder) == State("done", "", 61, 0.5)
    (folder / "eval" / "summary.json").unlink()
    assert state_of(job, folder).name == "interrupted"
    assert on_disk.is_trained(job, folder)


def test_the_pieces_of_a_training_add_up_to_the_last_epoch_of_each(folder):
    started = on_disk.read_json(folder / "progress.json")["started"]
    save_epoch(folder, 1)
    os.utime(folder / "models" / "last.pt", (started + 100, started + 100))
    on_disk.begin(folder, "training")  # what came after the epoch was lost
    on_disk.trained(folder, 50)
    assert on_disk.read_json(folder / "progress.json")["training_seconds"] == pytest.approx(150, abs=1)


# Other configurations


def test_a_folder_of_another_configuration_shows_the_difference(folder, job, tiny):
    assert on_disk.other_configuration(job, folder) == []
    [other] = plan(Grid(("tiny",), axes={"seed": (3,)}, settings={"ratio": 0.25}), bundles=tiny).jobs
    assert other.name == job.name
    changed = sorted(on_disk.other_configuration(other, folder))
    assert changed == ["`pictures` was 0, is 5", "`ratio` was 0.5, is 0.25"]
    assert state_of(other, folder).name == "refused"


def test_results_of_which_there_is_no_record_are_refused(tmp_path, job):
    (tmp_path / "models").mkdir()
    with pytest.raises(GridError, match=r"has results but no cell\.json"):
        on_disk.other_configuration(job, tmp_path)


@pytest.mark.parametrize("text", ["{", "[]", ""])
def test_a_record_that_cannot_be_read_is_named(folder, job, text):
    (folder / "cell.json").write_text(text)
    with pytest.raises(GridError, match=r"cell\.json is no .*delete its folder"):
        state_of(job, folder)


def test_what_a_cell_is_made_from_is_on_record(folder, job):
    record = json.loads((folder / "cell.json").read_text())
    assert {key: record[key] for key in ("dataset", "method", "network", "overlays", "axes", "settings")} == {
        "dataset": "tiny",
        "method": "default",
        "network": "default",
        "overlays": [],
        "axes": {"seed": 3},
        "settings": {"pictures": 0},
    }
    assert record["files"] == {"training": ["tiny/configs/train.json"], "evaluating": ["tiny/configs/evaluate.json"]}
    assert record["hash"] == job.digest
    assert record["configuration"]["training"]["seed"] == 3


# Commands


def test_a_command_is_what_one_would_type(job, tmp_path):
    words = on_disk.command(job, job.training, tmp_path, resume=True)
    assert words[1:5] == ["-m", "monai.bundle", "run", "training"]
    assert DefaultParseValue(words[6]) == [str(path) for path in job.training.files]
    assert words[5:6] + words[7:] == ["--config_file", "--output_dir", str(tmp_path), "--seed", "3", "--resume", "true"]
    words = on_disk.command(job, job.evaluating, tmp_path)
    assert words[4:6] + words[7:] == [
        *("evaluating", "--config_file", "--output_dir", str(tmp_path)),
        *("--pictures", "0"),
    ]


def test_the_bundles_take_the_commands(tmp_path):
    grid = Grid(("acdc",), ("dan",), ("unet",), ("small",), {"train#trainer#max_epochs": (1,)}, {"test_ratio": 0.5})
    [job] = plan(grid, data={"acdc": tmp_path / "with 'quotes' and, commas"}).jobs
    for phase in (job.training, job.evaluating):
        words = on_disk.command(job, phase, tmp_path, resume=phase is job.training)
        assert DefaultParseValue(words[words.index("--dataset_dir") + 1]) == job.data


# Errors


@pytest.mark.parametrize(
    ("text", "status", "error"),
    [
        ("a\nValueError: x\n", 1, "ValueError: x"),
        ("Traceback\nRuntimeError: y\n\nWhat went wrong: no data in a.\n\nGet them at b.\n", 1, "no data in a."),
        ("What went wrong: first\nWhat went wrong: second\n", 1, "second"),
        ("training:  50%|###\rtraining: 100%|######\rended\n\n", 1, "ended"),
        ("", 3, "exit status 3, with nothing in its log"),
        ("epoch 3\n", -9, "ended by signal 9, after: epoch 3"),
        ("", -15, "ended by signal 15, with nothing in its log"),
    ],
)
def test_the_error_is_what_a_log_ends_with(text, status, error):
    assert on_disk.last_error(text, status) == error


# Results


def test_finished_cells_are_found_with_their_axes(folder, job):
    runs = folder.parents[job.name.count("/")]
    assert finished_cells(runs) == []
    finish(folder, job)
    [found] = finished_cells(runs)
    assert (found.folder, found.dataset, found.method, found.network) == (folder, "tiny", "default", "default")
    assert (found.axes, found.settings) == ({"seed": 3}, {"pictures": 0})
    assert found.record["training_seconds"] == 60


def test_the_table_of_states_stays_a_table_whatever_the_error():
    lines = format_states({"a": State("failed", "x" * 500), "b": State("done", "", 3700, 0.5)}).splitlines()
    assert len({len(line) for line in lines[:-1]}) == 1
    assert len(lines[0]) < 150
    assert lines[3].split("|")[-3:-1] == [" 1:01:40  ", " 0.500    "]
    assert lines[-1] == "2 cells: 1 failed, 1 done"
