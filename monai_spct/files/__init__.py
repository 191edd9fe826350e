"""Atomic writes, checkpoints, pages and file names."""

from monai_spct.files.atomic import read_checkpoint, replacing, save_atomically
from monai_spct.files.checkpoints import checkpoint_paths, newest_checkpoint, save_checkpoint
from monai_spct.files.html import Part, write_html
from monai_spct.files.paths import can_be_called, is_there, leaves_folder

__all__ = [
    "Part",
    "can_be_called",
    "checkpoint_paths",
    "is_there",
    "leaves_folder",
    "newest_checkpoint",
    "read_checkpoint",
    "replacing",
    "save_atomically",
    "save_checkpoint",
    "write_html",
]
