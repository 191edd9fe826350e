"""``torchrun``, as users start it."""

import os
import subprocess
import sys
from pathlib import Path

import monai_spct


def torchrun(*words: object, gpus: bool = False) -> subprocess.CompletedProcess[str]:
    """Two processes, as ``torchrun --standalone --nproc_per_node=2`` starts them; by default without GPUs."""
    parent = str(Path(monai_spct.__file__).parents[1])
    paths = os.pathsep.join(path for path in (parent, os.environ.get("PYTHONPATH")) if path)
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    # the second process would find no GPU of its own where there is one
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths, **({} if gpus else {"CUDA_VISIBLE_DEVICES": ""})}
    done = [sys.executable, *launcher, *map(str, words)]
    return subprocess.run(done, capture_output=True, text=True, env=env, timeout=600)
