# SPDX-License-Identifier: Apache-2.0
"""An ONNX model as Python objects that are pleasant to edit: load, name, look up, rewire, write. No policy."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, cast

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, inliner, numpy_helper

from wia_quant.errors import ModelError

AnyArray = npt.NDArray[np.generic]

#: Protobuf refuses messages of 2 GiB; above this the weights of a saved model go to a file beside it.
MAX_PROTO_BYTES: Final = 2**31 - 2**20

#: Constants up to this many elements stay in a model whose shapes are inferred: their values can matter.
SMALL_CONSTANT: Final = 1024

#: ONNX operator set -> the lowest IR version that may carry it (onnx/docs/Versioning.md).
_IR_OF_OPSET: Final = {
    int(v): int(ir) for (domain, v), ir in helper.OP_SET_ID_VERSION_MAP.items() if domain == "ai.onnx"
}


@dataclass(eq=False)
class Node:
    """One operator. An absent optional input is ``""``; ``graphs`` are the bodies of If, Loop and Scan."""

    op_type: str
    inputs: list[str]
    outputs: list[str]
    name: str = ""
    domain: str = ""
    attributes: dict[str, onnx.AttributeProto] = field(default_factory=dict)
    graphs: dict[str, Graph] = field(default_factory=dict)
    doc_string: str = ""

    def attribute(self, name: str, default: object = None) -> object:
        """The Python value of an attribute; ``default`` when it is absent."""
        proto = self.attributes.get(name)
        if proto is None:
            return default
        value: object = helper.get_attribute_value(proto)
        return value.decode() if isinstance(value, bytes) else value

    def integer(self, name: str, default: int) -> int:
        """An integer attribute."""
        value = self.attribute(name, default)
        if not isinstance(value, int):
            raise ModelError(f"{self.where}: attribute {name!r} is not an integer")
        return value

    def integers(self, name: str) -> list[int] | None:
        """A list of integers, or None when the attribute is absent."""
        value = self.attribute(name)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(v, int) for v in value):
            raise ModelError(
                f"{self.where}: attribute {name!r} is no list of integers; correct the node, or export the model again"
            )
        return value

    def set(self, name: str, value: object) -> None:
        """Set an attribute; None removes it."""
        if value is None:
            self.attributes.pop(name, None)
        else:
            self.attributes[name] = helper.make_attribute(name, value)

    def input(self, index: int) -> str:
        """The name at ``index``, ``""`` when absent."""
        return self.inputs[index] if index < len(self.inputs) else ""

    @property
    def where(self) -> str:
        """How messages name this node: ``Conv 'stem/conv'``."""
        return f"{self.op_type} {self.name!r}"

    @property
    def standard(self) -> bool:
        """True for an operator of the ai.onnx domain."""
        return self.domain in ("", "ai.onnx")


@dataclass(eq=False)
class Graph:
    """The main graph or the body of a control-flow node."""

    name: str
    nodes: list[Node]
    inputs: list[onnx.ValueInfoProto]
    outputs: list[onnx.ValueInfoProto]
    initializers: dict[str, TensorProto]
    parent: Graph | None = None
    doc_string: str = ""

    def walk(self) -> Iterator[Graph]:
        """This graph and every graph inside it, outermost first."""
        yield self
        for node in self.nodes:
            for body in node.graphs.values():
                yield from body.walk()


class Model:
    """A model being edited: its graphs plus who makes and who reads each value.

    Value names are unique over all graphs, so look-ups are by name alone. After edits call ``index()``.
    """

    def __init__(self, proto: onnx.ModelProto) -> None:
        self.opsets: dict[str, int] = {o.domain if o.domain != "ai.onnx" else "": o.version for o in proto.opset_import}
        self.ir_version: int = proto.ir_version
        self.metadata = metadata_of(proto)
        self._producer_info = (proto.producer_name, proto.producer_version, proto.domain, proto.model_version)
        self._doc_string = proto.doc_string
        self.notes: list[str] = []
        self.main = _read_graph(proto.graph, None)
        self._arrays: dict[str, AnyArray] = {}
        self.types: dict[str, int] = {}
        self.shapes: dict[str, tuple[int | None, ...]] = {}
        self.symbols: dict[str, tuple[int | str | None, ...]] = {}
        self.index()

    @property
    def opset(self) -> int:
        """The version of the ai.onnx operator set."""
        return self.opsets.get("", 0)

    def floats(self, name: str) -> npt.NDArray[np.float32]:
        """The elements of a float32 constant."""
        array = self.array(name)
        if array is None or array.dtype != np.float32:
            raise ModelError(f"{name!r} is not a float32 constant")
        return cast(npt.NDArray[np.float32], array)

    def index(self) -> None:
        """Look at the graphs afresh: producers, consumers, owners, constants."""
        self.graphs: list[Graph] = list(self.main.walk())
        self.producers: dict[str, Node] = {}
        self.owners: dict[str, Graph] = {}
        self.constants: dict[str, TensorProto] = {}
        self.outputs: set[str] = set()
        self.readers: dict[str, list[Node]] = {}
        for graph in self.graphs:
            for info in graph.inputs:
                self.owners[info.name] = graph
            for name, tensor in graph.initializers.items():
                self.owners[name] = graph
                self.constants[name] = tensor
            for node in graph.nodes:
                for name in filter(None, node.outputs):
                    self.producers[name] = node
                    self.owners[name] = graph
                for name in filter(None, node.inputs):
                    self.readers.setdefault(name, []).append(node)
            self.outputs.update(info.name for info in graph.outputs)

    def nodes(self) -> Iterator[tuple[Graph, Node]]:
        """Every node with its graph, outer graphs first, in running order within each."""
        for graph in self.graphs:
            for node in graph.nodes:
                yield graph, node

    def consumers(self, value: str) -> list[Node]:
        """The nodes that read ``value``, once per reading input."""
        return self.readers.get(value, [])

    def only_reader(self, value: str) -> Node | None:
        """The one node that reads ``value`` once, if it is no graph output."""
        readers = self.consumers(value)
        return readers[0] if len(readers) == 1 and value not in self.outputs else None

    def array(self, name: str) -> AnyArray | None:
        """The elements of a constant; None when ``name`` is not one. Do not write into it."""
        tensor = self.constants.get(name)
        if tensor is None:
            return None
        if name not in self._arrays:
            try:
                self._arrays[name] = np.asarray(numpy_helper.to_array(tensor))
            except (ValueError, TypeError) as error:
                raise ModelError(f"initializer {name!r} cannot be read: {error}") from None
        return self._arrays[name]

    def is_float(self, name: str) -> bool:
        """True for a float32 value."""
        if name in self.constants:
            return self.constants[name].data_type == TensorProto.FLOAT
        return self.types.get(name) == TensorProto.FLOAT

    def rank(self, name: str) -> int | None:
        """Number of dimensions where known."""
        if name in self.constants:
            return len(self.constants[name].dims)
        shape = self.shapes.get(name)
        return None if shape is None else len(shape)

    def shape(self, name: str) -> tuple[int | None, ...] | None:
        """Dimensions where known; None for a dimension that is not."""
        if name in self.constants:
            return tuple(self.constants[name].dims)
        return self.shapes.get(name)

    def fresh(self, base: str) -> str:
        """A value name nobody has: ``base``, or ``base_1``, ``base_2`` ..."""
        return _unused(base, lambda n: n in self.owners or n in self.readers)

    def add_constant(self, graph: Graph, name: str, value: AnyArray) -> str:
        """Add an initializer; returns its name, which may carry a suffix."""
        name = self.fresh(name)
        return self.add_tensor(graph, name, numpy_helper.from_array(np.asarray(value, order="C"), name))

    def add_tensor(self, graph: Graph, name: str, tensor: TensorProto) -> str:
        """Add a ready tensor under a name that nobody has."""
        tensor.name = name
        graph.initializers[name] = tensor
        self.owners[name] = graph
        self.constants[name] = tensor
        self._arrays.pop(name, None)
        return name

    def replace_readers(self, old: str, new: str, keep: Iterable[Node] = ()) -> None:
        """Make every node input (but those of ``keep``) and no graph output read ``new`` instead of ``old``."""
        kept = {id(n) for n in keep}
        for node in self.consumers(old):
            if id(node) not in kept:
                node.inputs = [new if name == old else name for name in node.inputs]

    def drop_unused(self) -> None:
        """Remove nodes nobody needs and initializers nobody reads.

        Graph inputs stay, but for those whose default value goes: without it they would have to be given.
        """
        self.index()
        changed = True
        while changed:
            changed = False
            read: set[str] = set(self.outputs)
            for _, node in self.nodes():
                read.update(node.inputs)
            for graph in self.graphs:
                kept = [n for n in graph.nodes if any(o in read for o in n.outputs if o) or not any(n.outputs)]
                if len(kept) != len(graph.nodes):
                    graph.nodes, changed = kept, True
            self.index()
        defaults = self.main.initializers.keys() - read
        self.main.inputs = [info for info in self.main.inputs if info.name not in defaults]
        for graph in self.graphs:
            graph.initializers = {k: t for k, t in graph.initializers.items() if k in read}
        self.index()

    def sort(self) -> None:
        """Put the nodes of every graph into an order that can be run; the given order wins where it may."""
        for graph in self.graphs:
            made = {o: i for i, n in enumerate(graph.nodes) for o in n.outputs if o}
            order: list[Node] = []
            state = [0] * len(graph.nodes)
            for start in range(len(graph.nodes)):
                stack = [start]
                while stack:
                    i = stack[-1]
                    if state[i] == 0:
                        state[i] = 1
                        needed = sorted({made[v] for v in _all_inputs(graph.nodes[i]) if v in made}, reverse=True)
                        for j in needed:
                            if state[j] == 1 and j != i:
                                raise ModelError(f"{graph.nodes[i].where} depends on itself; the graph has a cycle")
                        stack.extend(j for j in needed if state[j] == 0)
                    else:
                        stack.pop()
                        if state[i] == 1:
                            state[i] = 2
                            order.append(graph.nodes[i])
            graph.nodes = order

    def infer(self) -> None:
        """Fill ``types``, ``shapes`` and ``symbols`` (dimensions with their names) by ONNX shape inference.

        Large constants are looked at by shape only.
        """
        proto = self.to_proto(constants_up_to=SMALL_CONSTANT)
        try:
            proto = onnx.shape_inference.infer_shapes(proto, check_type=False, strict_mode=False, data_prop=True)
        except Exception as error:  # onnx raises bare RuntimeError and its own InferenceError
            raise ModelError(f"shape inference failed: {error}") from None
        self.types, self.symbols = {}, {}
        _read_types(proto.graph, self.types, self.symbols)
        self.shapes = {k: tuple(d if isinstance(d, int) else None for d in v) for k, v in self.symbols.items()}
        for name, tensor in self.constants.items():
            self.types[name] = tensor.data_type
            self.shapes[name] = tuple(tensor.dims)
            self.symbols[name] = tuple(tensor.dims)
        for info in self.main.outputs:
            self._describe(info)

    def _describe(self, info: onnx.ValueInfoProto) -> None:
        """Give an output that was declared without type or shape what inference found."""
        tensor = info.type.tensor_type
        if not tensor.elem_type and info.name in self.types:
            tensor.elem_type = self.types[info.name]
        if not tensor.HasField("shape") and info.name in self.symbols:
            dims = list(self.symbols[info.name])
            info.CopyFrom(helper.make_tensor_value_info(info.name, tensor.elem_type, dims))

    def interface(self) -> onnx.ModelProto:
        """A message with the inputs and outputs alone."""
        proto = onnx.ModelProto(ir_version=self.ir_version)
        proto.graph.input.extend(self.main.inputs)
        proto.graph.output.extend(self.main.outputs)
        return proto

    def to_proto(self, constants_up_to: int | None = None) -> onnx.ModelProto:
        """The model as a message; with ``constants_up_to``, larger constants become inputs (for inference)."""
        proto = onnx.ModelProto()
        proto.ir_version = self.ir_version
        proto.producer_name, proto.producer_version, proto.domain, proto.model_version = self._producer_info
        proto.doc_string = self._doc_string
        for domain in sorted(self.opsets):
            proto.opset_import.add(domain=domain, version=self.opsets[domain])
        _write_graph(self.main, proto.graph, constants_up_to)
        for key in sorted(self.metadata):
            proto.metadata_props.add(key=key, value=self.metadata[key])
        return proto


def metadata_of(proto: onnx.ModelProto) -> dict[str, str]:
    """The model's ``metadata_props``."""
    return {entry.key: entry.value for entry in proto.metadata_props}


