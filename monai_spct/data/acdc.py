"""Cases of an ACDC folder, as it is downloaded."""

import re
from pathlib import Path

from monai_spct.data.folder import try_phantom

__all__ = ["acdc_cases"]

# also keeps out `._patient001_frame01.nii.gz` (resource forks) and `patient001_4d.nii.gz` (the whole cine)
_FRAME = re.compile(r"(?P<patient>patient\d+)_frame(?P<frame>\d+)(?P<truth>_gt)?(?i:\.nii(\.gz)?)")
_PATIENT = re.compile(r"patient\d+")
_PHASE = re.compile(r"^[ \t]*(?P<phase>ED|ES)[ \t]*:[ \t]*(?P<frame>[0-9]{1,9})[ \t]*\r?$", re.MULTILINE)


def acdc_cases(folder: str | Path) -> list[dict[str, str]]:
    """List the annotated frames of an ACDC folder.

    The folder holds ``training/`` as the official archive does, or the patients' folders themselves::

        training/patient001/Info.cfg
        training/patient001/patient001_4d.nii.gz            never listed
        training/patient001/patient001_frame01.nii.gz       image
        training/patient001/patient001_frame01_gt.nii.gz    label: 0 background, 1 RV, 2 myocardium, 3 LV

    Plain ``.nii`` files are read too, unless the ``.nii.gz`` is also there. Other files are ignored.

    Args:
        folder: where the data is, for example the unpacked ``ACDC/database``.

    Returns:
        One entry per frame, sorted by ``case``, all values strings: ``patient`` ("patient001"), ``frame`` ("01"),
        ``case`` ("patient001_frame01"), ``image`` and ``label`` (absolute paths; no ``label`` without a ``_gt`` file)
        and ``phase`` ("ED" or "ES", if ``Info.cfg`` tells it).

    Raises:
        FileNotFoundError: if the folder is missing or holds no frames.
        ValueError: if a ``_gt`` file lacks its image.

    Source:
        Bernard et al., *Deep learning techniques for automatic MRI cardiac multi-structures segmentation and
        diagnosis: is the problem solved?*, IEEE Transactions on Medical Imaging 2018.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from monai_spct.data import acdc_cases, write_acdc_phantom
        >>> with TemporaryDirectory() as parent:
        ...     cases = acdc_cases(write_acdc_phantom(f"{parent}/acdc", patients=1))
        >>> cases[0]["case"], cases[0]["phase"], Path(cases[0]["label"]).name
        ('patient001_frame01', 'ED', 'patient001_frame01_gt.nii.gz')
    """
    root = Path(folder).expanduser().absolute()
    training = root / "training"
    patients = _patients(training) or _patients(root)
    cases = [case for patient in patients for case in _patient_cases(patient)]
    if not cases:
        raise FileNotFoundError(
            f"no ACDC frames in {root} ({'it holds no patients' if root.is_dir() else 'there is no such folder'}).\n"
            "It should hold training/patientNNN/patientNNN_frameFF.nii.gz and patientNNN_frameFF_gt.nii.gz, or the "
            "patientNNN folders themselves.\n"
            "ACDC comes from https://www.creatis.insa-lyon.fr/Challenge/acdc/ (registration needed; CC BY-NC-SA).\n"
            f"{try_phantom('acdc')}"
        )
    return sorted(cases, key=lambda case: case["case"])


def _patients(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if _PATIENT.fullmatch(path.name) and path.is_dir())


def _patient_cases(folder: Path) -> list[dict[str, str]]:
    images: dict[str, Path] = {}
    labels: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):  # `.nii` before `.nii.gz`: the latter stays
        match = _FRAME.fullmatch(path.name)
        if match is not None and match["patient"] == folder.name and path.is_file():
            (labels if match["truth"] else images)[match["frame"]] = path
    if orphans := sorted(labels.keys() - images.keys()):
        raise ValueError(f"label without its image: {', '.join(str(labels[frame]) for frame in orphans)}.")
    phases = _phases(folder / "Info.cfg")
    cases = []
    for frame, image in images.items():
        case = {"patient": folder.name, "frame": frame, "case": f"{folder.name}_frame{frame}", "image": str(image)}
        if int(frame) in phases:
            case["phase"] = phases[int(frame)]
        if frame in labels:
            case["label"] = str(labels[frame])
        cases.append(case)
    return cases


def _phases(info: Path) -> dict[int, str]:
    """Frame number to "ED" or "ES"."""
    if not info.is_file():
        return {}
    text = info.read_text(encoding="utf-8-sig", errors="replace")  # editors on Windows begin a file with a mark
    return {int(match["frame"]): match["phase"] for match in _PHASE.finditer(text)}
