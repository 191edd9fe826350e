"""Training in several processes."""

from __future__ import annotations

import logging
import os
from datetime import timedelta

import ignite.distributed as idist
import torch
from torch import distributed as dist
from torch import nn

from monai_spct.functional.checks import positive

__all__ = ["join_processes", "refuse_processes_apart", "synchronize_batch_norms"]


def join_processes(device: torch.device | str, *, timeout_minutes: float = 30) -> None:
    """Join the other processes that ``torchrun`` has started, to train together.

    GPUs exchange gradients by NCCL, CPUs by Gloo. Only the first process logs more than warnings and errors.
    ``ignite.distributed.finalize()`` parts them again.

    Args:
        device: of this process: ``cuda:0``, ``cuda:1``, ..., or ``cpu``.
        timeout_minutes: how long a process waits for another one before it fails.

    Raises:
        ValueError: without ``torchrun``, without a GPU for this process, or for a ``timeout_minutes`` of 0 or less.

    Example:
        >>> from monai_spct.workflow import join_processes
        >>> join_processes("cpu")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        ValueError: several processes are started by `torchrun`, which sets `RANK`, ...
    """
    device = torch.device(device)
    variables = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
    if missing := [name for name in variables if name not in os.environ]:
        raise ValueError(
            f"several processes are started by `torchrun`, which sets `{'`, `'.join(variables)}`; missing here: "
            f"{', '.join(missing)}. For one process leave `multi_gpu_train.json` out."
        )
    timeout = timedelta(minutes=positive("timeout_minutes", timeout_minutes))
    if device.type == "cuda":
        if device.index is None or device.index >= torch.cuda.device_count():
            raise ValueError(
                f"`device` must be a GPU of its own for each process, of the {torch.cuda.device_count()} that this "
                f"machine has, got {device} in process {os.environ['LOCAL_RANK']}: start as many as there are GPUs."
            )
        torch.cuda.set_device(device)
    if "SLURM_JOB_ID" in os.environ:  # there ignite asks SLURM, which knows the jobs and not the processes of a job
        os.environ["SLURM_LOCALID"] = os.environ["LOCAL_RANK"]
    if not dist.is_initialized():
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=timeout)
    idist.sync()  # all at once, since ignite's first look at the processes is an exchange among them
    if idist.get_rank() > 0:
        logging.disable(logging.INFO)


def refuse_processes_apart(overlay: str | None = None) -> None:
    """Refuse to be one of several processes of ``torchrun`` that would write over each other's files.

    Args:
        overlay: name of the config with which they work together, if there is one.

    Raises:
        ValueError: when this process has not joined the others.

    Example:
        >>> from monai_spct.workflow import refuse_processes_apart
        >>> refuse_processes_apart("multi_gpu_train.json")  # one process
    """
    count = os.environ.get("WORLD_SIZE", "")
    if not count.isdecimal() or int(count) < 2 or (dist.is_available() and dist.is_initialized()):
        return
    remedy = f"add `{overlay}` as the last config, or start one" if overlay else "start one"
    raise ValueError(
        f"`WORLD_SIZE` is {count}, so this is one of several processes, and each of them would do all of the work and "
        f"write over the files of the others: {remedy} without `torchrun`."
    )


def synchronize_batch_norms(network: nn.Module) -> None:
    """Make batch normalizations ``torch.nn.SyncBatchNorm``, in place: the batches of all processes count as one.

    Args:
        network: the students, on their GPU.

    Raises:
        ValueError: when the network is not on a GPU.

    Example:
        >>> import torch
        >>> from monai_spct.workflow import synchronize_batch_norms
        >>> synchronize_batch_norms(torch.nn.Sequential(torch.nn.BatchNorm2d(1)))  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        ValueError: `sync_batch_norm` needs GPUs: torch exchanges the statistics of batches between them alone, ...
    """
    devices = {str(parameter.device) for parameter in network.parameters() if parameter.device.type != "cuda"}
    if devices:
        raise ValueError(
            "`sync_batch_norm` needs GPUs: torch exchanges the statistics of batches between them alone, and the "
            f"network is on {', '.join(sorted(devices))}."
        )
    nn.SyncBatchNorm.convert_sync_batchnorm(network)  # type: ignore[no-untyped-call]
