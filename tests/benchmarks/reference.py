"""The method as one would write it down first, with PyTorch alone: what the project is held against.

Nothing here is clever, and nothing here imports the project. An iteration does what the project's does: each student
sees the labeled and the turned unlabeled images in one pass, each teacher the unlabeled ones.
"""

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def conv(inputs: int, outputs: int, relu: bool, **kwargs) -> list[nn.Module]:
    """Convolution, normalization, activation."""
    act = nn.ReLU() if relu else nn.PReLU(outputs)
    return [nn.Conv2d(inputs, outputs, bias=False, **kwargs), nn.BatchNorm2d(outputs), act]


def expansion(inputs: int, outputs: int, dropout: float) -> list[nn.Module]:
    return [nn.Conv2d(inputs, outputs, 1, bias=False), nn.BatchNorm2d(outputs), nn.Dropout2d(dropout)]


class Initial(nn.Module):
    def __init__(self, images: int):
        super().__init__()
        self.conv = nn.Conv2d(images, 16 - images, 3, stride=2, padding=1, bias=False)
        self.pool = nn.MaxPool2d(2)
        self.norm = nn.BatchNorm2d(16)
        self.act = nn.PReLU(16)

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.norm(torch.cat([self.conv(x), self.pool(x)], 1)))


class Bottleneck(nn.Module):
    def __init__(
        self, channels: int, dropout: float, *, dilation: int = 1, asymmetric: bool = False, relu: bool = False
    ):
        super().__init__()
        inner = channels // 4
        if asymmetric:
            middle = conv(inner, inner, relu, kernel_size=(5, 1), padding=(2, 0))
            middle += conv(inner, inner, relu, kernel_size=(1, 5), padding=(0, 2))
        else:
            middle = conv(inner, inner, relu, kernel_size=3, padding=dilation, dilation=dilation)
        first = conv(channels, inner, relu, kernel_size=1)
        self.branch = nn.Sequential(*first, *middle, *expansion(inner, channels, dropout))
        self.act = nn.ReLU() if relu else nn.PReLU(channels)

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.branch(x) + x)


class Down(nn.Module):
    def __init__(self, inputs: int, outputs: int, dropout: float):
        super().__init__()
        inner = outputs // 4
        self.pool = nn.MaxPool2d(2, return_indices=True)
        self.branch = nn.Sequential(
            *conv(inputs, inner, False, kernel_size=2, stride=2),
            *conv(inner, inner, False, kernel_size=3, padding=1),
            *expansion(inner, outputs, dropout),
        )
        self.missing = outputs - inputs
        self.act = nn.PReLU(outputs)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        pooled, indices = self.pool(x)
        return self.act(self.branch(x) + F.pad(pooled, (0, 0, 0, 0, 0, self.missing))), indices


class Up(nn.Module):
    def __init__(self, inputs: int, outputs: int, dropout: float):
        super().__init__()
        inner = outputs // 4
        self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, bias=False), nn.BatchNorm2d(outputs))
        self.unpool = nn.MaxUnpool2d(2)
        self.branch = nn.Sequential(
            *conv(inputs, inner, True, kernel_size=1),
            nn.ConvTranspose2d(inner, inner, 3, stride=2, padding=1, output_padding=1, bias=False),
            nn.BatchNorm2d(inner),
            nn.ReLU(),
            *expansion(inner, outputs, dropout),
        )
        self.act = nn.ReLU()

    def forward(self, x: Tensor, indices: Tensor) -> Tensor:
        return self.act(self.branch(x) + self.unpool(self.shortcut(x), indices))


def context(dropout: float) -> nn.Sequential:
    kinds = [{}, {"dilation": 2}, {"asymmetric": True}, {"dilation": 4}, {}, {"dilation": 8}, {"asymmetric": True}]
    return nn.Sequential(*(Bottleneck(128, dropout, **kind) for kind in [*kinds, {"dilation": 16}]))


