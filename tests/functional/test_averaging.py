"""A teacher is the exact moving average of its student, buffers included."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from monai_spct.functional import StatePairs, average_over_processes, ema_decay, ema_update


def one_weight(value):
    module = nn.Linear(1, 1, bias=False)
    nn.init.constant_(module.weight, value)
    return module


def normalized(value, batches):
    """A convolution and a batch normalization whose floating state is ``value``, after ``batches`` batches."""
    module = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2))
    for tensor in module.state_dict().values():
        tensor.fill_(value if tensor.is_floating_point() else batches)
    return module


def state(module):
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


@pytest.mark.parametrize("paired_before", [False, True])
@pytest.mark.parametrize("decay", [0.0, 0.25, 0.5, 0.75, 1.0])
def test_parameters_and_running_statistics_are_averaged_and_counters_copied(decay, paired_before):
    teacher, student = normalized(4.0, batches=7), normalized(2.0, batches=9)
    if paired_before:
        StatePairs.of(teacher, student).update(decay=decay)
    else:
        ema_update(teacher, student, decay=decay)
    assert {"1.running_mean", "1.running_var", "1.num_batches_tracked"} < state(teacher).keys()
    torch.testing.assert_close(state(teacher), state(normalized(2 + 2 * decay, batches=9)), rtol=0, atol=0)
    for tensor in teacher.state_dict().values():
        tensor.zero_()  # which the student does not share
    torch.testing.assert_close(state(student), state(normalized(2.0, batches=9)), rtol=0, atol=0)


def test_the_teacher_is_changed_in_place_and_remembers_no_computation():
    teacher, student = one_weight(4.0), one_weight(2.0)
    weight, memory = teacher.weight, teacher.weight.data_ptr()
    ema_update(teacher, student, decay=0.5)
    assert teacher.weight is weight
    assert weight.data_ptr() == memory
    assert weight.is_leaf
    assert weight.requires_grad
    assert student.weight.grad is None


def test_parameters_of_several_dtypes_keep_them():
    teacher, student = nn.ModuleList(), nn.ModuleList()
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        teacher.append(one_weight(4.0).to(dtype))
        student.append(one_weight(2.0).to(dtype))
    ema_update(teacher, student, decay=0.5)
    assert [module.weight.item() for module in teacher] == [3.0, 3.0, 3.0]
    assert [module.weight.dtype for module in teacher] == [torch.float32, torch.float64, torch.bfloat16]


def test_modules_without_any_floating_state_are_welcome():
    teacher, student = nn.Module(), nn.Module()
    teacher.register_buffer("count", torch.tensor(1))
    student.register_buffer("count", torch.tensor(5))
    ema_update(teacher, student, decay=0.5)
    assert teacher.count.item() == 5
    ema_update(nn.ReLU(), nn.ReLU(), decay=0.5)


@pytest.mark.parametrize(
    ("teacher", "student", "message"),
    [
        (nn.Linear(1, 1), nn.Linear(1, 1, bias=False), r"\['bias'\]"),
        (nn.Linear(1, 1, bias=False), nn.Linear(1, 1), r"\['bias'\]"),
        (nn.Linear(2, 3), nn.Linear(4, 3), r"`weight`: \(3, 2\) and \(3, 4\)"),
        (nn.Linear(1, 1), nn.Sequential(nn.Linear(1, 1)), "0.bias"),
    ],
    ids=["student lacks a name", "teacher lacks a name", "another shape", "wrapped"],
)
def test_modules_that_do_not_match_are_refused_by_name_and_left_alone(teacher, student, message):
    before = state(teacher)
    with pytest.raises(ValueError, match=message):
        ema_update(teacher, student, decay=0.5)
    torch.testing.assert_close(state(teacher), before, rtol=0, atol=0)


@settings(deadline=None, max_examples=30)
@given(students=st.lists(st.floats(-10, 10), min_size=1, max_size=12), decay=st.floats(0, 1))
def test_n_updates_are_the_geometric_sum(students, decay):
    teacher = one_weight(4.0).double()
    for value in students:
        ema_update(teacher, one_weight(value).double(), decay=decay)
    n = len(students)
    expected = decay**n * 4.0 + (1 - decay) * math.fsum(
        decay ** (n - 1 - i) * value for i, value in enumerate(students)
    )
    assert teacher.weight.item() == pytest.approx(expected, abs=1e-5)  # each student was rounded to float32 first


@settings(deadline=None, max_examples=30)
@given(students=st.lists(st.integers(-8, 8), min_size=1, max_size=20))
def test_with_the_growing_decay_the_first_teachers_are_plain_means(students):
    """Of the start and of all students so far."""
    teacher = one_weight(4.0).double()
    for step, value in enumerate(students, start=1):
        ema_update(teacher, one_weight(float(value)).double(), decay=ema_decay(step))
        seen = [4.0, *students[:step]]
        assert teacher.weight.item() == pytest.approx(sum(seen) / len(seen), abs=1e-12)


@pytest.mark.parametrize(
    ("step", "maximum", "expected"),
    [(1, 0.99, 1 / 2), (2, 0.99, 2 / 3), (98, 0.99, 98 / 99), (99, 0.99, 0.99), (10**6, 0.99, 0.99), (1, 0.25, 0.25)],
)
def test_the_decay_rises_to_its_maximum(step, maximum, expected):
    assert ema_decay(step, maximum=maximum) == pytest.approx(expected)


def test_a_shared_tensor_is_averaged_once():
    class Tied(nn.Module):
        def __init__(self, value):
            super().__init__()
            self.a = nn.Linear(1, 1, bias=False)
            nn.init.constant_(self.a.weight, value)
            self.b = self.a

    teacher, student = Tied(4.0), Tied(2.0)
    ema_update(teacher, student, decay=0.5)
    assert teacher.a.weight.item() == 3.0


@pytest.mark.parametrize("decay", [-0.1, 1.5, math.nan], ids=str)
def test_a_decay_out_of_range_is_refused(decay):
    with pytest.raises(ValueError, match="`decay` must lie between 0 and 1"):
        ema_update(nn.Linear(1, 1), nn.Linear(1, 1), decay=decay)


# Over processes; with several: `tests/bundles/test_multi_gpu.py`


def test_one_process_keeps_what_it_has():
    tensor = torch.rand(3)
    before = tensor.clone()
    average_over_processes([tensor])
    assert torch.equal(tensor, before)


def test_counters_cannot_be_averaged():
    with pytest.raises(ValueError, match=r"`tensors` must be floating ones, got torch\.int64\."):
        average_over_processes([torch.zeros(2), torch.tensor(3)])
