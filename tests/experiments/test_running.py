"""A grid runs to its end on the command line, however often it is killed, and whoever else runs it."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Timer

import pytest
import torch
import yaml

import monai_spct
from monai_spct.data import write_acdc_phantom
from monai_spct.experiments import (
    Grid,
    GridError,
    Plan,
    Study,
    finished_cells,
    parse_grid,
    plan,
    planned_studies,
    run_jobs,
    state_of,
)
from monai_spct.experiments import cell as on_disk
from monai_spct.experiments.__main__ import run, status
from monai_spct.experiments.runner import seconds_left
from tests.experiments.tiny_bundle import write

LITTLE = {
    "max_epochs": 1,
    "epoch_length": 2,
    "crop_size": 48,
    "labeled_patients": 1,
    "labeled_batch_size": 2,
    "unlabeled_batch_size": 2,
    "max_pictures": 0,
    "device": "$torch.device('cpu')",
    "num_workers": 0,
}
GRID = {
    "datasets": ["acdc"],
    "overlays": ["phantom"],
    "methods": ["labeled_only", "mean_teacher", "co_training"],
    "axes": {"seed": [0]},
    "settings": {**LITTLE, "kept_epochs": [1], "num_views": 1},  # which fails for co-training
}
ONE, TWO, FAILS = (f"acdc/{method}/default/seed=0" for method in GRID["methods"])


def started(*words: object, cwd: Path) -> subprocess.Popen[str]:
    """``python -m monai_spct.experiments``, as it is typed, in a group of processes of its own."""
    parent = str(Path(monai_spct.__file__).parents[1])
    paths = os.pathsep.join(path for path in (parent, os.environ.get("PYTHONPATH")) if path)
    return subprocess.Popen(
        [sys.executable, "-m", "monai_spct.experiments", *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths},
        start_new_session=True,
    )


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, error = process.communicate(timeout=300)
    return process.returncode, out, error


def commands_in(log: Path) -> list[str]:
    return [line for line in log.read_text().splitlines() if line.startswith("$ ")]


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("acdc") / "data"
    return write_acdc_phantom(folder, patients=4, size=(40, 44), spacing=(3.2, 3.5), slices=(4, 5))


# Two processes at once, on the phantom


@pytest.fixture(scope="module")
def place(data, tmp_path_factory) -> Path:
    """Where `grid.yaml` was run into `runs` by two processes at the same time; what they said is in `said`."""
    folder = tmp_path_factory.mktemp("grid")
    (folder / "grid.yaml").write_text(yaml.safe_dump(GRID))
    words = ("run", "grid.yaml", "--folder", "runs", "--data", data)
    processes = [started(*words, cwd=folder) for _ in range(2)]
    write(folder / "said", [ended(process) for process in processes])
    return folder


@pytest.fixture
def planned(data) -> Plan:
    return plan(parse_grid(GRID), data={"acdc": data})


def test_the_cells_of_a_grid_are_trained_and_evaluated_on_the_command_line(place):
    said = json.loads((place / "said").read_text())
    for name in (ONE, TWO):
        folder = place / "runs" / name
        assert torch.load(folder / "models" / "last.pt", weights_only=True)["run"]["epoch"] == 1
        assert json.loads((folder / "eval" / "summary.json").read_text())["mean"]["n_volumes"] == 2
        assert any(re.search(rf"\] {name}: done in \d\d:\d\d, mean DSC 0\.\d+", out) for _, out, _ in said)


def test_two_processes_never_run_one_cell(place):
    for name in (ONE, TWO):
        for log in ("training.log", "evaluating.log"):
            assert len(commands_in(place / "runs" / name / log)) == 1
    outs = [out for _, out, _ in json.loads((place / "said").read_text())]
    assert any(f"{ONE}: skipped: another process runs it" in out for out in outs)


def test_what_is_to_be_shown_is_recorded_once(place):
    [study] = planned_studies(place / "runs")
    assert (study.name, [cell.name for cell in study.cells]) == ("grid", [ONE, TWO, FAILS])
    assert study.show == Study(()).show


def test_a_cell_that_fails_is_reported_and_the_others_go_on(place):
    said = json.loads((place / "said").read_text())
    [(status, out, error), *_] = [words for words in said if words[0] != 0]
    assert status == 1
    assert re.search(r"3 cells: .*1 failed", out)
    [message] = re.findall(rf"{FAILS}: failed: (.*)", out)
    assert re.search("`num_views` must be .*at least 2, got 1", message)
    assert error.splitlines()[-2:] == [f"{FAILS} failed: {message}", f"  the logs are in {place / 'runs' / FAILS}"]
    assert message in (place / "runs" / FAILS / "training.log").read_text()


def test_the_table_shows_how_far_all_are(place, capsys):
    status(str(place / "grid.yaml"), folder=str(place / "runs"))
    table = capsys.readouterr().out
    for name in (ONE, TWO):
        assert re.search(rf"\| {name} +\| done +\| \d\d:\d\d +\| 0\.\d{{3}} ", table)
    assert re.search(rf"\| {FAILS} +\| failed: .*`num_views` must be .* \| \d\d:\d\d +\|  ", table)
    assert table.splitlines()[-1] == "3 cells: 2 done, 1 failed"


def test_what_is_finished_can_be_compared(place, data):
    cells = finished_cells(place / "runs")
    assert [(cell.method, cell.axes) for cell in cells] == [
        ("labeled_only", {"seed": 0}),
        ("mean_teacher", {"seed": 0}),
    ]
    for cell in cells:
        assert (cell.folder / "eval" / "scores.csv").is_file()
        assert 0 < cell.record["training_seconds"] < 300
        assert 0 < cell.record["evaluating_seconds"] < 300
        assert cell.record["monai_spct"] == monai_spct.__version__
        assert cell.record["torch"] == torch.__version__
        assert cell.record["dataset_dir"] == str(data)
        assert cell.record["commit"] is None or re.fullmatch(r"[0-9a-f]{40}(-dirty)?", cell.record["commit"])


def test_a_second_run_does_nothing_but_try_again_what_failed(place, data, capsys):
    before = {path: path.stat().st_mtime_ns for name in (ONE, TWO) for path in (place / "runs" / name).rglob("*")}
    attempts = len(commands_in(place / "runs" / FAILS / "training.log"))
    with pytest.raises(SystemExit) as error:
        run(str(place / "grid.yaml"), folder=str(place / "runs"), data=str(data))
    assert error.value.code == 1
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert len(commands_in(place / "runs" / FAILS / "training.log")) == attempts + 1
    out = capsys.readouterr().out
    assert "note: labeled_only keeps" not in out  # it has one network anyway
    assert out.splitlines()[-1] == "3 cells: 2 done, 1 failed"


def test_a_finished_grid_does_nothing(place, data, capsys):
    run(str(place / "grid.yaml"), folder=str(place / "runs"), data=str(data), shard="1/3")
    assert capsys.readouterr().out == "1 cell: 1 done\n"


def test_a_training_that_was_complete_when_all_was_killed_is_only_evaluated(place, planned, tmp_path):
    job = planned.jobs[0]
    folder = Path(shutil.copytree(place / "runs" / ONE, tmp_path / ONE))
    for path in ("done.json", "progress.json", "eval/summary.json"):
        (folder / path).unlink()
    assert run_jobs([job], tmp_path) == {ONE: "done"}
    assert len(commands_in(folder / "training.log")) == 1
    assert len(commands_in(folder / "evaluating.log")) == 2
    assert state_of(job, folder).mean_dsc == state_of(job, place / "runs" / ONE).mean_dsc


def test_a_folder_from_another_configuration_is_refused_and_shows_the_difference(place, data, tmp_path, capsys):
    (tmp_path / "grid.yaml").write_text(yaml.safe_dump({**GRID, "settings": {**GRID["settings"], "max_epochs": 2}}))
    for dry in (False, True):
        with pytest.raises(SystemExit) as error:
            run(str(tmp_path / "grid.yaml"), folder=str(place / "runs"), data=str(data), dry_run=dry)
        assert error.value.code == 2
        said = capsys.readouterr().err
        for name in (ONE, TWO, FAILS):
            assert f"{place / 'runs' / name}: `max_epochs` was 1, is 2\n" in said
        assert "Choose another `--folder`" in said
    status(str(tmp_path / "grid.yaml"), folder=str(place / "runs"))
    assert "refused: made from another configuration: `max_epochs` was 1, is 2" in capsys.readouterr().out


def test_the_commands_can_be_looked_at_first(place, data, capsys):
    run(str(place / "grid.yaml"), folder=str(place / "runs"), data=str(data), dry_run=True)
    out = capsys.readouterr().out
    assert f"# {ONE}: done\n# {TWO}: done\n# {FAILS}: failed: " in out
    assert re.search(rf"monai\.bundle run training .*--output_dir {place / 'runs' / FAILS} .*--num_views 1", out)
    assert out.count("monai.bundle run") == 2


# Killed


def test_a_training_that_was_killed_goes_on_where_it_was(data, tmp_path):
    grid = {**GRID, "methods": ["mean_teacher"], "settings": {**LITTLE, "max_epochs": 12}}
    (tmp_path / "grid.yaml").write_text(yaml.safe_dump(grid))
    [job] = plan(parse_grid(grid)).jobs
    folder = tmp_path / "runs" / job.name
    words = ("run", "grid.yaml", "--folder", "runs", "--data", f"acdc={data}")

    process = started(*words, cwd=tmp_path)
    while not (folder / "models" / "last.pt").is_file():
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    assert ended(process)[0] == -signal.SIGKILL
    epoch = on_disk.epochs_done(folder)
    assert 1 <= epoch < 12
    assert str(state_of(job, folder)) == f"interrupted: training, after epoch {epoch} of 12"

    code, out, error = ended(started(*words, cwd=tmp_path))
    assert (code, out.splitlines()[-1]) == (0, "1 cell: 1 done"), error
    first, second = commands_in(folder / "training.log")
    assert second == f"{first} --resume true"
    assert f"resuming after epoch {epoch} of 12" in (folder / "training.log").read_text()
    assert on_disk.epochs_done(folder) == 12


def test_an_interruption_leaves_the_cell_to_be_gone_on_with(tiny, tmp_path):
    [job] = plan(Grid(("tiny",), settings={"seconds": 600}), bundles=tiny).jobs
    folder = tmp_path / "runs" / job.name
    Timer(2, os.kill, (os.getpid(), signal.SIGTERM)).start()
    with pytest.raises(KeyboardInterrupt):
        run_jobs([job], tmp_path / "runs")
    assert str(state_of(job, folder)) == "interrupted: training, after epoch 0 of 4"
    with on_disk.lock_of(folder).acquire(timeout=0):
        assert not (folder / "done.json").exists()


@pytest.mark.usefixtures("listening")
def test_an_interruption_on_the_command_line_says_how_to_go_on(tiny, tmp_path, capsys):
    (tmp_path / "grid.yaml").write_text("datasets: [tiny]\nsettings: {seconds: 600}")
    Timer(2, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(SystemExit) as error:
        run(str(tmp_path / "grid.yaml"), folder=str(tmp_path / "runs"), bundles=str(tiny))
    assert error.value.code == 130
    assert "run the same again" in capsys.readouterr().err


# Locks


def test_a_cell_that_another_process_holds_is_skipped(tiny, tmp_path, capsys):
    [job] = plan(Grid(("tiny",)), bundles=tiny).jobs
    folder = tmp_path / job.name
    folder.mkdir(parents=True)
    with on_disk.lock_of(folder).acquire(timeout=0):
        assert run_jobs([job], tmp_path) == {job.name: "skipped: another process runs it"}
    assert not (folder / "cell.json").exists()
    assert "skipped" in capsys.readouterr().out


def test_a_lock_whose_holder_was_killed_does_not_block(tmp_path):
    code = (
        "import sys, time; from filelock import FileLock; "
        "lock = FileLock(sys.argv[1]); lock.acquire(); print(flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path / ".lock")], stdout=subprocess.PIPE) as holder:
        holder.stdout.readline()
        assert on_disk._is_locked(tmp_path)
        holder.kill()
        holder.wait()
    assert not on_disk._is_locked(tmp_path)


# Refused before anything starts


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shrad": "1/2"}, r"no option `--shrad`\. Did you mean `--shard`\?"),
        ({"shard": "3/2"}, "`shard` must be i/n"),
        ({"data": "nowhere"}, "the data of `acdc` are not at .*nowhere: say where with `--data acdc=...`"),
        ({"data": "acd=x"}, r"`acd` in `data` is no dataset of this grid\. Did you mean `acdc`\?"),
        ({"bundles": "nowhere"}, "there is no bundle `acdc` in .*nowhere"),
    ],
    ids=str,
)
def test_an_option_that_is_wrong_is_refused_before_anything_is_written(tmp_path, capsys, options, message):
    (tmp_path / "grid.yaml").write_text("datasets: [acdc]")
    with pytest.raises(SystemExit) as error:
        run(str(tmp_path / "grid.yaml"), folder=str(tmp_path / "runs"), **options)
    assert error.value.code == 2
    assert re.search(message, capsys.readouterr().err)
    assert not (tmp_path / "runs").exists()


def test_a_grid_is_refused_on_the_command_line_without_a_traceback(tmp_path, capsys):
    for function in (run, status):
        with pytest.raises(SystemExit) as error:
            function("nowhere.yaml", folder=str(tmp_path))
        assert error.value.code == 2
        assert capsys.readouterr().err.startswith("there is no grid at ")
        with pytest.raises(SystemExit):
            function("a.yaml", "b.yaml", folder=str(tmp_path))
        assert capsys.readouterr().err == "one grid at a time: what is 'b.yaml'?\n"


def test_a_grid_is_not_for_torchrun(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    (tmp_path / "grid.yaml").write_text("datasets: [acdc]")
    with pytest.raises(SystemExit):
        run(str(tmp_path / "grid.yaml"), folder=str(tmp_path / "runs"))
    assert capsys.readouterr().err.endswith("start one without `torchrun`. Processes share a grid by `--shard`.\n")


def test_a_grid_can_be_run_beside_the_main_thread(tiny, tmp_path):
    [job] = plan(Grid(("tiny",), settings={"works": False}), bundles=tiny).jobs
    with ThreadPoolExecutor(1) as pool:
        outcomes = pool.submit(run_jobs, [job], tmp_path).result()
    assert outcomes[job.name].startswith("failed: ")
    assert state_of(job, tmp_path / job.name).name == "failed"


def test_several_datasets_are_named_with_their_folders(tiny, tmp_path, capsys):
    for path in (tiny / "tiny").rglob("*.json"):
        write(tiny / "other" / path.relative_to(tiny / "tiny"), json.loads(path.read_text()))
    (tmp_path / "grid.yaml").write_text("datasets: [tiny, other]")
    where = {"folder": str(tmp_path / "runs"), "bundles": str(tiny), "dry_run": True}
    for given in ("tiny=a b,other=c", ("tiny=a b", "other=c")):  # fire makes a tuple of some
        run(str(tmp_path / "grid.yaml"), data=given, **where)
        out = capsys.readouterr().out
        assert f"--dataset_dir '{Path('a b').absolute()}'" in out
        assert f"--dataset_dir {Path('c').absolute()}" in out
    with pytest.raises(SystemExit):
        run(str(tmp_path / "grid.yaml"), data="a", **where)
    assert "must name the datasets: tiny=...,other=..." in capsys.readouterr().err


def test_states_of_a_grid_that_was_never_run(tiny, tmp_path, capsys):
    (tmp_path / "grid.yaml").write_text("datasets: [tiny]\naxes: {seed: [0, 1, 2]}")
    status(str(tmp_path / "grid.yaml"), folder=str(tmp_path / "runs"), bundles=str(tiny), shard="1/2")
    assert capsys.readouterr().out.splitlines()[-1] == "2 cells: 2 waiting"
    assert not (tmp_path / "runs").exists()


# Time left


def test_the_time_left_is_that_of_cells_of_the_kind():
    jobs = plan(Grid(("acdc",), ("dan", "ua_mt"), axes={"seed": (0, 1)})).jobs
    names = [job.name for job in jobs]
    assert seconds_left(jobs, {}) is None
    assert seconds_left(jobs[1:], {names[0]: 10.0}) == 30.0
    assert seconds_left(jobs[1:], {names[0]: 10.0, names[2]: 50.0}) == 10 + 50 + 50
    assert seconds_left([], {names[0]: 10.0}) == 0


def test_another_grid_in_the_same_folder_is_refused_if_it_means_another_cell(tiny, tmp_path):
    [job] = plan(Grid(("tiny",)), bundles=tiny).jobs
    [other] = plan(Grid(("tiny",), settings={"ratio": 0.25}), bundles=tiny).jobs
    folder = tmp_path / job.name
    folder.mkdir(parents=True)
    on_disk.describe(job, folder)
    with pytest.raises(GridError, match=r"`ratio` was 0\.5, is 0\.25"):
        run_jobs([other], tmp_path)
