"""What metadata.json has to satisfy.

Whatever satisfies it also satisfies MONAI's schema of 2024-07-25, which asks for less: neither for a changelog nor for
the meaning of the channels.
"""

TEXT = {"type": "string", "minLength": 1}
IMAGE_FORMAT = {
    "type": "object",
    "required": [
        *("type", "format", "num_channels", "spatial_shape", "dtype", "value_range", "is_patch_data", "channel_def"),
    ],
    "properties": {
        "type": {"enum": ["image"]},
        "format": {"enum": ["magnitude", "hounsfield", "kspace", "raw", "labels", "classes", "segmentation"]},
        "modality": TEXT,
        "num_channels": {"type": "integer", "minimum": 1},
        "spatial_shape": {"type": "array", "minItems": 1, "items": {"type": ["integer", "string"]}},
        "dtype": {"type": "string"},
        "value_range": {"type": "array", "maxItems": 2, "items": {"type": "number"}},
        "is_patch_data": {"type": "boolean"},
        "channel_def": {"type": "object", "minProperties": 1, "additionalProperties": {"type": "string"}},
    },
}
SCHEMA = {
    "type": "object",
    "required": [
        *("schema", "version", "changelog", "monai_version", "pytorch_version", "numpy_version"),
        *("required_packages_version", "task", "description", "authors", "copyright", "network_data_format"),
    ],
    "properties": {
        **dict.fromkeys(("task", "description", "authors", "copyright"), TEXT),
        **dict.fromkeys(("data_source", "data_type", "intended_use"), TEXT),
        **{f"{name}_classes": TEXT for name in ("image", "label", "pred")},
        **{
            name: {"type": "string", "pattern": r"^\d+\.\d+(\.\d+)?"}
            for name in ("version", "monai_version", "pytorch_version", "numpy_version")
        },
        "schema": {"type": "string", "pattern": "^https://.*/meta_schema_20240725.json$"},
        "changelog": {"type": "object", "minProperties": 1, "additionalProperties": {"type": "string"}},
        "required_packages_version": {"type": "object", "additionalProperties": {"type": "string"}},
        "references": {"type": "array", "items": {"type": "string"}},
        "supported_apps": {"type": "object"},
        "eval_metrics": {"type": "object"},
        "network_data_format": {
            "type": "object",
            "required": ["inputs", "outputs"],
            "properties": {
                "inputs": {
                    "type": "object",
                    "minProperties": 1,
                    "additionalProperties": {
                        "allOf": [IMAGE_FORMAT, {"required": ["modality"]}],
                    },
                },
                "outputs": {"type": "object", "minProperties": 1, "additionalProperties": IMAGE_FORMAT},
            },
        },
    },
}
