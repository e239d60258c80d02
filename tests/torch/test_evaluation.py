# SPDX-License-Identifier: Apache-2.0
"""In evaluation mode a prepared model computes what its file computes in libwia: no value differs."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812  # as every torch user writes it
from torch import nn
from torch.ao.quantization import quantize_fx
from torch.utils import _pytree as pytree

import wia_quant.torch as wia
from tests.torch.nets import NETS, Mobile, Residual, picture
from tests.torch.user_nets import USER_NETS, Example
from wia_quant.digest import graph_digest
from wia_quant.runtime import Session
from wia_quant.torch.verify import arguments

#: Nets of the tests in which a float operator (a resize, a mean ...) makes an output or feeds a quantizer:
#: torch and libwia may round its last bit differently.
WITH_FLOAT_OPERATORS: Final = frozenset(
    {"bilinear", "multihead", "encoder", "recurrent", "norms", "einsum", "yolo", "audio", "recommender", "autoencoder"}
    | {"two", "vit"}
)
#: A level of 255 in an input of the last operator moves an output by less than this share.
SPAN: Final = 0.02


def tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def evaluated(model: nn.Module, example: Example) -> list[np.ndarray]:
    args, kwargs = arguments(example)
    with torch.no_grad():
        return [y.numpy() for y in tensors(model.eval()(*args, **kwargs))]


def in_libwia(model: nn.Module, example: Example, *further: Example) -> list[list[np.ndarray]]:
    """The outputs of the file of ``model``, for each example."""
    session = Session(wia.export(model, example).model.SerializeToString())
    names = [i.name for i in session.get_inputs()]
    return [
        session.run(None, dict(zip(names, [t.numpy() for t in tensors(e)], strict=True))) for e in (example, *further)
    ]


def trained(net: nn.Module, batch: Callable[[], Example], **options: Any) -> nn.Module:
    """Some steps, so that BatchNorms, biases and ranges are not those of the beginning."""
    prepared = wia.prepare_qat(net.train(), **options)
    optimizer = torch.optim.SGD(prepared.parameters(), 0.01)
    for _ in range(4):
        optimizer.zero_grad()
        args, kwargs = arguments(batch())
        loss = torch.stack([(y - 1).square().mean() for y in tensors(prepared(*args, **kwargs))]).sum()
        loss.backward() if loss.requires_grad else None
        nn.utils.clip_grad_norm_(prepared.parameters(), 1.0)  # large biases make large losses
        optimizer.step()
    return prepared.eval()


def differing(model: nn.Module, *examples: Example) -> int:
    """How many values of all outputs are not the file's."""
    wanted = in_libwia(model, *examples)
    found = [evaluated(model, e) for e in examples]
    return sum(
        int((a != b).sum()) for one, other in zip(wanted, found, strict=True) for a, b in zip(one, other, strict=True)
    )


ALL: Final = {**NETS, **USER_NETS}


@pytest.mark.parametrize("name", [name for name in ALL if name not in WITH_FLOAT_OPERATORS])
def test_no_output_of_a_net_differs_from_its_file(name: str) -> None:
    make, batch = ALL[name]
    assert differing(trained(make(), batch), *(batch() for _ in range(3))) == 0


@pytest.mark.parametrize("name", ["audio", "autoencoder", "bilinear", "norms", "two", "vit"])
def test_float_operators_round_their_last_bit_as_torch_does(name: str) -> None:
    make, batch = ALL[name]
    model, example = trained(make(), batch), batch()
    for a, b in zip(in_libwia(model, example)[0], evaluated(model, example), strict=True):
        apart = np.abs(a - b) / np.abs(b).max()
        assert apart.max() < SPAN
        assert (apart > 1e-6).mean() < 0.01


class Call(nn.Module):
    """One layer, what is called with its result, and a layer behind, so that the two have grids."""

    def __init__(self, before: nn.Module, f: Callable[[torch.Tensor], torch.Tensor], behind: nn.Module) -> None:
        super().__init__()
        self.before, self.f, self.behind = before, f, behind

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.behind(self.f(self.before(x)))


