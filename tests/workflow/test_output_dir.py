import json
import shlex
import subprocess
import sys

import pytest
from filelock import FileLock
from ignite.engine import Engine

from monai_spct.workflow import lock_output_dir, output_dir, record_command, record_training

HOLDER = "import sys, filelock; lock = filelock.FileLock(sys.argv[1]); lock.acquire(); print('locked', flush=True); \
sys.stdin.read()"


def finished_trainer(**settings) -> Engine:
    trainer = Engine(lambda *_: None)
    trainer.run(range(4), **settings)
    return trainer


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(output_dir, "_PATIENCE", 0.2)


def test_a_folder_is_for_one_training_at_a_time_and_free_when_that_is_killed(tmp_path):
    other = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path / ".lock")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with other:
        assert other.stdout.readline() == b"locked\n"
        with pytest.raises(ValueError, match=f"another process trains in {tmp_path}: wait for it"):
            lock_output_dir(tmp_path)
        other.kill()
    lock_output_dir(str(tmp_path))
    lock_output_dir(tmp_path)  # the same training, asked twice


def test_a_folder_is_free_when_its_training_has_ended(tmp_path):
    lock_output_dir(tmp_path)
    with pytest.raises(TimeoutError):
        FileLock(tmp_path / ".lock").acquire(timeout=0)
    record_training(tmp_path, finished_trainer(), {"seed": 0})
    FileLock(tmp_path / ".lock").acquire(timeout=0)


def test_the_record_counts_what_was_trained_before_an_interruption(tmp_path):
    (tmp_path / "eval").mkdir()
    (tmp_path / "eval" / "history.csv").write_text("epoch,seconds,loss\n1,0.5,1.0\n2,0.25,0.5\n")
    record_training(tmp_path, finished_trainer(max_epochs=2), {"seed": 0})
    record = json.loads((tmp_path / "trained.json").read_text())
    assert (record["epochs"], record["seconds"]) == (2, 3.0)
    assert record["versions"].keys() == {"python", "monai_spct", "monai", "torch", "pytorch-ignite", "numpy"}


def test_the_command_is_on_record_as_one_would_type_it(tmp_path, monkeypatch):
    words = [
        "python",
        "-m",
        "monai.bundle",
        "--config_file",
        "['a.json','b c.json']",
        "--device",
        "$torch.device('cpu')",
    ]
    monkeypatch.setattr(sys, "orig_argv", words)
    record_command(tmp_path / "record.json")
    command = json.loads((tmp_path / "record.json").read_text())["command"]
    assert shlex.split(command) == words
    assert """ --config_file "['a.json','b c.json']" --device """ in command


def test_of_several_processes_the_first_one_locks_and_records(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    lock_output_dir(tmp_path / "run")
    record_training(tmp_path / "run", finished_trainer(), {})
    assert not (tmp_path / "run").exists()
