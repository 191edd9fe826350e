"""A look at all data before a training, from the command line: ``python -m monai_spct.check``."""

from __future__ import annotations

import sys
from collections import Counter
from typing import Any

from monai.bundle import ConfigParser

from monai_spct.bundles import flag, in_words, refuse_unknown_overrides
from monai_spct.data.preflight import check_split

__all__ = ["check"]

_NEEDED = ("split", "in_channels", "out_channels")


def check(*more: object, config_file: Any = None, voxels: Any = True, **settings: Any) -> None:
    """Look at all cases of a training, and list what is wrong with them.

    The exit status is 0 when there are no errors, 1 when there are, and 2 when the command cannot be carried out.

    Args:
        more: is refused.
        config_file: of the training, one or a list, as for `python -m monai.bundle run training`.
        voxels: whether to read all voxels, or headers alone.
        settings: those of the training, such as `--dataset_dir` and `--datalist`.
    """
    try:
        if more or not config_file:
            raise ValueError(
                "give `--config_file` and settings of a training alone, got "
                + (f"{' '.join(map(str, more))} besides." if more else "none.")
            )
        files = list(config_file) if isinstance(config_file, list | tuple) else [config_file]
        refuse_unknown_overrides(["--config_file", str(files), *(f"--{name}" for name in settings)])
        read_voxels = flag(voxels)
        parser = ConfigParser()
        parser.read_config(files)
        if missing := [name for name in _NEEDED if name not in parser]:
            raise ValueError(f"`config_file` must be that of a training, which has {', '.join(missing)}, got {files}.")
        parser.update(settings)
        channels, classes = (parser.get_parsed_content(name) for name in ("in_channels", "out_channels"))
    except Exception as error:  # any that an expression of a config may raise
        sys.stderr.write(f"{in_words(error)}\n")
        sys.exit(2)
    try:
        split = parser.get_parsed_content("split")
    except Exception as error:
        # files that a list names are missing, or the lists contradict each other: there are no cases to look at yet
        sys.stdout.write(f"error: {in_words(error)}\n1 error: no files were looked at\n")
        sys.exit(1)
    found = check_split(split, num_classes=classes, in_channels=channels, voxels=read_voxels, progress=True)
    lines = [found.summary, "", *map(str, found.findings)]
    sys.stdout.write(
        "\n".join([*lines, _count(Counter(finding.level for finding in found.findings), read_voxels)]) + "\n"
    )
    sys.exit(1 if found.errors else 0)


def _count(levels: Counter[Any], voxels: bool) -> str:
    counted = [f"{number} {level}{'' if number == 1 else 's'}" for level, number in levels.items()]
    looked_at = "headers and voxels" if voxels else "headers alone"
    return f"{', '.join(counted) or 'nothing found'}: {looked_at} were looked at"


if __name__ == "__main__":
    import fire

    fire.Fire(check)
