"""Datalists of folders, splits by patient, reading and checking of volumes, slices, paired batches, and phantoms."""

from monai_spct.data.acdc import acdc_cases
from monai_spct.data.atrium import atrium_cases, atrium_images
from monai_spct.data.datalist import read_datalist, read_or_split, write_datalist
from monai_spct.data.decathlon import decathlon_cases
from monai_spct.data.folder import folder_cases, image_cases
from monai_spct.data.paired_loader import PairedLoader, SeededBatches
from monai_spct.data.predictions import save_like
from monai_spct.data.preflight import check_split, refuse_bad_headers
from monai_spct.data.promise12 import promise12_cases
from monai_spct.data.seen import seen_ranges
from monai_spct.data.slices import VolumeDataset
from monai_spct.data.splits import Split, split_cases, split_with_unlabeled
from monai_spct.data.synthetic import (
    write_acdc_phantom,
    write_atrium_phantom,
    write_promise12_phantom,
    write_spleen_phantom,
)
from monai_spct.data.volumes import VolumeReader, open_volume

__all__ = [
    "PairedLoader",
    "SeededBatches",
    "Split",
    "VolumeDataset",
    "VolumeReader",
    "acdc_cases",
    "atrium_cases",
    "atrium_images",
    "check_split",
    "decathlon_cases",
    "folder_cases",
    "image_cases",
    "open_volume",
    "promise12_cases",
    "read_datalist",
    "read_or_split",
    "refuse_bad_headers",
    "save_like",
    "seen_ranges",
    "split_cases",
    "split_with_unlabeled",
    "write_acdc_phantom",
    "write_atrium_phantom",
    "write_datalist",
    "write_promise12_phantom",
    "write_spleen_phantom",
]
