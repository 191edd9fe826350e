"""Whatever the gray values are, a network sees numbers from 0 to 1."""

import pytest
import torch
from monai.bundle import ConfigParser
from monai.transforms import Compose

from monai_spct.workflow import bundles_folder

CONFIGS = [
    f"{bundle}/configs/{name}.json"
    for bundle in ("acdc", "prostate", "spleen")
    for name in ("train", "evaluate", "inference")
]


@pytest.mark.filterwarnings("ignore:Divide by zero")  # MONAI's, which names no image; `CheckCased` does
@pytest.mark.parametrize("config", CONFIGS)
def test_a_network_sees_values_from_0_to_1(config):
    parser = ConfigParser()
    parser.read_config(bundles_folder() / config)
    intensity = Compose(parser.get_parsed_content("intensity"))
    image = torch.zeros(2, 80, 80, 8)
    image.view(-1)[::200] = 1000  # 0.5 % of the voxels: the 99th percentile is 0
    assert intensity({"image": image})["image"].unique().tolist() == [0, 1]
    image = -5 + torch.rand(1, 80, 80, 8) ** 3 * 10
    image.view(-1)[0] = 1e6
    scaled = intensity({"image": image})["image"]
    assert (scaled.min(), scaled.max()) == (0, 1)
