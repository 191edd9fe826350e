"""What runs: the bundles, and what their configs do before and after a run."""

from monai_spct.workflow.errors import cause_of, in_words, put_the_cause_last
from monai_spct.workflow.folder import bundles_folder, copy
from monai_spct.workflow.output_dir import lock_output_dir, record_command, record_training
from monai_spct.workflow.page import write_page
from monai_spct.workflow.processes import join_processes, refuse_processes_apart, synchronize_batch_norms
from monai_spct.workflow.run import (
    bundle_root,
    check_ensemble,
    check_patience,
    check_settings,
    flag,
    record_model,
    settings_of_run,
    tell_results,
    weights,
)

__all__ = [
    "bundle_root",
    "bundles_folder",
    "cause_of",
    "check_ensemble",
    "check_patience",
    "check_settings",
    "copy",
    "flag",
    "in_words",
    "join_processes",
    "lock_output_dir",
    "put_the_cause_last",
    "record_command",
    "record_model",
    "record_training",
    "refuse_processes_apart",
    "settings_of_run",
    "synchronize_batch_norms",
    "tell_results",
    "weights",
    "write_page",
]