class Joined(nn.Module):
    """Two layers of one input, what joins their results, and a layer behind."""

    def __init__(self, join: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], channels: int = 6) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(3, 6, 1)
        self.join, self.behind = join, nn.Conv2d(channels, 4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.behind(self.join(self.a(x), self.b(x)))


def conv(i: int = 3, o: int = 6, **options: Any) -> nn.Module:
    return nn.Conv2d(i, o, 3, **options)


def with_bn(layer: nn.Module, n: int) -> nn.Module:
    bn = nn.BatchNorm2d(n)
    nn.init.uniform_(bn.weight, 0.2, 2.0)
    nn.init.normal_(bn.bias)
    return nn.Sequential(layer, bn)


def biased(layer: nn.Module, size: float) -> nn.Module:
    nn.init.normal_(layer.bias, std=size)
    return layer


def with_dead(layer: nn.Module, axis: int = 0) -> nn.Module:
    """One whose bias would be beyond int32 in steps of its weight."""
    with torch.no_grad():
        layer.weight.select(axis, 0).mul_(1e-12)
        layer.bias[0] = 0.7
    return layer.requires_grad_(False)


def steps_of_channels(layer: nn.Module) -> nn.Module:
    """Weights of a channel a thousand times as large as those of another."""
    with torch.no_grad():
        layer.weight.mul_(torch.logspace(-2, 1, layer.weight.shape[0]).reshape(-1, 1, 1, 1))
    return layer


LAYERS: Final[Mapping[str, Callable[[], nn.Module]]] = MappingProxyType(
    {
        "strided": lambda: nn.Sequential(conv(stride=2), conv(6, 4)),
        "dilated": lambda: nn.Sequential(conv(dilation=2, padding=2), conv(6, 4)),
        "grouped": lambda: nn.Sequential(conv(), conv(6, 8, groups=2), conv(8, 4)),
        "depthwise": lambda: nn.Sequential(conv(), conv(6, 12, groups=6), conv(12, 4)),
        "reflected": lambda: nn.Sequential(conv(padding=1, padding_mode="reflect"), conv(6, 4)),
        "transposed": lambda: nn.Sequential(nn.ConvTranspose2d(3, 6, 3, 2, 1, 1), conv(6, 4)),
        "transposed, grouped": lambda: nn.Sequential(conv(), nn.ConvTranspose2d(6, 4, 2, 2, groups=2), conv(4, 4)),
        "wide": lambda: nn.Sequential(conv(3, 300), nn.ReLU(), conv(300, 8), conv(8, 4)),
        "batch norm": lambda: nn.Sequential(with_bn(conv(bias=False), 6), nn.ReLU(), with_bn(conv(6, 4), 4)),
        "batch norm, transposed": lambda: nn.Sequential(
            with_bn(nn.ConvTranspose2d(3, 6, 2, 2, groups=3), 6), conv(6, 4)
        ),
        "batch norm first": lambda: nn.Sequential(with_bn(nn.Identity(), 3), conv(3, 4)),
        "large biases": lambda: nn.Sequential(biased(conv(), 50.0), biased(conv(6, 4), 1000.0)),
        "small biases": lambda: nn.Sequential(biased(conv(), 1e-4), biased(conv(6, 4), 1e-3)),
        "a dead channel": lambda: nn.Sequential(with_dead(conv()), nn.ReLU6(), with_dead(conv(6, 4))),
        "a dead channel, depthwise": lambda: nn.Sequential(conv(), with_dead(conv(6, 6, groups=6)), conv(6, 4)),
        "a dead channel, transposed": lambda: nn.Sequential(
            conv(), with_dead(nn.ConvTranspose2d(6, 4, 2, 2, groups=2), axis=1), conv(4, 4)
        ),
        "a dead channel, linear": lambda: nn.Sequential(with_dead(nn.Linear(16, 8)), nn.Linear(8, 3)),
        "scales apart": lambda: nn.Sequential(steps_of_channels(conv()), steps_of_channels(conv(6, 4))),
        "linear": lambda: nn.Sequential(nn.Flatten(), nn.Linear(768, 16), nn.ReLU6(), nn.Linear(16, 5, bias=False)),
        "linear of pictures": lambda: nn.Sequential(nn.Linear(16, 8), nn.Linear(8, 3)),
        "relu6": lambda: nn.Sequential(with_bn(conv(), 6), nn.ReLU6(), conv(6, 4)),
        "hardtanh": lambda: nn.Sequential(with_bn(conv(), 6), nn.Hardtanh(-0.3, 0.7), conv(6, 4)),
        "leaky": lambda: nn.Sequential(conv(), nn.LeakyReLU(0.1), conv(6, 4)),
        "silu": lambda: nn.Sequential(conv(), nn.SiLU(), conv(6, 4)),
        "hardswish": lambda: nn.Sequential(conv(), nn.Hardswish(), conv(6, 4)),
        "x * sigmoid(x)": lambda: Call(conv(), lambda x: x * torch.sigmoid(x), conv(6, 4)),
        "x + x": lambda: Call(conv(), lambda x: x + x, conv(6, 4)),
        "2 * x - 1": lambda: Call(conv(), lambda x: 2 * x - 1, conv(6, 4)),
        "max pool": lambda: nn.Sequential(conv(), nn.MaxPool2d(3, 2, 1), conv(6, 4)),
        "average pool": lambda: nn.Sequential(conv(), nn.AvgPool2d(3, 2), conv(6, 4)),
        "average pool, padded": lambda: nn.Sequential(conv(), nn.AvgPool2d(3, 2, 1), conv(6, 4)),
        "average pool, of the inside": lambda: nn.Sequential(
            conv(), nn.AvgPool2d(3, 2, 1, count_include_pad=False), conv(6, 4)
        ),
        "adaptive pool": lambda: nn.Sequential(conv(), nn.AdaptiveAvgPool2d((7, 2)), nn.Conv2d(6, 4, 1)),
        "mean": lambda: Call(conv(), lambda x: x.mean((2, 3)), nn.Linear(6, 4)),
        "mean of one axis": lambda: Call(conv(), lambda x: torch.mean(x, dim=2), nn.Linear(14, 4)),
        "mean, clipped": lambda: Call(conv(), lambda x: F.relu(x.mean((2, 3))), nn.Linear(6, 4)),
        "shape": lambda: Call(conv(), lambda x: x.reshape(x.size(0), 3, -1), nn.Conv1d(3, 4, 3)),
        "pad": lambda: Call(conv(), lambda x: F.pad(x, (1, 2, 0, 1)), conv(6, 4)),
        "slices": lambda: Call(conv(), lambda x: x[:, 1:5, ::2], conv(4, 4)),
        "shuffled": lambda: Call(conv(), lambda x: F.pixel_shuffle(x[:, :4], 2), nn.Conv2d(1, 4, 1)),
        "nearest": lambda: Call(conv(), lambda x: F.interpolate(x, scale_factor=2), conv(6, 4)),
        "sum": lambda: Joined(torch.add),
        "sum, clipped": lambda: Joined(lambda a, b: F.relu(a + b)),
        "difference": lambda: Joined(lambda a, b: a - b),
        "product": lambda: Joined(torch.mul),
        "product with one number a picture": lambda: Joined(lambda a, b: a * b.mean((1, 2, 3), keepdim=True)),
        "product with its mean": lambda: Joined(lambda a, b: a * b.mean((2, 3), keepdim=True)),
        "concat": lambda: Joined(lambda a, b: torch.cat([a, b], 1), 12),
        "concat of clips": lambda: Joined(lambda a, b: torch.cat([F.relu(a), F.relu6(b)], 1), 12),
        "residual": lambda: Joined(lambda a, b: F.relu(a) + b),
        "matrix product": lambda: Joined(lambda a, b: torch.matmul(a, b.transpose(2, 3))),
    }
)  # fmt: skip


class Beside(nn.Module):
    """All on one picture: one file for all of them."""

    def __init__(self, *nets: nn.Module) -> None:
        super().__init__()
        self.nets = nn.ModuleList(nets)

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        return [net(x) for net in self.nets]


def test_no_output_of_a_layer_differs_from_its_file() -> None:
    model = trained(Beside(*(make() for make in LAYERS.values())), picture)
    batches = [picture(n) for n in (2, 1, 5)]
    found = dict.fromkeys(LAYERS, 0)
    for ours, theirs in zip([evaluated(model, b) for b in batches], in_libwia(model, *batches), strict=True):
        for name, a, b in zip(LAYERS, ours, theirs, strict=True):
            found[name] += int((a != b).sum())
    assert found == dict.fromkeys(LAYERS, 0)


@pytest.mark.parametrize("options", [{"scheme": "w4a8"}, {"per_channel": False}, {"observer": "minmax"}], ids=str)
def test_other_grids_are_exact_too(options: dict[str, Any]) -> None:
    model = trained(Residual(), picture, qconfig=wia.get_qconfig(**options))
    assert differing(model, picture(), picture()) == 0


def test_a_dead_channel_is_exact_where_weights_have_one_scale() -> None:
    net = nn.Sequential(conv(), nn.ReLU(), biased(conv(6, 4), 1e9))
    model = trained(net.requires_grad_(False), picture, qconfig=wia.get_qconfig(per_channel=False))
    assert differing(model, picture(), picture()) == 0


def test_learned_scales_are_exact_too() -> None:
    prepared = wia.observe(wia.prepare_qat(Mobile(), qconfig=wia.get_lsq_qconfig()), [picture() for _ in range(3)])
    optimizer = torch.optim.SGD([*prepared.parameters(), *wia.start_learning(prepared)], 0.01)
    for _ in range(3):
        prepared(*picture()).square().mean().backward()
        optimizer.step()
    assert differing(prepared.eval(), picture(), picture()) == 0


def test_one_dimension_is_exact_too() -> None:
    net = nn.Sequential(nn.Conv1d(3, 8, 3), nn.AvgPool1d(3, 2, 1), nn.ConvTranspose1d(8, 6, 2, 2), nn.Conv1d(6, 4, 3))
    model = trained(net, lambda: (torch.randn(4, 3, 20),))
    assert differing(model, (torch.randn(2, 3, 20),), (torch.randn(3, 3, 20),)) == 0


class Inverted(nn.Module):
    """MobileNetV2's block."""

    def __init__(self, n: int, stride: int) -> None:
        super().__init__()
        wide = 3 * n
        self.body = nn.Sequential(
            with_bn(nn.Conv2d(n, wide, 1, bias=False), wide), nn.ReLU6(),
            with_bn(nn.Conv2d(wide, wide, 3, stride, 1, groups=wide, bias=False), wide), nn.ReLU6(),
            with_bn(nn.Conv2d(wide, n, 1, bias=False), n),
        )  # fmt: skip
        self.stride = stride

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.body(x) if self.stride == 1 else self.body(x)


def deep() -> nn.Module:
    """54 products in a row."""
    blocks = [Inverted(8, 2 if n in (4, 10) else 1) for n in range(17)]
    ends = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, 10)]
    return nn.Sequential(
        with_bn(nn.Conv2d(3, 8, 3, 2, 1), 8), nn.ReLU6(), *blocks, with_bn(nn.Conv2d(8, 24, 1), 24), nn.ReLU6(), *ends
    )