def read_proto(source: str | Path | bytes | onnx.ModelProto) -> onnx.ModelProto:
    """A private copy of a model, with its external data.

    Raises:
        ModelError: no such file, not an ONNX model, or no graph in it.
    """
    if isinstance(source, onnx.ModelProto):
        proto = onnx.ModelProto()
        proto.CopyFrom(source)
        label = "the model"
    elif not isinstance(source, str | os.PathLike | bytes):
        what = f"the class {source.__name__}" if isinstance(source, type) else f"a {type(source).__name__}"
        raise ModelError(
            f"{what} is no model: give a file's path, its bytes, an onnx.ModelProto, a torch.nn.Module or a Keras model"
        )
    elif isinstance(source, bytes):
        proto, label = _parse(source, "the model"), "the model"
    else:
        path = Path(source)
        label = str(path)
        if not path.is_file():
            raise ModelError(f"{path}: no such file")
        try:
            proto = onnx.load(str(path))
        except Exception as error:  # protobuf's DecodeError, OSError and ValueError of external data alike
            raise ModelError(f"{path}: cannot be read as an ONNX model ({_first_line(error)})") from None
    if not proto.graph.output or not proto.opset_import:
        raise ModelError(f"{label}: not an ONNX model (it has no outputs or no operator set)")
    return proto