class PlainENet(nn.Module):
    """ENet for images whose sizes are multiples of 8, with its parameters and buffers in the order of the project's."""

    def __init__(self, images: int = 1, classes: int = 4, dropout: tuple[float, float] = (0.01, 0.1)):
        super().__init__()
        early, late = dropout
        self.initial = Initial(images)
        self.down1 = Down(16, 64, early)
        self.stage1 = nn.Sequential(*(Bottleneck(64, early) for _ in range(4)))
        self.down2 = Down(64, 128, late)
        self.stage2 = context(late)
        self.stage3 = context(late)
        self.up4 = Up(128, 64, late)
        self.stage4 = nn.Sequential(*(Bottleneck(64, late, relu=True) for _ in range(2)))
        self.up5 = Up(64, 16, late)
        self.stage5 = Bottleneck(16, late, relu=True)
        self.head = nn.ConvTranspose2d(16, classes, 2, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        x, half = self.down1(self.initial(x))
        x, quarter = self.down2(self.stage1(x))
        x = self.stage3(self.stage2(x))
        x = self.stage4(self.up4(x, quarter))
        return self.head(self.stage5(self.up5(x, half)))


def entropy(p: Tensor) -> Tensor:
    return -(p * (p + 1e-16).log()).sum(1)


def kl(p: Tensor, q: Tensor) -> Tensor:
    return (p * ((p + 1e-16).log() - (q + 1e-16).log())).sum(1)


def self_paced_jsd(views: Sequence[Tensor], gamma: float, alpha: float, eps: float) -> Tensor:
    """The co-training loss of probabilities ``(B, C, H, W)``, one tensor for each student: Theorems 1 and 2."""
    consensus = sum(views).detach() / len(views)
    weights = [(1 - kl(p.detach(), consensus) / gamma).clamp(eps, 1) for p in views]
    rho = sum(weights)
    mean = sum((w / rho).unsqueeze(1) * p for w, p in zip(weights, views, strict=True))
    own = sum(w / rho * entropy(p) for w, p in zip(weights, views, strict=True))
    return (rho * (entropy(mean) - (1 - alpha) * own)).mean()


def plain_iteration(
    students: Sequence[nn.Module],
    teachers: Sequence[nn.Module],
    optimizer: torch.optim.Optimizer,
    batch: Mapping[str, Tensor],
    turns: Sequence[int],
    *,
    gamma: float,
    alpha: float,
    eps: float,
    co_training_weight: float,
    consistency_weight: float,
    decay: float,
) -> Tensor:
    """One iteration of training: loss, step, teachers. ``turns`` are quarter turns, one for each unlabeled image."""
    image, label, unlabeled = batch["image"], batch["label"][:, 0].long(), batch["unlabeled"]
    augmented = torch.stack([torch.rot90(one, k, (1, 2)) for one, k in zip(unlabeled, turns, strict=True)])
    supervised, views, consistency = [], [], []
    for student, teacher in zip(students, teachers, strict=True):
        logits = student(torch.cat([image, augmented]))
        supervised.append(F.cross_entropy(logits[: len(image)], label))
        turned = logits[len(image) :].softmax(1)
        p = torch.stack([torch.rot90(one, -k, (1, 2)) for one, k in zip(turned, turns, strict=True)])
        with torch.no_grad():
            q = teacher(unlabeled).softmax(1)
        views.append(p)
        consistency.append((p - q).square().mean())
    loss = sum(supervised) / len(students)
    if len(students) > 1:
        loss = loss + co_training_weight * self_paced_jsd(views, gamma, alpha, eps)
    loss = loss + consistency_weight * sum(consistency) / len(students)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for student, teacher in zip(students, teachers, strict=True):
            mine = [*teacher.parameters(), *teacher.buffers()]
            for old, new in zip(mine, [*student.parameters(), *student.buffers()], strict=True):
                if old.is_floating_point():
                    old.mul_(decay).add_(new, alpha=1 - decay)
                else:
                    old.copy_(new)
    return loss.detach()
