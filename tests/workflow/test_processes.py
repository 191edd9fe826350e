"""Several processes that train together, or know nothing of each other."""

import json

import pytest
from monai.bundle import ConfigParser

from monai_spct.workflow import bundles_folder, check_settings, join_processes, refuse_processes_apart

PROCESS = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
CONFIGS = bundles_folder() / "acdc" / "configs"


@pytest.fixture
def several(monkeypatch):
    for name, value in PROCESS.items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("several")
def test_processes_need_torchrun_and_a_gpu_each(monkeypatch):
    for device in ("cuda", "cuda:99"):
        with pytest.raises(ValueError, match=f"`device` must be a GPU of its own .*, got {device} in process 1:"):
            join_processes(device)
    with pytest.raises(ValueError, match=r"`timeout_minutes` must be positive, got 0"):
        join_processes("cpu", timeout_minutes=0)
    monkeypatch.delenv("LOCAL_RANK")
    with pytest.raises(ValueError, match=r"by `torchrun`, .*; missing here: LOCAL_RANK\. .*leave `multi_gpu_train"):
        join_processes("cpu")


@pytest.mark.parametrize("count", ["1", ""])
def test_a_process_alone_may_go_on(monkeypatch, count):
    monkeypatch.setenv("WORLD_SIZE", count)
    refuse_processes_apart("a.json")


@pytest.mark.usefixtures("several")
@pytest.mark.parametrize(
    ("name", "remedy"),
    [("train", "add `multi_gpu_train.json` as the last config, or start one"), ("evaluate", "start one")],
)
def test_each_config_refuses_to_be_run_by_several_processes_apart(name, remedy):
    assert "$workflow.check_settings()" in json.loads((CONFIGS / f"{name}.json").read_text())["initialize"]
    parser = ConfigParser(ConfigParser.load_config_file(CONFIGS / f"{name}.json"))
    with pytest.raises(ValueError, match=f"`WORLD_SIZE` is 4, .* of the others: {remedy} without `torchrun`"):
        check_settings(parser, CONFIGS)


@pytest.mark.usefixtures("several")
def test_those_that_will_join_each_other_may_go_on():
    files = [CONFIGS / "train.json", CONFIGS / "multi_gpu_train.json"]
    check_settings(ConfigParser(ConfigParser.load_config_files(files)), CONFIGS)