def load(source: str | Path | bytes | onnx.ModelProto) -> Model:
    """A model ready to be edited: a copy, every node and value named once, functions inlined.

    The argument is never changed.
    """
    proto = read_proto(source)
    if proto.functions:
        proto = inliner.inline_local_functions(proto)
    unique_names(proto)
    return Model(proto)


def source_sha256(source: str | Path | bytes | onnx.ModelProto) -> str:
    """The digest that ties tables and quantized models to their float model.

    Of a file: its bytes. Of a message: its deterministic serialization.
    """
    digest = hashlib.sha256()
    if isinstance(source, onnx.ModelProto):
        digest.update(source.SerializeToString(deterministic=True))
    elif isinstance(source, bytes):
        digest.update(source)
    else:
        path = Path(source)
        if not path.is_file():
            raise ModelError(f"{path}: no such file")
        with path.open("rb") as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
    return digest.hexdigest()


def unique_names(proto: onnx.ModelProto) -> None:
    """Give every node a name, and make node names and value names unique over all graphs, in place.

    Names that are already unique stay as they are; the first of two keeps its name.
    """
    taken_nodes: set[str] = set()
    taken_values: set[str] = set()
    _collect_node_names(proto.graph, taken_nodes)
    seen_nodes: set[str] = set()
    _rename_graph(proto.graph, {}, taken_values, taken_nodes, seen_nodes)


