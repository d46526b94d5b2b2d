"""Networks whose maps lie as TensorFlow has them (NHWC), and the same in NCHW."""

import numpy as np
import onnx
from onnx import helper, numpy_helper
from tvm import relax

from tvm_winograd.frontend import load_model
from tvm_winograd.frontend.model import make_model

TO_NHWC, TO_NCHW = (0, 2, 3, 1), (0, 3, 1, 2)


class Net:
    """A network in relax, operator by operator, in one layout, weights in `kernel`."""

    def __init__(self, layout, kernel="OIHW", shape=(2, 3, 20, 18)):
        self.layout, self.kernel = layout, kernel
        self.builder, self.rng = relax.BlockBuilder(), np.random.default_rng(3)
        self.variables, self.params = [], {}
        self.x = self.variable("x", self.map(shape))

    def map(self, nchw):
        return tuple(nchw["NCHW".index(axis)] for axis in self.layout)

    def variable(self, name, shape):
        self.variables.append(relax.Var(name, relax.TensorType(shape, "float32")))
        return self.variables[-1]

    def param(self, name, array):
        self.params[name] = np.ascontiguousarray(array, "float32")
        return self.variable(name.replace(".", "_"), array.shape)

    def conv(self, name, x, c, k, size=3, stride=1, norm=True):
        """With batch norm, or a bias."""
        w = self.rng.standard_normal((k, c, size, size)) / np.sqrt(c * size * size)
        axes = ["OIHW".index(axis) for axis in self.kernel]
        weight = self.param(f"{name}.weight", w.transpose(axes))
        layouts = {"data_layout": self.layout, "kernel_layout": self.kernel}
        pad = size // 2
        y = self.emit(relax.op.nn.conv2d(x, weight, stride, pad, **layouts))
        if not norm:
            bias = self.map((1, k, 1, 1))
            bias = bias if self.layout == "NCHW" else bias[3:]  # broadcast, as TensorFlow has it
            array = self.rng.standard_normal(k).reshape(bias)
            return self.emit(relax.op.add(y, self.param(f"{name}.bias", array)))
        values = [self.rng.uniform(0.5, 1.5, k) for _ in range(4)]
        args = [self.param(f"{name}.bn{i}", v) for i, v in enumerate(values)]
        axis = self.layout.index("C")
        return self.emit(
            relax.TupleGetItem(
                self.emit(relax.op.nn.batch_norm(y, *args, axis=axis, training=False)), 0
            )
        )

    def emit(self, expr):
        return self.builder.emit(expr)

    def model(self, body):
        """`body(net)` gives the output."""
        with self.builder.function("main"):
            with self.builder.dataflow():
                out = self.builder.emit_output(body(self))
            self.builder.emit_func_output(out, params=self.variables)
        return make_model("net", self.builder.get(), self.params, {"kind": "test"})


def resnet(net):
    """Stem, pooling, a block, a strided one, concatenation, average, classifier."""
    relu = relax.op.nn.relu
    x = net.emit(relu(net.conv("stem", net.x, 3, 16)))
    x = net.emit(relax.op.nn.max_pool2d(x, (3, 3), (2, 2), (1, 1), layout=net.layout))
    y = net.emit(relu(net.conv("a1", x, 16, 16)))
    x = net.emit(relu(net.emit(relax.op.add(net.conv("a2", y, 16, 16), x))))
    y = net.emit(relu(net.conv("b1", x, 16, 24, stride=2)))
    y = net.conv("b2", y, 24, 24, norm=False)
    side = net.conv("b0", x, 16, 24, size=1, stride=2)
    x = net.emit(relu(net.emit(relax.op.add(y, side))))
    x = net.emit(relax.op.concat([x, side], axis=net.layout.index("C")))
    x = net.emit(relax.op.nn.adaptive_avg_pool2d(x, (1, 1), layout=net.layout))
    x = net.emit(relax.op.reshape(x, (2, 48)))
    weight = net.param("fc.weight", net.rng.standard_normal((48, 10)) / 7)
    return relax.op.nn.softmax(net.emit(relax.op.matmul(x, weight)))


def segmenter(net):
    """Its output is a map too."""
    x = net.emit(relax.op.nn.relu(net.conv("c1", net.x, 3, 16)))
    x = net.emit(relax.op.image.resize2d(x, (40, 36), layout=net.layout))
    return net.conv("c2", x, 16, 8, norm=False)


def tensorflow_like(path, transposed):
    """Two convolutions with a residual, as tf2onnx writes them: NHWC between transposes around
    every convolution, pooling and batch norm. The same network in NCHW, if not `transposed`."""
    rng, nodes, arrays = np.random.default_rng(5), [], {}

    def node(op, inputs, **attrs):
        nodes.append(helper.make_node(op, inputs, [f"v{len(nodes)}"], **attrs))
        return nodes[-1].output[0]

    def array(values):
        arrays[f"p{len(arrays)}"] = np.asarray(values, "float32")
        return f"p{len(arrays) - 1}"

    def in_nchw(op, x, *params, **attrs):
        if not transposed:
            return node(op, [x, *params], **attrs)
        y = node(op, [node("Transpose", [x], perm=TO_NCHW), *params], **attrs)
        return node("Transpose", [y], perm=TO_NHWC)

    def conv(x, c, k):
        w = array(rng.standard_normal((k, c, 3, 3)) / np.sqrt(9 * c))
        bias = rng.standard_normal(k).reshape((k,) if transposed else (k, 1, 1))
        y = node("Add", [in_nchw("Conv", x, w, pads=[1] * 4), array(bias)])
        return in_nchw("BatchNormalization", y, *(array(rng.uniform(0.5, 1.5, k)) for _ in "abcd"))

    x = in_nchw("MaxPool", node("Relu", [conv("x", 3, 16)]), kernel_shape=[2, 2], strides=[2, 2])
    y = node("Relu", [node("Add", [x, conv(x, 16, 16)])])
    y = node("ReduceMean", [y], axes=[1, 2] if transposed else [2, 3], keepdims=0)
    node("Gemm", [y, array(rng.standard_normal((16, 10)))])
    nodes[-1].output[0] = "y"
    kind, shape = onnx.TensorProto.FLOAT, (1, 16, 16, 3) if transposed else (1, 3, 16, 16)
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", kind, shape)],
        [helper.make_tensor_value_info("y", kind, None)],
        [numpy_helper.from_array(a, n) for n, a in arrays.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    return load_model(path)
