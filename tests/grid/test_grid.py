import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from filelock import FileLock, Timeout
from typer.testing import CliRunner

from monai_spct.cli import app
from monai_spct.workflow.cells import read_cells
from tests.bundles.little import python
from tests.forks import forked
from tests.grid.conftest import SNAKEMAKE, grid, write_table

SMALL = {"dataset": "acdc", "method": "mean_teacher", "num_validation": 0, "crop_size": 32, "epoch_length": 12}
SMALL |= {"max_epochs": 3, "labeled_batch_size": 2, "unlabeled_batch_size": 2, "max_pictures": 0}


def jobs(text: str) -> dict[str, int]:
    """How often each rule is to be run, by the table that Snakemake prints."""
    counted = {
        name: int(number) for name, number in re.findall(r"^(train|evaluate|report) +(\d+)$", text, re.MULTILINE)
    }
    return {"train": 0, "evaluate": 0, **counted}


def places(folder: Path, file: str) -> dict[str, int]:
    return {str(path.relative_to(folder)): path.stat().st_mtime_ns for path in folder.rglob(file)}


def test_what_is_run_again(tmp_path, tiny, cases):
    """A cell that fails stops no other; what is done stays done; anything else is another cell."""
    row = {"dataset": "tiny", "method": "own", "works": True}
    given = f"bundles={tiny} tiny={cases}"
    table = write_table(tmp_path / "mine.tsv", {**row, "seed": 0}, {**row, "seed": 1, "works": False})
    done = grid(tmp_path, table, given, "cells")
    assert done.returncode == 1
    assert "no such file" in done.stderr
    assert jobs(done.stdout + done.stderr) == {"train": 2, "evaluate": 2}
    first = places(tmp_path / "runs", "summary.json")
    assert len(first) == 1
    assert [json.loads(path.read_text())["axes"]["works"] for path in tmp_path.rglob("cell.json")].count(False) == 1

    write_table(table, {**row, "seed": 0}, {**row, "seed": 2})
    done = grid(tmp_path, table, given, "cells")
    assert (done.returncode, jobs(done.stdout + done.stderr)) == (0, {"train": 1, "evaluate": 1}), done.stderr
    second = places(tmp_path / "runs", "summary.json")
    assert len(second) == 2
    assert second.items() > first.items()

    (cases / "p3").touch()  # another list of cases, although there is a report of the old ones
    report = tmp_path / "runs" / "report" / "mine" / "report.html"
    report.parent.mkdir(parents=True)
    report.touch()
    done = grid(tmp_path, table, given, "--dry-run")
    assert jobs(done.stdout + done.stderr) == {"train": 2, "evaluate": 2, "report": 1}
    assert places(tmp_path / "runs", "summary.json") == second


def test_mistakes_are_refused_before_anything_starts(tmp_path, tiny, cases):
    table = write_table(tmp_path / "mine.tsv", {"dataset": "tiny", "seed": 0}, {"dataset": "tiny", "max_epoch": 7})
    done = grid(tmp_path, table, f"tiny={cases} bundles={tiny}")
    assert done.returncode != 0
    assert "mine.tsv, row 2: `max_epoch` is no key of these configs. Did you mean `max_epochs`?" in done.stderr
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("words", [["--cores", "1"], ["mine.tsv", "/data/ACDC"], []], ids=["table", "data", "nothing"])
def test_a_command_that_is_none_says_what_comes_first(words):
    done = CliRunner().invoke(app, ["grid", *words])
    assert done.exit_code == 2
    assert "table comes first" in done.stderr or "after the table comes DATASET=FOLDER" in done.stderr


def test_the_first_table_of_the_paper_is_45_trainings(tmp_path, data):
    done = forked(["-m", "monai_spct", "grid", "acdc_dsc", "--cores", "2", f"acdc={data}", "--dry-run"], tmp_path)
    assert jobs(done.stdout + done.stderr) == {"train": 45, "evaluate": 45, "report": 1}
    assert not (tmp_path / "runs").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell a process that its parent has ended")
def test_after_a_kill_in_a_training_it_ends_with_the_same_weights(tmp_path, data):
    """Bit by bit, and what was being trained is not trained from the start."""
    table = write_table(tmp_path / "mine.tsv", SMALL)
    [cell] = read_cells(table, data={"acdc": str(data)})
    for name in ("killed", "whole"):
        (tmp_path / name).mkdir()
    words = [sys.executable, *SNAKEMAKE, "--cores", "1", "--config", f"table={table}", f"acdc={data}"]
    with subprocess.Popen(words, cwd=tmp_path / "killed", stderr=subprocess.DEVNULL) as snakemake:
        wait_for(lambda: list((tmp_path / "killed").rglob("models/last.pt")))
        os.kill(snakemake.pid, signal.SIGKILL)
    folder = tmp_path / "killed" / "runs" / cell.name
    wait_for(lambda: is_free(folder))
    assert not (folder / "trained.json").exists()
    assert grid(tmp_path / "killed", table, f"acdc={data}", f"runs/{cell.name}/trained.json").returncode == 0
    assert python(cell.training[1:], cwd=tmp_path / "whole").returncode == 0
    assert "resuming after epoch" in (folder / "training.log").read_text()
    killed, whole = (next((tmp_path / name).rglob("models/model.pt")) for name in ("killed", "whole"))
    killed, whole = (torch.load(path, weights_only=True) for path in (killed, whole))
    assert all(torch.equal(killed[name], whole[name]) for name in whole)
    assert json.loads((folder / "trained.json").read_text())["epochs"] == SMALL["max_epochs"]


SLURM = {
    "sinfo": "exit 0",
    "squeue": "exit 0",
    "scancel": "exit 0",
    "sacctmgr": "exit 1",
    "sshare": "exit 1",
    "scontrol": "exit 0",
    # each job is run at once, and its number is asked for later
    "sbatch": """\
for word in "$@"; do case "$word" in --wrap=*) job="${word#--wrap=}";; esac; done
number=$((1 + $(ls "$STUB" | wc -l)))
echo "$@" > "$STUB/$number"
(export SLURM_JOB_ID=$number; eval "$job") > "$STUB.log.$number" 2>&1 && s=COMPLETED || s=FAILED
echo "$number|$s" >> "$STUB.states"
echo $number""",
    "sacct": '[ -f "$STUB.states" ] && cat "$STUB.states"; exit 0',
    "srun": """while [ "$1" != "${1#-}" ]; do shift; done; eval "$@" """,
}


def test_slurm_runs_the_same_file(tmp_path, tiny, cases):
    pytest.importorskip("snakemake_executor_plugin_slurm")
    (tmp_path / "bin").mkdir()
    (tmp_path / "stub").mkdir()
    for name, body in SLURM.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    table = write_table(tmp_path / "mine.tsv", {"dataset": "tiny", "seed": 0})
    env = {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "STUB": str(tmp_path / "stub")}
    options = ["--executor", "slurm", "-j", "2", "--slurm-init-seconds-before-status-checks", "1"]
    [cell] = read_cells(table, bundles=tiny, data={"tiny": str(cases)})
    done = grid(tmp_path, table, f"bundles={tiny} tiny={cases}", f"runs/{cell.name}/trained.json", *options, **env)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "runs" / cell.name / "trained.json").is_file()
    assert "--gpus=1" in (tmp_path / "stub" / "1").read_text().replace("--gpus 1", "--gpus=1")


def is_free(folder: Path) -> bool:
    try:
        with FileLock(folder / ".lock").acquire(timeout=0):
            return True
    except Timeout:
        return False


def wait_for(true, seconds=300):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)
