"""The numbers are those of ``torch.nn.PReLU``, whichever way the module is used."""

import io

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from monai_spct.networks import PReLU

SHAPES = {
    "vectors": ((7, 3), torch.contiguous_format),
    "2-D": ((4, 3, 6, 5), torch.contiguous_format),
    "2-D channels last": ((4, 3, 6, 5), torch.channels_last),
    "3-D": ((2, 3, 5, 4, 3), torch.contiguous_format),
    "3-D channels last": ((2, 3, 5, 4, 3), torch.channels_last_3d),
}


def pair_of(num_parameters: int = 3, *, dtype: torch.dtype = torch.float32) -> tuple[PReLU, nn.PReLU]:
    """Ours and torch's, with the same slopes: a negative one, and if there are three, one above 1."""
    pair = PReLU(num_parameters, dtype=dtype), nn.PReLU(num_parameters, dtype=dtype)
    for module in pair:
        module.weight.data.copy_(torch.linspace(-0.6, 1.5, num_parameters))
    return pair


def values_of(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """A fifth is +0, a fifth -0."""
    generator = torch.Generator().manual_seed(0)
    values, kinds = torch.randn(shape, generator=generator, dtype=dtype), torch.randint(5, shape, generator=generator)
    return values.masked_fill(kinds == 0, 0.0).masked_fill(kinds == 1, -0.0)


def without_zeros(*shape: int) -> Tensor:
    """Away from the kink."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return (x + x.sign() / 2).requires_grad_()


def answers_of(module: nn.Module, x: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """The output and the gradients of input and weight, as far as they are asked for."""
    x = x.detach().requires_grad_(x.requires_grad)
    out = module(x)
    generator = torch.Generator().manual_seed(1)
    out.backward(torch.randn(out.shape, generator=generator, dtype=out.dtype))
    return out, x.grad, module.weight.grad


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-14)], ids=["float32", "float64"]
)
@pytest.mark.parametrize("num_parameters", [1, 3], ids=["shared", "by channel"])
@pytest.mark.parametrize(("shape", "memory_format"), SHAPES.values(), ids=SHAPES.keys())
def test_output_and_both_gradients_are_those_of_torch(shape, memory_format, num_parameters, dtype, tolerance):
    mine, torchs = pair_of(num_parameters, dtype=dtype)
    x = values_of(*shape, dtype=dtype).to(memory_format=memory_format).requires_grad_()
    (out, *gradients), (expected, *expected_gradients) = answers_of(mine, x), answers_of(torchs, x)
    assert out.grad_fn.name() != expected.grad_fn.name()  # else this compares torch with itself
    assert torch.equal(out, expected)
    torch.testing.assert_close(gradients, expected_gradients, rtol=tolerance, atol=tolerance)
    assert out.stride() == gradients[0].stride() == x.stride()


def test_a_gradient_without_memory_of_its_own_is_left_alone():
    mine, torchs = pair_of()
    for module in (mine, torchs):
        module(values_of(4, 3, 6, 5).requires_grad_()).sum().backward()  # its gradient is one number in all places
    torch.testing.assert_close(mine.weight.grad, torchs.weight.grad)
    given = torch.ones(7, 3)
    mine(values_of(7, 3).requires_grad_()).backward(given)
    assert torch.equal(given, torch.ones(7, 3))


@pytest.mark.parametrize("num_parameters", [1, 3], ids=["shared", "by channel"])
@pytest.mark.parametrize("shape", [(4, 3), (2, 3, 2, 2), (1, 3, 2, 2, 2)], ids=str)
def test_first_and_second_derivatives_are_those_of_differences(shape, num_parameters):
    mine, _ = pair_of(num_parameters, dtype=torch.float64)
    x = without_zeros(*shape)
    weight = mine.weight.detach().clone().requires_grad_()

    def function(x: Tensor, weight: Tensor) -> Tensor:
        return functional_call(mine, {"weight": weight}, (x,))

    assert torch.autograd.gradcheck(function, (x, weight))
    assert torch.autograd.gradgradcheck(function, (x, weight))


def test_a_penalty_on_both_gradients_has_the_gradients_that_it_has_with_torch():
    """A check of second derivatives passes over a first one that is cut off from the input."""
    penalties = []
    for module in pair_of(dtype=torch.float64):
        x = without_zeros(4, 3, 6, 5)
        given = torch.autograd.grad(module(x).square().sum(), [x, module.weight], create_graph=True)
        penalties.append(torch.autograd.grad(sum(g.square().sum() for g in given), [x, module.weight]))
    torch.testing.assert_close(*penalties)


@pytest.mark.parametrize(("of_input", "of_weight"), [(True, False), (False, True)], ids=["input", "weight"])
def test_one_gradient_alone_may_be_asked_for(of_input, of_weight):
    pair = pair_of()
    for module in pair:
        module.weight.requires_grad_(of_weight)
    (_, *gradients), (_, *expected) = (answers_of(m, values_of(7, 3).requires_grad_(of_input)) for m in pair)
    assert [value is not None for value in gradients] == [of_input, of_weight]
    torch.testing.assert_close(gradients, expected)


def stored(module: torch.jit.ScriptModule) -> torch.jit.ScriptModule:
    """Written and read again, as it would be where this package is not installed."""
    file = io.BytesIO()
    torch.jit.save(module, file)
    file.seek(0)
    return torch.jit.load(file)


@pytest.mark.parametrize(
    "exported",
    [
        lambda module, x: stored(torch.jit.script(module)),  # noqa: ARG005
        lambda module, x: stored(torch.jit.trace(module, x)),
        lambda module, x: torch.export.export(module, (x,)).module(),
    ],
    ids=["script", "trace", "export"],
)
def test_exports_give_the_numbers_of_torch(exported):
    mine, torchs = pair_of()
    x = values_of(4, 3, 6, 5).requires_grad_()
    (out, *gradients), (expected, *expected_gradients) = answers_of(exported(mine, x), x), answers_of(torchs, x)
    assert torch.equal(out, expected)
    torch.testing.assert_close(gradients, expected_gradients)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_autocasting_gives_what_it_gives_with_torch(dtype):
    x = values_of(4, 3, 6, 5).to(dtype).requires_grad_()
    answers = []
    for module in pair_of():
        with torch.autocast("cpu", dtype=torch.bfloat16):
            answers.append(answers_of(module, x))
    (out, *gradients), (expected, *expected_gradients) = answers
    assert out.dtype == expected.dtype
    assert torch.equal(out, expected)
    torch.testing.assert_close(gradients, expected_gradients, rtol=2e-2, atol=2e-2)  # bfloat16 has eight bits
