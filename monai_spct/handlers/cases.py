"""Case names of the volumes that an evaluator predicts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from monai_spct.data.case_names import case_name
from monai_spct.files.paths import can_be_called

__all__ = ["CaseNames", "source_of"]


def source_of(image: Tensor) -> str | None:
    """The file of an image, if it names one."""
    source = getattr(image, "meta", {}).get("filename_or_obj")
    return str(source) if source else None


class CaseNames:
    """The entry ``case`` in the batch, or else the name of the image file; a volume that has neither is numbered.

    Example:
        >>> import torch
        >>> from monai.data import MetaTensor
        >>> from monai_spct.handlers.cases import CaseNames
        >>> names, image = CaseNames(), MetaTensor(torch.ones(1, 8, 8, 4), meta={"filename_or_obj": "a/image.nii.gz"})
        >>> names({"case": "patient001"}, image), names({}, image), names({}, torch.ones(1, 8, 8, 4))
        ('patient001', 'image', 'case003')
    """

    def __init__(self) -> None:
        self._sources: dict[str, str] = {}

    def forget(self) -> None:
        """Begin a run."""
        self._sources.clear()

    def __len__(self) -> int:
        """How many have a name so far."""
        return len(self._sources)

    def __call__(self, case: Mapping[str, Any], image: Tensor) -> str:
        """The name of the volume ``image`` with the part ``case`` of the batch; two of one name are refused."""
        source = source_of(image) or str(case.get("case") or f"case{len(self._sources) + 1:03d}")
        name = str(case.get("case") or case_name(source))
        if not can_be_called(name):
            raise ValueError(f"`case` must be the name of a file, got {name!r}.")
        if self._sources.setdefault(name, source) != source:
            raise ValueError(
                f"two images are called {name!r}: {self._sources[name]} and {source}. Cases may have an entry `case` "
                "that tells them apart."
            )
        return name
