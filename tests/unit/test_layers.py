# SPDX-License-Identifier: Apache-2.0
"""A layer's own error: small in a sound model, and large in the one layer that was broken."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

from wia_quant.evaluation import UNEXPLAINED_DB, EvaluationError, LayerError, worst_first
from wia_quant.layers import probe_layers
from wia_quant.sensitivity import sensitivities

N_LAYERS = 4


def batches(n: int, seed: int) -> list[dict[str, npt.NDArray[np.float32]]]:
    rng = np.random.default_rng(seed)
    return [{"x": rng.normal(size=(1, 8, 12, 12)).astype(np.float32)} for _ in range(n)]


class Reader(CalibrationDataReader):  # type: ignore[misc]  # onnxruntime has no types
    def __init__(self) -> None:
        self._left: Iterator[dict[str, npt.NDArray[np.float32]]] = iter(batches(8, 1))

    def get_next(self) -> dict[str, npt.NDArray[np.float32]] | None:
        return next(self._left, None)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[ModelProto, ModelProto]:
    """Four convolutions with Relu, as floats and as onnxruntime's quantizer writes them."""
    folder: Path = tmp_path_factory.mktemp("layers")
    rng = np.random.default_rng(0)
    nodes, constants, value = [], [], "x"
    for i in range(N_LAYERS):
        constants += [
            numpy_helper.from_array(rng.normal(0, 0.15, (8, 8, 3, 3)).astype(np.float32), f"w{i}"),
            numpy_helper.from_array(rng.normal(0, 0.1, 8).astype(np.float32), f"b{i}"),
        ]
        nodes += [
            helper.make_node("Conv", [value, f"w{i}", f"b{i}"], [f"c{i}"], f"conv{i}", pads=[1, 1, 1, 1]),
            helper.make_node("Relu", [f"c{i}"], [f"r{i}"], f"relu{i}"),
        ]
        value = f"r{i}"
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["N", 8, 12, 12]) for n in ("x", value)]
    graph = helper.make_graph(nodes, "net", ends[:1], ends[1:], constants)
    reference = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(reference, folder / "float.onnx")
    quantize_static(
        folder / "float.onnx",
        folder / "int8.onnx",
        Reader(),
        quant_format=QuantFormat.QDQ,
        per_channel=True,
        activation_type=QuantType.QInt8,
        weight_type=QuantType.QInt8,
    )
    return reference, onnx.load(folder / "int8.onnx")


def probe(quantized: ModelProto, reference: ModelProto) -> tuple[LayerError, ...]:
    return probe_layers(quantized, reference, batches(4, 2)).errors()


def initializer(model: ModelProto, name: str) -> TensorProto:
    return next(t for t in model.graph.initializer if t.name == name)


def change(model: ModelProto, name: str, f: Callable[[npt.NDArray[np.generic]], npt.NDArray[np.generic]]) -> None:
    tensor = initializer(model, name)
    tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(f(numpy_helper.to_array(tensor))), name))


def double_weight_scale(model: ModelProto, i: int) -> None:
    change(model, f"w{i}_scale", lambda s: (s * np.float32(2)).astype(np.float32))


def weights_a_thousand_times_too_large(model: ModelProto, i: int) -> None:
    """What rounding explains in such a layer is itself beyond the signal: it once explained the fault away."""
    change(model, f"w{i}_scale", lambda s: (s * np.float32(1000)).astype(np.float32))


def permute_channel_scales(model: ModelProto, i: int) -> None:
    change(
        model,
        f"w{i}_scale",
        lambda s: s[np.random.default_rng(i).permutation(s.size)] * np.linspace(0.5, 2, s.size, dtype=np.float32),
    )


def halve_output_range(model: ModelProto, i: int) -> None:
    change(model, f"r{i}_scale", lambda s: (s * np.float32(0.4)).astype(np.float32))


def shift_zero_point(model: ModelProto, i: int) -> None:
    q = next(
        n for n in model.graph.node if n.op_type == "DequantizeLinear" and n.input[0] == f"r{i}_QuantizeLinear_Output"
    )
    model.graph.initializer.append(numpy_helper.from_array(np.array(-90, np.int8), f"wrong{i}"))
    q.input[2] = f"wrong{i}"


def test_sound_layers_are_near_their_float_selves(models: tuple[ModelProto, ModelProto]) -> None:
    reference, quantized = models
    errors = probe(quantized, reference)
    assert [e.op_type for e in errors] == ["input", "Conv", "Conv", "Conv", "Conv"]
    assert all(e.local_sqnr_db > 30 for e in errors)
    assert all(e.cosine > 0.99 for e in errors)


def test_error_accumulates_but_a_layers_own_does_not(models: tuple[ModelProto, ModelProto]) -> None:
    reference, quantized = models
    last = probe(quantized, reference)[-1]
    assert last.total_sqnr_db < last.local_sqnr_db


@pytest.mark.parametrize("layer", range(N_LAYERS))
@pytest.mark.parametrize(
    "fault",
    [
        double_weight_scale,
        weights_a_thousand_times_too_large,
        permute_channel_scales,
        halve_output_range,
        shift_zero_point,
    ],
    ids=lambda f: f.__name__,
)
def test_worst_layer_is_the_broken_one(
    models: tuple[ModelProto, ModelProto], fault: Callable[[ModelProto, int], None], layer: int
) -> None:
    reference, quantized = models
    broken = ModelProto()
    broken.CopyFrom(quantized)
    fault(broken, layer)
    errors = probe(broken, reference)
    worst = worst_first(errors)[0]
    assert worst.node == f"conv{layer}"
    assert worst.excess_db > UNEXPLAINED_DB or fault is not weights_a_thousand_times_too_large


def test_clipped_share_is_counted(models: tuple[ModelProto, ModelProto]) -> None:
    reference, quantized = models
    broken = ModelProto()
    broken.CopyFrom(quantized)
    halve_output_range(broken, 1)
    shares = {e.node: e.clipped for e in probe(broken, reference)}
    assert shares["conv1"] > 0.01
    assert shares["conv2"] < 0.001


def test_models_without_a_common_tensor_are_refused(models: tuple[ModelProto, ModelProto]) -> None:
    reference, quantized = models
    other = ModelProto()
    other.CopyFrom(reference)
    for node in other.graph.node:
        for names in (node.input, node.output):
            for k, name in enumerate(names):
                names[k] = "other_" + name
    for value in [*other.graph.input, *other.graph.output, *other.graph.initializer]:
        value.name = "other_" + value.name
    with pytest.raises(EvaluationError, match="--reference"):
        probe_layers(quantized, other, batches(1, 2))


def test_the_broken_layer_gains_most_from_being_float(models: tuple[ModelProto, ModelProto]) -> None:
    reference, quantized = models
    broken = ModelProto()
    broken.CopyFrom(quantized)
    permute_channel_scales(broken, 1)
    found = sensitivities(broken, reference, [f"conv{i}" for i in range(N_LAYERS)], batches(2, 3))
    assert found[0].node == "conv1"
    assert found[0].gain_db > 5
    assert all(abs(s.gain_db) < 5 for s in found[1:])


def test_histogram_counts_every_value(models: tuple[ModelProto, ModelProto]) -> None:
    reference, quantized = models
    found = probe_layers(quantized, reference, batches(2, 2))
    counts, edges = found.histograms()["conv0"]
    assert counts.sum() == 2 * 8 * 12 * 12
    assert len(edges) == len(counts) + 1
