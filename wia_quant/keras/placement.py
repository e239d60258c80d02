# SPDX-License-Identifier: Apache-2.0
"""Where training puts fake quantizers: on the tensors that the exported model holds as integers, and nowhere else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Final

from wia_quant.keras.emit.activations import function_name
from wia_quant.keras.steps import Step, foldable_batch_norms, readers_of
from wia_quant.keras.trace import Value


class Role(Enum):
    """What a step does to the grids of its tensors."""

    PRODUCT = "multiplies by a weight: input quantized, output quantized"
    ARITHMETIC = "integers in, integers out, a scale of its own"
    CONCAT = "all inputs and the output share one scale"
    CLIP = "monotone: no quantizer between it and a product or a sum before it"
    NORM = "a BatchNorm that goes into the product before it"
    TABLE = "a function of one value: quantizers on both sides"
    MOVER = "moves values: output on the grid of the input"
    FLOAT = "stays float"


ROLES: Final[Mapping[str, Role]] = MappingProxyType(
    {
        **dict.fromkeys(
            (
                "Conv1D", "Conv2D", "Conv3D", "DepthwiseConv1D", "DepthwiseConv2D", "Conv1DTranspose",
                "Conv2DTranspose", "Conv3DTranspose", "Dense", "Embedding",
            ),
            Role.PRODUCT,
        ),
        **dict.fromkeys(
            (
                "Add", "Subtract", "Multiply", "Average", "AveragePooling1D", "AveragePooling2D", "AveragePooling3D",
                "GlobalAveragePooling1D", "GlobalAveragePooling2D", "GlobalAveragePooling3D", "Resizing",
                "LayerScale",
                "ops.Add", "ops.Subtract", "ops.Multiply", "ops.Matmul", "ops.AveragePool",
            ),
            Role.ARITHMETIC,
        ),
        **dict.fromkeys(("Concatenate", "ops.Concatenate", "ops.Stack"), Role.CONCAT),
        **dict.fromkeys(("relu", "relu6", "ReLU", "ops.Relu", "ops.Relu6", "ops.Clip"), Role.CLIP),
        **dict.fromkeys(
            (
                "LeakyReLU", "ELU", "leaky_relu", "elu", "selu", "celu", "sigmoid", "hard_sigmoid", "tanh", "silu",
                "swish", "hard_silu", "hard_swish", "gelu", "mish", "softplus", "softsign", "Rescaling",
                "hard_sigmoid_of_tf_keras", "ops.LeakyRelu", "ops.Elu", "ops.Selu", "ops.Sigmoid", "ops.HardSigmoid",
                "ops.Tanh", "ops.Silu", "ops.HardSilu", "ops.Gelu", "ops.Softplus",
                "ops.Softsign",
            ),
            Role.TABLE,
        ),
        **dict.fromkeys(
            (
                "MaxPooling1D", "MaxPooling2D", "MaxPooling3D", "GlobalMaxPooling1D", "GlobalMaxPooling2D",
                "GlobalMaxPooling3D", "Flatten", "Reshape", "Permute", "RepeatVector", "ZeroPadding1D",
                "ZeroPadding2D", "ZeroPadding3D", "Cropping1D", "Cropping2D", "Cropping3D", "UpSampling1D",
                "UpSampling2D", "UpSampling3D", "Identity", "linear", "Dropout", "SpatialDropout1D",
                "SpatialDropout2D", "SpatialDropout3D", "StochasticDepth", "ActivityRegularization", "ops.Reshape",
                "ops.Transpose",
                "ops.GetItem", "ops.Squeeze", "ops.ExpandDims", "ops.Identity", "ops.Swapaxes", "ops.Moveaxis",
                "ops.Split", "ops.Unstack", "ops.Flip", "ops.Tile", "ops.Repeat", "ops.Roll", "ops.Take",
                "ops.DepthToSpace", "ops.SpaceToDepth", "ops.MaxPool",
            ),
            Role.MOVER,
        ),
    }
)  # fmt: skip

#: Functions of each value alone besides tables and bounds.
ELEMENTWISE: Final = frozenset(
    {
        "Add", "Subtract", "Multiply", "Maximum", "Minimum", "Average", "Identity", "linear", "Dropout", "exponential",
        "ops.Add", "ops.Subtract", "ops.Multiply", "ops.Divide", "ops.TrueDivide", "ops.Maximum", "ops.Minimum",
        "ops.Exp", "ops.Log", "ops.Abs", "ops.Absolute", "ops.Negative", "ops.Sqrt", "ops.Rsqrt", "ops.Square",
        "ops.Erf", "ops.Clip", "ops.Power", "ops.Identity",
    }
)  # fmt: skip

_PRODUCES: Final = (Role.PRODUCT, Role.ARITHMETIC, Role.NORM)


@dataclass
class Placement:
    """Where quantizers go.

    Attributes:
        roles: ``id`` of a step -> its role.
        quantized: ``id`` of a tensor -> the name of its quantizer; tensors that share a grid share the name.
        grids: ``id`` of a tensor -> ``id`` of the tensor whose quantizer puts it on its grid.
        left_float: name of a step -> why it has no integer form.
        bounded: ``id`` of a tensor that only a bound reads, whose result is quantized -> ``id`` of that result.
        sources: ``id`` of a tensor -> ``id`` of the quantized tensor that each of its values is a function of; what
            joins two functions of one is a table of its levels, too.
    """

    roles: dict[int, Role] = field(default_factory=dict)
    quantized: dict[int, str] = field(default_factory=dict)
    grids: dict[int, int] = field(default_factory=dict)
    left_float: dict[str, str] = field(default_factory=dict)
    bounded: dict[int, int] = field(default_factory=dict)
    sources: dict[int, int] = field(default_factory=dict)

    def ending(self, value: Value) -> int | None:
        """``id`` of the tensor whose quantizer alone reads ``value``, at once or behind a bound."""
        end = self.bounded.get(id(value), id(value))
        return end if end in self.quantized else None

    def leave_float(self, names: frozenset[str], steps: list[Step]) -> None:
        """Takes the quantizers of these names away, where all that reads their tensors stays float."""
        needed = {
            self.quantized.get(self.grids[id(v)])
            for step in steps
            if self.roles[id(step)] not in (Role.FLOAT, Role.MOVER)
            for v in step.inputs
        }
        self.quantized = {key: name for key, name in self.quantized.items() if name not in names or name in needed}

    def reads_rounded(self, step: Step, value: Value, producer: Step | None) -> bool:
        """Whether ``step`` takes the rounded values of a quantized tensor.

        A float step reads what the integers stand for where they exist, and the reals of a float source.
        """
        from_float = producer is None or self.roles[id(producer)] is Role.FLOAT
        return not (from_float and self.roles[id(step)] is Role.FLOAT)


def role_name(step: Step) -> str:
    """The name of a step in ROLES."""
    if step.key == "activation":
        return function_name(step.layer)
    if step.key == "Activation":
        return function_name(step.layer.activation)
    return step.key


def place(steps: list[Step], inputs: list[Value], outputs: list[Value], excluded: frozenset[str]) -> Placement:
    """Finds the tensors that need a quantizer.

    Args:
        steps: with BatchNorms on their own.
        inputs: of the model.
        outputs: of the model; what is only returned stays float.
        excluded: names of steps that stay float.
    """
    return _Placer(steps, inputs, outputs, excluded).run()


class _Placer:
    def __init__(self, steps: list[Step], inputs: list[Value], outputs: list[Value], excluded: frozenset[str]) -> None:
        self.steps = steps
        self.readers = readers_of(steps)
        self.returned = {id(v) for v in outputs}
        self.producers = {id(v): step for step in steps for v in step.outputs}
        self.values = {id(v): v for v in [*inputs, *(v for s in steps for v in s.outputs)]}
        self.found = Placement()
        norms = {id(norm) for norm in foldable_batch_norms(steps, outputs).values()}
        for step in steps:
            self.found.roles[id(step)] = self._role(step, norms, excluded)
        self.parent: dict[int, int] = {}

    def _role(self, step: Step, norms: set[int], excluded: frozenset[str]) -> Role:
        if step.name in excluded:
            self.found.left_float[step.name] = "excluded"
            return Role.FLOAT
        if id(step) in norms:
            product = self.producers[id(step.inputs[0])]
            return Role.FLOAT if product.name in excluded else Role.NORM
        role = ROLES.get(role_name(step), Role.FLOAT)
        if step.key == "ReLU" and step.layer.negative_slope:
            role = Role.TABLE
        if step.key.startswith("UpSampling") and getattr(step.layer, "interpolation", "nearest") != "nearest":
            role = Role.ARITHMETIC
        if role is Role.FLOAT:
            self.found.left_float[step.name] = f"{role_name(step)} has no integer form"
        return role

    def run(self) -> Placement:
        roles = self.found.roles
        wanted: set[int] = set()
        for step in self.steps:
            role = roles[id(step)]
            if role in (Role.FLOAT, Role.MOVER):
                continue
            if role is not Role.NORM and not (role is Role.CLIP and self._is_fused(step)):
                wanted.update(self._grid_of(id(v)) for v in step.inputs if v.dtype.startswith("float"))
            if role is Role.CONCAT:
                for v in step.inputs:
                    self._join(self._grid_of(id(v)), id(step.outputs[0]))
            if not self._stays_float(step):
                wanted.add(id(step.outputs[0]))
        for key in self.values:
            if key in wanted:
                self.found.quantized[key] = self.values[self._root(key)].name
        self.found.grids = {key: self._grid_of(key) for key in self.values}
        for step in self.steps:
            before = id(step.inputs[0]) if step.inputs else 0
            if roles[id(step)] is Role.CLIP and before not in wanted and id(step.outputs[0]) in wanted:
                self.found.bounded[before] = id(step.outputs[0])
            self.found.sources[id(step.outputs[0])] = self._source_of(step)
        return self.found

    def _source_of(self, step: Step) -> int:
        """The tensor of whose levels the result is a function, value by value; itself where there is none."""
        elementwise = role_name(step) in ELEMENTWISE or self.found.roles[id(step)] in (Role.TABLE, Role.CLIP)
        sources = {self.found.sources.get(id(v), id(v)) for v in step.inputs}
        alone = elementwise and len(sources) == 1 and not step.has_constants
        return sources.pop() if alone else id(step.outputs[0])

    def _grid_of(self, key: int) -> int:
        """The tensor whose quantizer puts these values on their grid: movers pass it on."""
        while key in self.producers and self.found.roles[id(self.producers[key])] is Role.MOVER:
            key = id(self.producers[key].inputs[0])
        return key

    def _is_fused(self, step: Step) -> bool:
        key = id(step.inputs[0])
        before = self.producers.get(key)
        return before is not None and self.found.roles[id(before)] in _PRODUCES and self._is_only_reader(key)

    def _is_only_reader(self, key: int) -> bool:
        return len(self.readers.get(key, ())) == 1 and key not in self.returned

    def _stays_float(self, step: Step) -> bool:
        key, role = id(step.outputs[0]), self.found.roles[id(step)]
        if self._is_only_reader(key):
            after = self.found.roles[id(self.readers[key][0])]
            if after is Role.NORM or (after is Role.CLIP and role in _PRODUCES):
                return True  # what follows is quantized
        return self._leads_to_output_only(key)

    def _leads_to_output_only(self, key: int) -> bool:
        return all(
            self.found.roles[id(step)] in (Role.MOVER, Role.FLOAT)
            and all(self._leads_to_output_only(id(v)) for v in step.outputs)
            for step in self.readers.get(key, ())
        )

    def _root(self, key: int) -> int:
        while (parent := self.parent.get(key, key)) != key:
            key = parent
        return key

    def _join(self, a: int, b: int) -> None:
        ra, rb = self._root(a), self._root(b)
        if ra != rb:
            self.parent[rb] = ra
