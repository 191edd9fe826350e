"""The forward passes of a training iteration."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from monai.inferers import Inferer
from torch import Tensor, nn

from monai_spct.functional import log_softmax
from monai_spct.networks import Ensemble, batch_statistics

__all__ = ["SemiSupervisedInferer"]


class SemiSupervisedInferer(Inferer):
    """Students see labeled and augmented unlabeled images in one pass, teachers the original unlabeled ones.

    One pass over both kinds of images gives a batch normalization the statistics of both, and costs less than two.

    Args:
        teachers: frozen networks, one for each student, which run without gradient in the mode that they are in, see
            also ``batch_statistics``; none for methods without teachers.
        transform: called as ``transform(images, *dense)``, returns all of its arguments with one draw of an
            augmentation, for example :class:`~monai_spct.transforms.RandomQuarterTurn`. The predictions of the
            teachers, ``(K, U, C, *S)``, are transformed like the images that the students see. None for no
            augmentation.
        mix: called as ``mix(labeled, unlabeled)`` with the images after ``transform``, returns mixed images
            ``(B, C_in, *S)`` and a mask ``(B, *S)`` of where they are labeled, for example
            :class:`~monai_spct.transforms.CopyPaste`. Students see these alone; what they say of them is both
            ``labeled`` and ``unlabeled``, with weights for the voxels. None for no mixing.
        uncertainty: from teachers and unlabeled images to the teachers' uncertainty at each voxel, for example
            :class:`~monai_spct.inferers.MonteCarloDropout`; needs teachers.
        discriminator: from images and the students' probabilities to a logit for each image, for example
            :class:`~monai_spct.networks.Discriminator`. It does not learn here.
        batch_statistics: whether the teachers' batch normalizations go by the unlabeled batch, as the students' do by
            theirs, instead of the running statistics. Where intensities differ between patients, as in MRI of several
            centers, the running ones let teachers miss a structure, and students learn to miss it.

    Raises:
        ValueError: when there is an ``uncertainty`` but no teacher, ``mix`` beside a ``discriminator``, or
            ``batch_statistics`` is not a bool.

    Example:
        >>> import torch
        >>> from monai_spct.inferers import SemiSupervisedInferer
        >>> from monai_spct.networks import ENet, Ensemble, frozen_copy
        >>> from monai_spct.transforms import RandomQuarterTurn
        >>> students = Ensemble([ENet(), ENet()])
        >>> inferer = SemiSupervisedInferer(teachers=frozen_copy(students), transform=RandomQuarterTurn())
        >>> predictions = inferer(torch.rand(2, 1, 32, 32), students, unlabeled=torch.rand(3, 1, 32, 32))
        >>> {name: tuple(prediction.shape) for name, prediction in predictions.items()}
        {'labeled': (2, 2, 4, 32, 32), 'unlabeled': (2, 3, 4, 32, 32), 'teacher': (2, 3, 4, 32, 32)}
    """

    def __init__(
        self,
        *,
        teachers: Ensemble | None = None,
        transform: Callable[..., tuple[Tensor, ...]] | None = None,
        mix: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] | None = None,
        uncertainty: Callable[[Ensemble, Tensor], Tensor] | None = None,
        discriminator: nn.Module | None = None,
        batch_statistics: bool = True,
    ) -> None:
        super().__init__()
        if uncertainty is not None and teachers is None:
            raise ValueError("`uncertainty` is that of the `teachers`, and there are none.")
        if mix is not None and discriminator is not None:
            raise ValueError(
                "a `discriminator` tells labeled from unlabeled images: there are none to tell with `mix`."
            )
        if not isinstance(batch_statistics, bool):  # a string from a command line would count as true
            raise ValueError(f"`batch_statistics` must be True or False, got {batch_statistics!r}.")
        self.teachers = teachers
        self.transform = transform
        self.mix = mix
        self.uncertainty = uncertainty
        self.discriminator = discriminator
        self.batch_statistics = batch_statistics

    def __call__(
        self, inputs: Tensor, network: Callable[..., Any], *args: Any, unlabeled: Tensor | None = None, **kwargs: Any
    ) -> dict[str, Tensor]:
        """The tensors of a :class:`~monai_spct.objectives.Step`, as far as there are such.

        Args:
            inputs: labeled images, ``(B, C_in, *S)``.
            network: the students, an :class:`~monai_spct.networks.Ensemble` in training mode or a wrapper of one.
            args: further arguments of the network.
            unlabeled: ``(U, C_in, *S)``, of the size of the labeled images.
            kwargs: further arguments of the network.
        """
        if unlabeled is None:
            return _outputs(network(inputs, *args, **kwargs), inputs)
        if unlabeled.shape[1:] != inputs.shape[1:]:
            raise ValueError(
                "labeled and unlabeled images must have the same channels and size, got "
                f"{tuple(inputs.shape[1:])} and {tuple(unlabeled.shape[1:])}."
            )
        dense = {} if self.teachers is None else self._taught(self.teachers, unlabeled)
        if self.transform is not None:
            unlabeled, *values = self.transform(unlabeled, *dense.values())
            dense = dict(zip(dense, values, strict=True))
        if "uncertainty" in dense:
            dense["uncertainty"] = dense["uncertainty"].squeeze(2)
        images, known = (torch.cat([inputs, unlabeled]), None) if self.mix is None else self.mix(inputs, unlabeled)
        if inputs.ndim == 4 and inputs.stride(1) == 1:  # the joint batch of images that are channels last is not
            images = images.to(memory_format=torch.channels_last)
        said = _outputs(network(images, *args, **kwargs), images)
        if known is not None:
            log_probs = log_softmax(said["labeled"], dim=2)
            weights = {"label_weight": _of_mean_one(known), "unlabeled_weight": _of_mean_one(~known)}
            return {**said, "unlabeled": log_probs, **dense, **weights}
        log_probs = log_softmax(said["labeled"][:, len(inputs) :], dim=2)
        labeled = {name: values.narrow(-images.ndim, 0, len(inputs)) for name, values in said.items()}
        predictions = {**labeled, "unlabeled": log_probs, **dense}
        if self.discriminator is not None:
            with _frozen(self.discriminator):
                seen = torch.stack([self.discriminator(unlabeled, each.exp()) for each in log_probs])
            predictions.update(discriminator_logits=seen, image=inputs, unlabeled_image=unlabeled)
        return predictions

    def _taught(self, teachers: Ensemble, unlabeled: Tensor) -> dict[str, Tensor]:
        mode = batch_statistics(teachers) if self.batch_statistics else nullcontext()
        with torch.no_grad(), mode:  # teachers learn by averaging alone
            dense = {"teacher": log_softmax(teachers.logits(unlabeled), dim=2)}
            if self.uncertainty is not None:
                dense["uncertainty"] = self.uncertainty(teachers, unlabeled).unsqueeze(2)  # with an axis for classes
        return dense


def _outputs(logits: Tensor, images: Tensor) -> dict[str, Tensor]:
    """Logits ``(K, B, C, *S)``, and of deep supervision, ``(K, B, H, C, *S)``, all but the first apart."""
    if logits.ndim < images.ndim + 2:
        return {"labeled": logits}
    return {"labeled": logits[:, :, 0], "deep": logits[:, :, 1:].movedim(2, 0)}


def _of_mean_one(mask: Tensor) -> Tensor:
    return mask / mask.float().mean().clamp(min=torch.finfo(torch.float32).tiny)  # all 0 where nothing counts


@contextmanager
def _frozen(module: nn.Module) -> Iterator[None]:
    """Gradients go through the module, not to it."""
    learning = [parameter for parameter in module.parameters() if parameter.requires_grad]
    for parameter in learning:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in learning:
            parameter.requires_grad_(True)
