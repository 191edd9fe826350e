"""Self-paced and self-consistent co-training for semi-supervised medical image segmentation, on MONAI."""

__version__ = "0.1.0"
