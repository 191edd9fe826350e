"""Several processes that train together, or know nothing of each other."""

import json

import pytest
import torch
from monai.bundle import ConfigParser

from monai_spct.workflow import bundles_folder, check_settings, join_processes, refuse_processes_apart

PROCESS = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
CONFIGS = bundles_folder() / "acdc" / "configs"


@pytest.fixture
def several(monkeypatch):
    for name, value in PROCESS.items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("several")
def test_several_processes_need_torchrun(monkeypatch):
    monkeypatch.delenv("LOCAL_RANK")
    with pytest.raises(ValueError, match=r"by `torchrun`, .*; missing here: LOCAL_RANK\. .*leave `multi_gpu_train"):
        join_processes("cpu")


@pytest.mark.usefixtures("several")
@pytest.mark.parametrize("device", ["cuda", "cuda:99"])
def test_each_process_needs_a_gpu_of_its_own(device):
    message = rf"`device` must be a GPU of its own .* the {torch.cuda.device_count()} .*, got {device} in process 1:"
    with pytest.raises(ValueError, match=message):
        join_processes(device)


@pytest.mark.usefixtures("several")
def test_a_wait_for_nothing_is_refused():
    with pytest.raises(ValueError, match=r"`timeout_minutes` must be positive, got 0"):
        join_processes("cpu", timeout_minutes=0)


@pytest.mark.parametrize("count", ["1", "", None])
def test_a_process_alone_may_go_on(monkeypatch, count):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    if count is not None:
        monkeypatch.setenv("WORLD_SIZE", count)
    refuse_processes_apart("a.json")


@pytest.mark.usefixtures("several")
@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("train", "add `multi_gpu_train.json` as the last config, or start one"),
        ("evaluate", "start one"),
        ("inference", "start one"),
    ],
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