def ir_version_of(opset: int) -> int:
    """The lowest IR version that may carry ``opset``."""
    return _IR_OF_OPSET.get(opset, max(_IR_OF_OPSET.values()))


def save(proto: onnx.ModelProto, path: Path, *, name: str | None = None) -> None:
    """Write a model; above 2 GiB its weights go to ``<name>.data`` beside it.

    ``name`` is what the file will be called, when ``path`` is a temporary one.
    """
    if proto.ByteSize() < MAX_PROTO_BYTES:
        path.write_bytes(proto.SerializeToString(deterministic=True))
        return
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)  # save_model moves the weights out of the message it is given
    location = (name or path.name) + ".data"
    onnx.save_model(copy, str(path), save_as_external_data=True, location=location, size_threshold=SMALL_CONSTANT)


def make_node(
    op_type: str, inputs: list[str], outputs: list[str], name: str, attributes: Mapping[str, object] | None = None
) -> Node:
    """A node of the ai.onnx domain."""
    node = Node(op_type, inputs, outputs, name)
    for key, value in (attributes or {}).items():
        node.set(key, value)
    return node


def _parse(data: bytes, label: str) -> onnx.ModelProto:
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
    except Exception as error:
        raise ModelError(f"{label}: cannot be read as an ONNX model ({_first_line(error)})") from None
    return proto


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _unused(base: str, taken: Callable[[str], bool]) -> str:
    name, i = base, 0
    while taken(name):
        i += 1
        name = f"{base}_{i}"
    return name


def _all_inputs(node: Node) -> Iterator[str]:
    """The inputs of a node and every outer value its bodies read."""
    yield from filter(None, node.inputs)
    for body in node.graphs.values():
        for graph in body.walk():
            for inner in graph.nodes:
                yield from filter(None, inner.inputs)
            yield from (info.name for info in graph.outputs)


def _collect_node_names(graph: onnx.GraphProto, names: set[str]) -> None:
    for node in graph.node:
        names.add(node.name)
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs):
                _collect_node_names(body, names)