def test_no_answer_of_a_deep_net_differs_from_its_file() -> None:
    model = trained(deep(), lambda: (torch.randn(8, 3, 32, 32),))
    pictures = [(torch.randn(16, 3, 32, 32),) for _ in range(2)]
    plain = inspect.unwrap(model.forward.__func__)
    with torch.no_grad():
        floating = plain(model, *pictures[0]).numpy()
    assert differing(model, *pictures) == 0
    assert (floating != evaluated(model, pictures[0])[0]).any()


class Block(nn.Module):
    """A layer of a transformer: norms first, four heads."""

    def __init__(self, n: int = 32) -> None:
        super().__init__()
        self.norm1, self.qkv, self.out = nn.LayerNorm(n), nn.Linear(n, 3 * n), nn.Linear(n, n)
        self.norm2, self.mlp = nn.LayerNorm(n), nn.Sequential(nn.Linear(n, 2 * n), nn.GELU(), nn.Linear(2 * n, n))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (t.unflatten(2, (4, -1)).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, dim=-1))
        weights = F.softmax(torch.matmul(q, k.transpose(2, 3)) * 0.35, dim=-1)
        x = x + self.out(torch.matmul(weights, v).transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


def test_no_output_of_a_transformer_differs_from_its_file() -> None:
    model = trained(nn.Sequential(nn.Linear(8, 32), *(Block() for _ in range(3)), nn.LayerNorm(32)), words)
    assert differing(model, words(), words(2)) == 0


def words(n: int = 4) -> Example:
    return (torch.randn(n, 20, 8),)


def test_a_layer_called_on_two_grids_is_exact_on_both() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.shared = nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 3, 3, padding=1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.shared(F.relu(self.shared(self.first(x))))

    assert differing(trained(Twice(), picture), picture(), picture()) == 0


def test_calibrated_and_converted_models_are_exact() -> None:
    prepared = wia.prepare(Residual().eval())
    for _ in range(3):
        prepared(*picture())
    assert differing(wia.convert(prepared), picture(), picture()) == 0


def test_models_prepared_in_graph_mode_are_exact_and_their_copies_are() -> None:
    mapping = torch.ao.quantization.get_default_qat_qconfig_mapping("wia")
    graph = quantize_fx.prepare_qat_fx(Residual().train(), mapping, picture())
    for _ in range(3):
        graph(*picture()).mean().backward()
    assert differing(graph.eval(), picture(), picture()) == 0
    assert differing(copy.deepcopy(graph), picture()) == 0


def test_copies_and_loaded_models_are_exact() -> None:
    model, (x,) = trained(Residual(), picture), picture()
    wanted = evaluated(model, (x,))[0]
    loaded = wia.prepare_qat(Residual().train())
    loaded.load_state_dict(model.state_dict())
    for other in (loaded, copy.deepcopy(model)):
        np.testing.assert_array_equal(evaluated(other, (x,))[0], wanted)
        assert differing(other, (x,)) == 0


def test_pictures_in_channels_last_memory_are_exact() -> None:
    model, (x,) = trained(Residual(), picture), picture()
    wanted = in_libwia(model, (x,))[0][0]
    model.to(memory_format=torch.channels_last)
    np.testing.assert_array_equal(evaluated(model, (x.to(memory_format=torch.channels_last),))[0], wanted)


def test_autocast_leaves_evaluation_exact() -> None:
    model, (x,) = trained(Residual(), picture), picture()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = evaluated(model, (x,))[0]
    np.testing.assert_array_equal(found, in_libwia(model, (x,))[0][0])


def float_path(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    y: torch.Tensor = inspect.unwrap(model.forward.__func__)(model, x)
    return y


def test_gradients_in_evaluation_are_those_of_fake_quantization_and_the_values_are_exact() -> None:
    model, (x,) = trained(Residual(), picture), picture()
    gradients = []
    for call in (model, lambda x: float_path(model, x)):
        model.zero_grad()
        given = x.clone().requires_grad_()
        y = call(given)
        y.sum().backward()
        gradients.append([given.grad, *(p.grad.clone() for p in model.parameters() if p.grad is not None)])
    for ours, wanted in zip(*gradients, strict=True):
        assert torch.equal(ours, wanted)
    np.testing.assert_array_equal(model(x).detach().numpy(), in_libwia(model, (x,))[0][0])
    assert evaluated(model, (x,))[0].tobytes() == model(x).detach().numpy().tobytes()


def test_training_computes_by_fake_quantization_to_the_bit() -> None:
    model, (x,) = trained(Mobile(), picture), picture()
    a, b = copy.deepcopy(model).train(), copy.deepcopy(model).train()
    assert torch.equal(a(x), float_path(b, x))


def test_hooks_inside_see_and_change_what_passes() -> None:
    model, (x,) = trained(Residual(), picture), picture()
    exact, seen = evaluated(model, (x,))[0], []
    handle = model.conv1.register_forward_hook(lambda module, args, y: seen.append(y.shape))
    with torch.no_grad():
        np.testing.assert_array_equal(evaluated(model, (x,))[0], float_path(model, x).numpy())
    handle.remove()
    handle = model.conv1.register_forward_hook(lambda module, args, y: y * 0)
    assert np.abs(evaluated(model, (x,))[0] - exact).max() > 0.01
    handle.remove()
    assert len(seen) == 2
    np.testing.assert_array_equal(evaluated(model, (x,))[0], exact)


class _Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return self.conv(x) * scale


def test_arguments_that_forward_does_not_have_are_refused_in_evaluation_as_in_training() -> None:
    x = torch.rand(2, 3, 5, 5)
    model = trained(_Scaled(), lambda: (x,)).eval()
    with torch.no_grad():
        for args, kwargs in (((x,), {"foo": 1}), ((x, 1.0, x), {}), ((x,), {"x": x})):
            with pytest.raises(TypeError):
                model(*args, **kwargs)


def test_an_empty_batch_passes_an_average_in_evaluation() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))
    model = trained(net, lambda: (torch.rand(2, 3, 5, 5),)).eval()
    with torch.no_grad():
        assert model(torch.zeros(0, 3, 5, 5)).shape == (0, 3)


