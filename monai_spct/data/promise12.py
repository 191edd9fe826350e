"""Cases of a PROMISE12 folder, as it is downloaded."""

import re
from pathlib import Path

from monai_spct.data.folder import files_below, try_phantom
from monai_spct.data.metaimage import open_metaimage

__all__ = ["promise12_cases"]

_CASE = re.compile(r"(?P<case>Case\d+)(?P<truth>_segmentation)?\.(?i:mhd)")


def promise12_cases(folder: str | Path) -> list[dict[str, str]]:
    """List the cases of a PROMISE12 folder.

    The folder holds the files, or folders that hold them, as the parts of the download do::

        TrainingData_Part1/Case00.mhd                   header of the image
        TrainingData_Part1/Case00.raw                   its voxels, or Case00.zraw
        TrainingData_Part1/Case00_segmentation.mhd      label: 0 background, 1 prostate
        TrainingData_Part1/Case00_segmentation.raw

    Links are followed; hidden files and files with other names are ignored.

    Args:
        folder: where the data is.

    Returns:
        One entry per case, sorted by ``case``, all values strings: ``patient`` and ``case`` (both "Case00"), ``image``
        and ``label`` (absolute paths; no ``label`` without a segmentation, as for the test cases of the challenge).

    Raises:
        FileNotFoundError: if the folder is missing or holds no cases.
        ValueError: if a segmentation lacks its image, a case is there twice, a header cannot be read, or its voxels'
            file is missing or has another size; names all.

    Source:
        Litjens et al., *Evaluation of prostate segmentation algorithms for MRI: the PROMISE12 challenge*, Medical Image
        Analysis 2014.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from monai_spct.data import promise12_cases, write_promise12_phantom
        >>> with TemporaryDirectory() as parent:
        ...     cases = promise12_cases(write_promise12_phantom(f"{parent}/promise12", patients=2))
        >>> [case["case"] for case in cases], Path(cases[0]["label"]).name
        (['Case00', 'Case01'], 'Case00_segmentation.mhd')
    """
    root = Path(folder).expanduser().absolute()
    images: dict[str, Path] = {}
    labels: dict[str, Path] = {}
    problems = []
    for path in files_below(root) if root.is_dir() else []:
        match = _CASE.fullmatch(path.name)
        if match is None:
            continue
        files, case = labels if match["truth"] else images, match["case"]
        if case in files:
            problems.append(f"{case} is there twice: {files[case]} and {path}; name the folder of one.")
        files[case] = path
        try:
            open_metaimage(path)
        except ValueError as error:
            problems.append(str(error))
    problems += [f"label without its image: {labels[case]}." for case in sorted(labels.keys() - images.keys())]
    if problems:
        raise ValueError("\n".join(problems))
    if not images:
        raise FileNotFoundError(
            f"no PROMISE12 cases in {root} ({'it holds none' if root.is_dir() else 'there is no such folder'}).\n"
            "It should hold CaseNN.mhd and CaseNN.raw with CaseNN_segmentation.mhd and CaseNN_segmentation.raw, or "
            "the TrainingData_PartN folders that do.\n"
            "PROMISE12 comes from https://promise12.grand-challenge.org (its terms apply).\n"
            f"{try_phantom('prostate')}"
        )
    return [
        {"patient": case, "case": case, "image": str(images[case])}
        | ({"label": str(labels[case])} if case in labels else {})
        for case in sorted(images)
    ]
