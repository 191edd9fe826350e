"""Networks and their votes, exported: the same numbers for images of any size.

ENet, which takes the longest, is exported by the commands of `tests/bundles/test_verification.py`.
"""

from functools import partial

import pytest
import torch

from monai_spct.networks import SegNet, UNet

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from tests.benchmarks import export

SIZES = [(1, 64, 48), (3, 37, 51), (1, 5, 3)]


@pytest.mark.parametrize("network", [UNet, SegNet], ids=lambda network: network.__name__)
@pytest.mark.parametrize("views", [1, 2, 3])
def test_a_script_agrees_with_the_network(network, views):
    ensemble = export.settled(partial(network, features=8), views)
    assert max(export.differences(ensemble, export.torchscript(ensemble), SIZES)) <= 1e-5


@pytest.mark.parametrize(("network", "views"), [(UNet, 2), (SegNet, 1)], ids=["UNet", "SegNet"])
def test_onnx_agrees_with_the_network(network, views):
    ensemble = export.settled(partial(network, features=4), views)
    assert max(export.differences(ensemble, export.onnx_with_free_sizes(ensemble), SIZES)) <= 1e-5


def test_the_benchmark_writes_what_it_prints(tmp_path, capsys):
    words = "--networks U-Net --formats TorchScript --views 1 --features 4 --output"
    result = export.main([*words.split(), str(tmp_path / "export.json")])
    [row] = result["rows"]
    assert max(row["differences"]) <= 1e-5
    assert "| U-Net | 1 | TorchScript |" in capsys.readouterr().out
    assert torch.__version__ in (tmp_path / "export.json").read_text()