def test_a_model_in_evaluation_is_exported_as_one_in_training_is() -> None:
    model, (x,) = trained(Residual(), picture), picture()
    digests = {graph_digest(wia.export(m, (x,)).model) for m in (model.eval(), copy.deepcopy(model).train())}
    assert len(digests) == 1


def test_what_was_not_observed_yet_is_observed_by_the_first_evaluation() -> None:
    prepared = wia.prepare_qat(Residual()).eval()
    (x,) = picture()
    first = prepared(x).detach().numpy()
    np.testing.assert_array_equal(first, in_libwia(prepared, (x,))[0][0])


def test_layers_kept_float_and_schemes_without_integers_compute_as_they_did() -> None:
    (x,) = picture()
    for options in ({"qconfig": wia.get_qconfig("w8a16")}, {"qconfig": wia.get_qconfig("fp16")}):
        model = trained(Residual(), picture, **options)
        with torch.no_grad():
            np.testing.assert_array_equal(evaluated(model, (x,))[0], float_path(model, x).numpy())


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_what_traces_a_model_sees_fake_quantization() -> None:
    model, (x,) = trained(Residual(), picture), picture()
    with torch.no_grad():
        assert torch.equal(torch.jit.trace(model, (x,), check_trace=False)(x), float_path(model, x))


class _OfItself(nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.first, self.last, self.function = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 3, 1), function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(F.relu(self.function(self.first(x))))


@pytest.mark.parametrize("function", [lambda y: y + y, lambda y: y * y, lambda y: y - y, lambda y: F.relu(y) + y])
def test_a_sum_of_a_tensor_and_itself_is_one_table_with_the_relu_behind(
    function: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    x = (torch.rand(2, 3, 5, 5),)
    model = trained(_OfItself(function), lambda: x)
    np.testing.assert_array_equal(evaluated(model, x)[0], in_libwia(model, x)[0][0])
