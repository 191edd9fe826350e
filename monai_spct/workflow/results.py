"""What a training leaves, and how it is evaluated."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import ignite.distributed as idist
import yaml

from monai_spct.workflow.command_line import config_files

__all__ = ["tell_results"]

# what an overlay may set without a consequence for the evaluation of what it trains
_OF_A_TRAINING = {"num_views", "device", "imports", "initialize"}


def tell_results(output_dir: str | Path, argv: Sequence[str] | None = None) -> None:
    """Write on the screen what a training left where, and the command that evaluates it. Of several processes one does.

    The command has those config files and options of the training that change an evaluation. Overlays for methods do
    not: the number of networks is read from the weights.

    Args:
        output_dir: of the training.
        argv: the command line; this process's by default. One without ``--config_file`` is not continued.

    Example:
        >>> from monai_spct.workflow import bundles_folder, tell_results
        >>> config = str(bundles_folder() / "acdc" / "configs" / "train.json")
        >>> options = ["--dataset_dir", "/data/ACDC", "--num_validation", "5", "--max_epochs", "20"]
        >>> argv = ["run", "training", "--config_file", config, *options]
        >>> tell_results("runs/first", argv)  # doctest: +ELLIPSIS
        weights:      runs/first/models/model.pt
        curves:       runs/first/eval/curves.png
        TensorBoard:  tensorboard --logdir runs/first/eval
        evaluate:     python -m monai.bundle run evaluating --config_file ...evaluate.json --dataset_dir /data/ACDC ...
    """
    if idist.get_rank() > 0:
        return
    argv, folder = list(sys.argv if argv is None else argv), Path(output_dir)
    lines = [
        f"weights:      {folder / 'models' / 'model.pt'}",
        f"curves:       {folder / 'eval' / 'curves.png'}",
        f"TensorBoard:  {shlex.join(['tensorboard', '--logdir', str(folder / 'eval')])}",
    ]
    if command := _evaluation(argv):
        lines.append(f"evaluate:     {shlex.join(command)}")
    sys.stdout.write("\n".join(lines) + "\n")


def _evaluation(argv: Sequence[str]) -> list[str]:
    """The command that evaluates what the command line of a training made; nothing where that is not known."""
    files = config_files(argv)
    evaluate = files[0].with_name("evaluate.json") if files else None
    if evaluate is None or not evaluate.is_file():
        return []
    training, known = (set(json.loads(path.read_text())) for path in (files[0], evaluate))
    kept = [evaluate]
    for overlay in files[1:]:
        keys = {key.lstrip("+").split("#")[0] for key in yaml.safe_load(overlay.read_text())}
        if keys & known - _OF_A_TRAINING:
            kept.append(overlay)
            known |= keys - training  # a setting of the overlay's own
    words: list[str] = []
    for position, argument in enumerate(argv):
        name, equals, _ = argument.partition("=")
        if name.startswith("-") and name.lstrip("-").split("#")[0] in known - {"num_views"}:
            words += [argument] if equals else argv[position : position + 2]
    # with double quotes, around which a shell takes single ones
    given = str(kept[0]) if len(kept) == 1 else json.dumps([str(path) for path in kept])
    return ["python", "-m", "monai.bundle", "run", "evaluating", "--config_file", given, *words]