def _rename_graph(
    graph: onnx.GraphProto, scope: Mapping[str, str], values: set[str], node_names: set[str], seen: set[str]
) -> None:
    """Rename in place; ``scope`` maps the outer values' old names to their new ones."""
    local = dict(scope)

    def define(name: str) -> str:
        if not name:
            return name
        new = _unused(name, values.__contains__)
        values.add(new)
        local[name] = new
        return new

    defined_here: set[str] = set()
    for info in graph.input:
        defined_here.add(info.name)
        info.name = define(info.name)
    for tensor in graph.initializer:
        if tensor.name in defined_here:  # an initializer that is also an input is one value
            tensor.name = local[tensor.name]
        else:
            tensor.name = define(tensor.name)
    for sparse in graph.sparse_initializer:
        sparse.values.name = define(sparse.values.name)
    for i, node in enumerate(graph.node):
        if not node.name or node.name in seen:
            node.name = _unused(node.name or f"{node.op_type}_{i}", lambda n: n in node_names or n in seen)
        node_names.add(node.name)
        seen.add(node.name)
        for k, name in enumerate(node.input):
            if name:
                node.input[k] = local.get(name, name)
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _rename_graph(attribute.g, local, values, node_names, seen)
            for body in attribute.graphs:
                _rename_graph(body, local, values, node_names, seen)
        for k, name in enumerate(node.output):
            node.output[k] = define(name)
    for info in graph.output:
        info.name = local.get(info.name, info.name)
    del graph.value_info[:]
    del graph.quantization_annotation[:]


def _read_graph(proto: onnx.GraphProto, parent: Graph | None) -> Graph:
    graph = Graph(proto.name or "graph", [], [], [], {}, parent, proto.doc_string)
    graph.inputs.extend(proto.input)
    graph.outputs.extend(proto.output)
    graph.initializers.update((t.name, t) for t in proto.initializer)
    if proto.sparse_initializer:
        for sparse in proto.sparse_initializer:
            graph.initializers[sparse.values.name] = _dense(sparse)
    for source in proto.node:
        node = Node(source.op_type, list(source.input), list(source.output), source.name, source.domain)
        node.doc_string = source.doc_string
        for attribute in source.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                node.graphs[attribute.name] = _read_graph(attribute.g, graph)
            elif attribute.type == onnx.AttributeProto.GRAPHS:
                raise ModelError(f"{node.where}: attribute {attribute.name!r} is a list of graphs; not supported")
            else:
                node.attributes[attribute.name] = attribute
        graph.nodes.append(node)
    return graph


def _dense(sparse: onnx.SparseTensorProto) -> TensorProto:
    values = numpy_helper.to_array(sparse.values)
    indices = numpy_helper.to_array(sparse.indices)
    dense = np.zeros(tuple(sparse.dims), dtype=values.dtype)
    if indices.ndim == 1:
        dense.reshape(-1)[indices] = values
    else:
        dense[tuple(indices.T)] = values
    return numpy_helper.from_array(dense, sparse.values.name)


def _write_graph(graph: Graph, proto: onnx.GraphProto, constants_up_to: int | None) -> None:
    proto.name = graph.name
    if graph.doc_string:
        proto.doc_string = graph.doc_string
    proto.input.extend(graph.inputs)
    proto.output.extend(graph.outputs)
    for name, tensor in graph.initializers.items():
        if constants_up_to is not None and int(np.prod(tensor.dims)) > constants_up_to:
            proto.input.append(helper.make_tensor_value_info(name, tensor.data_type, list(tensor.dims)))
        else:
            proto.initializer.append(tensor)
    for node in graph.nodes:
        target = proto.node.add()
        target.op_type, target.name = node.op_type, node.name
        if node.domain:
            target.domain = node.domain
        if node.doc_string:
            target.doc_string = node.doc_string
        target.input.extend(node.inputs)
        target.output.extend(node.outputs)
        target.attribute.extend(node.attributes[k] for k in sorted(node.attributes))
        for key in sorted(node.graphs):
            attribute = target.attribute.add(name=key, type=onnx.AttributeProto.GRAPH)
            _write_graph(node.graphs[key], attribute.g, constants_up_to)


def _read_types(graph: onnx.GraphProto, types: dict[str, int], shapes: dict[str, tuple[int | str | None, ...]]) -> None:
    for info in (*graph.input, *graph.value_info, *graph.output):
        if not info.type.HasField("tensor_type"):
            continue
        tensor = info.type.tensor_type
        if tensor.elem_type:
            types[info.name] = tensor.elem_type
        if tensor.HasField("shape"):
            shapes[info.name] = tuple(_dimension(d) for d in tensor.shape.dim)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _read_types(attribute.g, types, shapes)


def _dimension(d: onnx.TensorShapeProto.Dimension) -> int | str | None:
    if d.HasField("dim_value") and d.dim_value >= 0:
        return int(d.dim_value)
    return str(d.dim_param) or None
