"""The map is the entropy that one would work out by hand, voxel by voxel, and keeps the geometry of its vote."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from monai.data import MetaTensor
from monai.transforms import Compose

from monai_spct.networks import Ensemble
from monai_spct.transforms import VoteEntropyd


def entropy_by_hand(probs: torch.Tensor) -> torch.Tensor:
    result = torch.zeros(1, *probs.shape[1:], dtype=torch.float64)
    for place in np.ndindex(*probs.shape[1:]):
        column = [float(p) for p in probs[(slice(None), *place)]]
        result[(0, *place)] = -sum(p * math.log(p) for p in column if p > 0)
    return result


def uncertainty(probs: torch.Tensor) -> torch.Tensor:
    return VoteEntropyd("pred")({"pred": probs})["uncertainty"]


probabilities = st.builds(
    lambda seed, classes, shape, sharpness: torch.softmax(
        sharpness * torch.randn(classes, *shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64), 0
    ),
    seed=st.integers(0, 2**31),
    classes=st.integers(1, 6),
    shape=st.sampled_from([(5,), (3, 7), (3, 1, 2)]),
    sharpness=st.sampled_from([0.0, 0.1, 1.0, 30.0, 1e4]),
)


@settings(max_examples=60, deadline=None)
@given(probs=probabilities)
def test_the_map_agrees_with_a_sum_by_hand(probs):
    torch.testing.assert_close(uncertainty(probs), entropy_by_hand(probs), rtol=1e-10, atol=1e-12)


@settings(max_examples=60, deadline=None)
@given(probs=probabilities)
def test_the_map_lies_between_zero_and_log_c(probs):
    values = uncertainty(probs)
    assert values.shape == (1, *probs.shape[1:])
    assert values.min() >= 0
    assert values.max() <= math.log(len(probs)) + 1e-9


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_probabilities_that_underflow_stay_finite(dtype):
    probs = torch.tensor([1.0, 1e-45, 0.0, 1e-7], dtype=dtype).reshape(4, 1, 1)
    values = uncertainty(probs)
    assert values.dtype == dtype
    assert values.isfinite().all()
    assert 0 <= values.item() < 1e-4


class Says(torch.nn.Module):
    """A network that says the same of any image."""

    def __init__(self, *logits: float) -> None:
        super().__init__()
        self.logits = torch.tensor(logits, dtype=torch.float32)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.logits.reshape(1, -1, 1, 1).expand(len(image), -1, *image.shape[2:])


def test_networks_that_contradict_each_other_are_as_uncertain_as_their_vote():
    image = torch.rand(1, 1, 4, 4)
    agreed, contradicting = Ensemble([Says(50, 0), Says(50, 0)]).eval(), Ensemble([Says(50, 0), Says(0, 50)]).eval()
    assert uncertainty(agreed(image)[0]).max() < 1e-6
    torch.testing.assert_close(uncertainty(contradicting(image)[0]), torch.full((1, 4, 4), math.log(2)))


def test_the_map_keeps_the_geometry_of_the_vote():
    affine = torch.diag(torch.tensor([-1.25, -1.25, 10, 1], dtype=torch.float64))
    probs = MetaTensor(torch.rand(4, 5, 6, 3).softmax(0), affine=affine, meta={"filename_or_obj": "a.nii.gz"})
    values = uncertainty(probs)
    assert values.shape == (1, 5, 6, 3)
    torch.testing.assert_close(values.affine, affine)
    assert values.meta["filename_or_obj"] == "a.nii.gz"


def test_only_the_map_is_new():
    data = {"pred": torch.rand(4, 3, 3).softmax(0), "image": torch.rand(1, 3, 3), "case": "a"}
    before = {key: value.clone() if isinstance(value, torch.Tensor) else value for key, value in data.items()}
    result = Compose([VoteEntropyd("pred", output_key="map")])(data)
    assert set(result) == {*data, "map"}
    assert set(data) == set(before)
    assert all(result[key] is data[key] for key in data)
    assert torch.equal(data["pred"], before["pred"])
