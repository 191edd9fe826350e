"""What only a GPU can show. The CPU's numbers are the reference."""

from dataclasses import replace

import pytest
import torch

from monai_spct.data import write_acdc_phantom
from monai_spct.networks import ENet
from tests.benchmarks.contenders import Task, bundle, project

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data") / "acdc"
    return str(write_acdc_phantom(folder, patients=12, size=(64, 72), spacing=(2.0, 2.2)))


def losses(task, folder):
    trainer = project(bundle(task, str(folder)))
    seen = []

    def note(engine):
        seen.append(engine.state.output["loss"].detach().float())

    trainer.add_event_handler("ITERATION_COMPLETED", note)
    trainer.run()
    return torch.stack(seen).cpu()


def enet_without_dropout(spatial_dims, in_channels, out_channels):
    """Dropout draws from another generator on each device, and otherwise in compiled code."""
    return ENet(spatial_dims, in_channels, out_channels, dropout=(0.0, 0.0))


NO_DROPOUT = "tests.bundles.test_cuda.enet_without_dropout"


def test_a_gpu_gives_the_losses_of_the_cpu(data, tmp_path):
    cpu, gpu = (
        losses(Task(data, device, size=64, iterations=2, network=NO_DROPOUT), tmp_path / device)
        for device in ("cpu", "cuda")
    )
    torch.testing.assert_close(gpu, cpu, rtol=1e-3, atol=1e-4)  # float32 sums in another order, and TF32 convolutions


def test_mixed_precision_trains(data, tmp_path):
    full, mixed = (losses(Task(data, "cuda", size=64, iterations=4, amp=amp), tmp_path / str(amp)) for amp in (0, 1))
    torch.testing.assert_close(mixed, full, rtol=5e-2, atol=1e-2)


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_compiling_leaves_the_losses_as_they_are(data, tmp_path, mode):
    task = Task(data, "cuda", size=64, iterations=6, network=NO_DROPOUT)
    eager = losses(task, tmp_path / "eager")
    compiled = losses(replace(task, compile=True, compile_mode=mode), tmp_path / "compiled")
    torch.testing.assert_close(compiled, eager, rtol=1e-3, atol=1e-3)


def test_deterministic_mode_repeats_itself(data, tmp_path, monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    try:
        first, second = (losses(Task(data, "cuda", size=64, iterations=4), tmp_path / name) for name in "ab")
    finally:
        torch.use_deterministic_algorithms(False)
    assert torch.equal(first, second)
