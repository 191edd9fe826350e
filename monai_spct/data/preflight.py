"""Checks of all cases before a training."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from monai.transforms import LoadImaged
from monai.utils.misc import ensure_tuple
from nibabel.imageglobals import LoggingOutputSuppressor
from tqdm import tqdm

from monai_spct.data import rules
from monai_spct.data.check_case import CheckCased
from monai_spct.data.copies import copies
from monai_spct.data.splits import Split
from monai_spct.data.volume import Volume
from monai_spct.data.volumes import VolumeReader, open_volume

__all__ = ["Finding", "Preflight", "check_split", "refuse_bad_headers"]

_Level = Literal["error", "warning", "note"]


@dataclass(frozen=True)
class Finding:
    """A problem of the data.

    Args:
        level: ``error`` where a training would stop or learn something wrong, ``warning`` where someone should look,
            ``note`` where files are odd but read right.
        message: what is wrong, by which rule, with which value.
        files: the files concerned.

    Example:
        >>> from monai_spct.data.preflight import Finding
        >>> print(Finding("warning", "the image of a is constant.", ("/data/a.nii",)))
        warning: the image of a is constant. (/data/a.nii)
    """

    level: _Level
    message: str
    files: tuple[str, ...] = ()

    def __str__(self) -> str:
        unnamed = [file for file in self.files if file not in self.message]
        return f"{self.level}: {self.message}" + (f" ({', '.join(unnamed)})" if unnamed else "")


@dataclass(frozen=True)
class Preflight:
    """What :func:`~monai_spct.data.check_split` found.

    Args:
        findings: errors first, then warnings, then notes.
        summary: a table of patients, cases, slices, shapes and spacings of each list.
        volumes: the image of each case that could be opened, or its first channel, by the case's name.
    """

    findings: list[Finding]
    summary: str
    volumes: dict[str, Volume]

    @property
    def errors(self) -> list[Finding]:
        """Findings with which no training should start."""
        return [finding for finding in self.findings if finding.level == "error"]


@dataclass
class _Case:
    """A case, and what was read of it."""

    place: str  # the list that it is in
    entries: dict[str, Any]
    name: str = ""
    volumes: dict[str, Volume] = field(default_factory=dict)  # by their files
    contents: dict[str, str] = field(default_factory=dict)  # a digest for each file of the image
    classes: set[int] | None = None  # that its label has

    def __post_init__(self) -> None:
        self.image, self.label = (
            tuple(map(str, ensure_tuple(self.entries.get(key) or ()))) for key in ("image", "label")
        )
        self.name = str(self.entries.get("case") or next(iter(self.image), "a case without an image"))

    @property
    def opened(self) -> Volume | None:
        """The image, or its first channel that could be opened."""
        return next((self.volumes[file] for file in self.image if file in self.volumes), None)


def check_split(
    split: Split,
    *,
    num_classes: int,
    in_channels: int | None = None,
    spatial_dims: int = 2,
    load: Sequence[Callable[[dict[str, Any]], dict[str, Any]]] | None = None,
    voxels: bool = True,
    progress: bool = False,
) -> Preflight:
    """Check all cases of a split, as a training would read them.

    Of headers: missing, unreadable or truncated files; files that are no volumes of real numbers; numbers of channels;
    grids that differ within a case; impossible or outlying spacings; slices along another axis than the last. Of
    voxels: labels outside the classes; classes that no labeled case has; images that are constant, nearly so, or not
    finite; damaged files. Of the lists: patients on two sides, and images that occur twice.

    Args:
        split: the lists of cases.
        num_classes: number of classes, background included.
        in_channels: number of channels of an image; not checked by default.
        spatial_dims: 3 for networks that take volumes, which have more than one slice.
        load: transforms that load ``image`` and ``label`` of a case, as ``load`` of a bundle, which may also map the
            values of labels; by default files are taken as they are.
        voxels: whether to read voxels; otherwise only headers, and whether files are the same.
        progress: whether to show progress bars.

    Returns:
        What was found. Nothing is raised for what a file may hold.

    Example:
        >>> import tempfile
        >>> from monai_spct.data import acdc_cases, check_split, split_cases, write_acdc_phantom
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     cases = acdc_cases(write_acdc_phantom(f"{folder}/acdc", patients=1))
        ...     found = check_split(split_cases(cases, labeled_ratio=1.0, num_test=0), num_classes=3)
        >>> found.errors[0].message
        'the label of patient001_frame01 must hold whole numbers from 0 to 2 (`num_classes` is 3), got [3.0].'
    """
    cases = [_Case(name, case) for name in rules.SIDE for case in getattr(split, name)]
    sides = rules.one_side((str(case.entries.get(split.key, case.name)), case.place) for case in cases)
    findings = [Finding("error", problem) for problem in sides]
    sound = []
    for case in tqdm(cases, desc="headers", disable=not progress, leave=False):
        found = _headers(case, in_channels, spatial_dims, labeled=case.place != "unlabeled")
        findings += found
        if not any(finding.level == "error" for finding in found):
            sound.append(case)
    findings += _geometry(cases)
    if voxels:
        check = CheckCased(num_classes=num_classes, in_channels=in_channels)
        reader: Any = VolumeReader()
        as_they_are = LoadImaged(["image", "label"], reader=reader, ensure_channel_first=True, allow_missing_keys=True)
        load = [step for step in load or [as_they_are] if not isinstance(step, CheckCased)]
        for case in tqdm(sound, desc="voxels", disable=not progress, leave=False):
            findings += _voxels(case, load, check)
        seen = [case.classes for case in cases if case.place == "labeled" and case.classes is not None]
        if seen and (problem := rules.unseen_classes(set().union(*seen), num_classes)):
            findings.append(Finding("warning", problem))
    else:
        owners = {file: case for case in cases for file in case.image}
        for group in copies(owners):
            for file in group:
                owners[file].contents[file] = group[0]
    findings += _duplicates(cases)
    once = {finding.message: finding for finding in findings}.values()  # headers and voxels may show the same
    levels = ("error", "warning", "note")
    ordered = sorted(once, key=lambda finding: levels.index(finding.level))
    volumes = {case.name: case.opened for case in cases if case.opened is not None}
    return Preflight(ordered, _summary(cases, split.key), volumes)


def refuse_bad_headers(
    cases: Sequence[Mapping[str, Any]], *, in_channels: int | None = None, spatial_dims: int = 2
) -> None:
    """Refuse cases whose headers show that they cannot be loaded, all at once and before any is.

    Slices along another axis than the last are warned of.

    Args:
        cases: with ``image`` and perhaps ``label``.
        in_channels: number of channels of an image; not checked by default.
        spatial_dims: 3 for networks that take volumes, which have more than one slice.

    Raises:
        ValueError: naming files and reasons.

    Example:
        >>> from monai_spct.data import refuse_bad_headers
        >>> refuse_bad_headers([{"image": "a.nii"}, {"image": "b.mhd"}])
        Traceback (most recent call last):
        ...
        ValueError: these cases cannot be loaded:
        a.nii does not exist.
        b.mhd does not exist.
    """
    looked_at = [_Case("", dict(case)) for case in cases]
    found = [finding for case in looked_at for finding in _headers(case, in_channels, spatial_dims, labeled=False)]
    errors = [finding.message for finding in found if finding.level == "error"]
    if errors:
        raise ValueError("\n".join(["these cases cannot be loaded:", *errors]))
    if problem := _slice_axes(looked_at):
        warnings.warn(problem, stacklevel=2)


# Headers


def _headers(case: _Case, in_channels: int | None, spatial_dims: int, *, labeled: bool) -> list[Finding]:
    files = (*case.image, *case.label)
    found: list[Finding] = []
    if not case.image:
        found.append(Finding("error", f"{case.name} of `{case.place}` must have an `image`."))
    if labeled and not case.label:
        found.append(Finding("error", f"{case.name} of `{case.place}` must have a `label`.", case.image))
    for file in dict.fromkeys(files):
        try:
            with _quiet():
                case.volumes[file] = open_volume(file)
        except Exception as error:  # whatever a damaged header makes of its reader, it is a fault of the file
            found.append(Finding("error", _named(file, error), (file,)))
    image = [case.volumes[file] for file in case.image if file in case.volumes]
    label = next((case.volumes[file] for file in case.label if file in case.volumes), None)

    problems = [rules.channel_count(case.name, len(case.image), in_channels)] if case.image else []
    if image:
        problems.append(rules.channel_grids([(volume.path, volume.shape, volume.affine) for volume in image]))
        problems.append(rules.depth(case.name, image[0].shape) if spatial_dims == 3 else None)
    if image and label is not None:
        problems.append(rules.shapes(case.name, image[0].shape, label.shape))
    found += [Finding("error", problem, files) for problem in problems if problem]
    problems = [
        rules.voxel_sizes(volume.path, volume.stored_spacing, volume.spacing) for volume in case.volumes.values()
    ]
    if image and label is not None and image[0].shape == label.shape:
        problems.append(rules.affines(case.name, image[0].affine, label.affine, label.shape))
    return found + [Finding("warning", problem, files) for problem in problems if problem]


def _geometry(cases: Sequence[_Case]) -> list[Finding]:
    """Checks of the headers of all cases together."""
    opened = {case.name: case.opened for case in cases if case.opened is not None}
    if not opened:
        return []
    found = []
    median = np.median([volume.spacing for volume in opened.values()], axis=0)
    for name, volume in opened.items():
        if problem := rules.spacing(name, volume.spacing, median):
            found.append(Finding("warning", problem, (volume.path,)))
    if problem := _slice_axes(cases):
        found.append(Finding("warning", problem))
    odd = [volume for case in cases for volume in case.volumes.values() if volume.disagrees]
    if odd:
        said = rules.other_pixdim(len(odd), odd[0].path, odd[0].stored_spacing, odd[0].affine_spacing)
        found.append(Finding("note", said, (odd[0].path,)))
    return found


def _slice_axes(cases: Sequence[_Case]) -> str | None:
    opened = ((case.name, case.opened) for case in cases)
    return rules.slice_axes({name: (volume.shape, volume.spacing) for name, volume in opened if volume is not None})


# Voxels


def _voxels(case: _Case, load: Sequence[Callable[[Any], Any]], check: CheckCased) -> list[Finding]:
    files = (*case.image, *case.label)
    loaded: dict[Any, Any] = {"image": list(case.image)} | ({"label": list(case.label)} if case.label else {})
    try:
        with _quiet():
            for step in load:
                loaded = step(loaded)
    except Exception as error:  # as of headers
        return [Finding("error", _named(", ".join(files), error), files)]
    for file, channel in zip(case.image, np.asarray(loaded["image"]), strict=False):
        # one type for all: a scan that was stored anew in another one is still the same scan
        case.contents[file] = hashlib.sha256(repr(channel.shape).encode() + channel.tobytes()).hexdigest()
    errors = []
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            check({**loaded, "case": case.name})
            if case.label:
                case.classes = set(np.unique(np.asarray(loaded["label"], dtype=np.int64)).tolist())
        except ValueError as error:
            errors = [Finding("error", str(error), files)]
    return errors + [Finding("warning", str(warning.message), files) for warning in said]


# Lists


def _duplicates(cases: Sequence[_Case]) -> list[Finding]:
    same: dict[str, list[tuple[str, str]]] = {}
    for case in cases:
        for file, digest in case.contents.items():
            same.setdefault(digest, []).append((case.place, file))
    found = []
    for places in same.values():
        if len(places) < 2:
            continue
        across = len({rules.SIDE[place] for place, _ in places}) > 1
        where = " and ".join(f"{file} (`{place}`)" for place, file in places)
        rule = "no image may be on two sides" if across else "an image should be there once"
        found.append(Finding("error" if across else "warning", f"{rule}, got the same content in {where}."))
    return found


# Words


def _summary(cases: Sequence[_Case], key: str) -> str:
    rows = [("", "patients", "cases", "slices", "shape", "spacing (mm)")]
    for name in rules.SIDE:
        of_list = [case for case in cases if case.place == name]
        if not of_list:
            continue
        opened = [case.opened for case in of_list if case.opened is not None]
        patients = {case.entries.get(key, case.name) for case in of_list}
        counts = (str(len(patients)), str(len(of_list)), str(sum(volume.shape[2] for volume in opened)))
        ranges = (_range([volume.shape for volume in opened]), _range([volume.spacing for volume in opened]))
        rows.append((name, *counts, *ranges))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            f"{cell:>{width}}" if 0 < column < 4 else f"{cell:<{width}}"
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def _range(rows: Sequence[Any]) -> str:
    """Smallest to largest along each axis."""
    if not rows:
        return "-"
    table = np.array(rows)
    pairs = [(f"{low:.4g}", f"{high:.4g}") for low, high in zip(table.min(0), table.max(0), strict=True)]
    return " x ".join(low if low == high else f"{low}..{high}" for low, high in pairs)


def _named(file: str, error: Exception) -> str:
    said = " ".join(str(error).split()) or type(error).__name__
    return said if file in said else f"{file} cannot be read: {said}"


@contextmanager
def _quiet() -> Iterator[None]:
    """Mute what readers log besides their errors: it names no file."""
    with LoggingOutputSuppressor(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
