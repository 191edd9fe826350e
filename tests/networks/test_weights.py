"""Weights come back exactly as they were saved, and a file that does not fit is refused by name."""

from pathlib import Path

import pytest
import torch
from torch import nn

from monai_spct.networks import build_ensemble, count_networks, frozen_copy, load_weights


def conv() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4))


def saved(path: Path, state: object) -> Path:
    torch.save(state, path)
    return path


# How many networks


@pytest.mark.parametrize("num_views", [1, 2, 3, 12])
def test_the_file_says_how_many_networks_there_are(tmp_path, num_views):
    path = saved(tmp_path / "model.pt", build_ensemble(conv, num_views=num_views, seed=0).state_dict())
    assert count_networks(path) == num_views
    assert count_networks(str(path), default=5) == num_views


def test_before_a_training_the_number_is_the_default(tmp_path):
    assert count_networks(tmp_path / "model.pt") == 2
    assert count_networks(tmp_path / "model.pt", default=4) == 4
    assert count_networks(tmp_path) == 2  # a folder is no file


# The way in


def test_loaded_weights_are_those_that_were_saved(tmp_path):
    ensemble = build_ensemble(conv, num_views=2, seed=0)
    ensemble.train()(torch.rand(3, 1, 8, 8))  # moves the running statistics
    path = saved(tmp_path / "model.pt", frozen_copy(ensemble).state_dict())
    other = build_ensemble(conv, num_views=2, seed=1)
    assert load_weights(other, path) is other
    for name, value in ensemble.state_dict().items():
        assert torch.equal(other.state_dict()[name], value), name
    images = torch.rand(2, 1, 8, 8)
    assert torch.equal(other.eval()(images), ensemble.eval()(images))


@pytest.mark.parametrize("value", [torch.nan, torch.inf], ids=str)
def test_weights_that_are_not_finite_are_refused_by_name(tmp_path, value):
    ensemble = build_ensemble(conv, num_views=2, seed=0)
    ensemble.networks[1][1].running_var[2] = value
    path = saved(tmp_path / "model.pt", ensemble.state_dict())
    message = r"model\.pt holds weights that are not finite, the first of them in networks\.1\.1\.running_var"
    with pytest.raises(ValueError, match=message):
        load_weights(build_ensemble(conv, num_views=2, seed=1), path)


def test_without_a_file_the_message_says_where_it_was_looked_for_and_what_to_do(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError) as error:
        load_weights(conv(), "models/model.pt")
    for part in (str(tmp_path / "models" / "model.pt"), "train first", "--ckpt_path"):
        assert part in str(error.value)


@pytest.mark.parametrize(
    "state",
    [
        build_ensemble(conv, num_views=3, seed=0).state_dict(),
        build_ensemble(lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)), num_views=2, seed=0).state_dict(),
        {},
    ],
    ids=["more networks", "other classes", "nothing"],
)
def test_weights_of_another_network_are_refused_by_the_name_of_their_file(tmp_path, state):
    path = saved(tmp_path / "model.pt", state)
    with pytest.raises(ValueError, match="holds the weights of another network than this configuration makes") as error:
        load_weights(build_ensemble(conv, num_views=2, seed=0), path)
    assert str(path) in str(error.value)
    assert "networks." in str(error.value.__cause__)  # torch's list of what differs is not lost


class Stranger:
    """What a file of weights must not hold: reading it would run code."""


@pytest.mark.parametrize("read", [count_networks, lambda path: load_weights(conv(), path)], ids=["count", "load"])
@pytest.mark.parametrize("kind", ["text", "empty", "truncated", "object"])
def test_a_file_that_is_damaged_or_no_weights_is_refused_by_name(tmp_path, read, kind):
    path = saved(tmp_path / "model.pt", conv().state_dict())
    if kind == "object":
        saved(path, {"network": Stranger()})
    else:
        content = {"text": b"<html>404</html>", "empty": b"", "truncated": path.read_bytes()[:-200]}[kind]
        path.write_bytes(content)
    with pytest.raises(ValueError, match=r"is not a checkpoint, or is damaged") as error:
        read(path)
    assert str(path) in str(error.value)
