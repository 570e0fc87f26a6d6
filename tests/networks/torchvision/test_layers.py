"""The rewrites of layers: the same features in fewer passes, and what they leave alone."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torchvision.models.detection.backbone_utils import resnet_fpn_backbone
from torchvision.models.detection.faster_rcnn import FastRCNNConvFCHead, TwoMLPHead
from torchvision.models.detection.rpn import RPNHead

from maskjet.host.process import convolutions_in_tf32
from maskjet.networks.torchvision.layers import rewrite_layers
from maskjet.networks.torchvision.layers.fusing import ConvolutionReLU
from maskjet.networks.torchvision.layers.proposing import JoinedRPNHead, join_predictors
from maskjet.networks.torchvision.layers.upsampling import AddUpsampled
from tests.rounding import additions, rounding


def shaken(module, seed=0):
    """In eval mode, with norms and biases that do something."""
    generator = torch.Generator().manual_seed(seed)
    for each in module.modules():
        if getattr(each, "running_var", None) is not None:
            each.running_var.uniform_(0.5, 2, generator=generator)
            each.running_mean.normal_(generator=generator)
        if isinstance(getattr(each, "bias", None), torch.Tensor):
            each.bias.data.normal_(generator=generator)
    return module.eval().requires_grad_(requires_grad=False)


def rewritten(module, *shape):
    """The module rewritten, and how often each rewrite matched."""
    example = torch.randn(shape or (1, 4, 8, 6), generator=torch.Generator().manual_seed(0))
    made, counts = rewrite_layers(module, example.to(next(module.parameters())))
    return made, {name: count for name, count in counts.items() if count}


def run(module, *inputs):
    with torch.inference_mode():
        found = module(*inputs)
    return list(found.values()) if isinstance(found, dict) else [found]


def assert_same(module, made, *inputs):
    for mine, other in zip(run(made, *inputs), run(module, *inputs), strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=rounding(additions(module), other.abs().max()))


@pytest.mark.parametrize(
    ("name", "norm"),
    [
        ("resnet18", nn.BatchNorm2d),
        pytest.param("resnet50", None, marks=pytest.mark.slow),
        pytest.param("resnext50_32x4d", nn.BatchNorm2d, marks=pytest.mark.slow),
    ],
)
def test_backbones(name, norm):
    options = {} if norm is None else {"norm_layer": norm}
    backbone = shaken(resnet_fpn_backbone(backbone_name=name, weights=None, trainable_layers=5, **options))
    before = {name: value.clone() for name, value in backbone.state_dict().items()}
    made, counts = rewritten(backbone, 1, 3, 64, 64)
    assert all(torch.equal(value, before[name]) for name, value in backbone.state_dict().items())
    assert not any(isinstance(each, nn.BatchNorm2d) for each in made.modules())
    blocks, down = {"resnet18": (8, 3), "resnet50": (16, 4), "resnext50_32x4d": (16, 4)}[name]
    layers = 1 + (2 if name == "resnet18" else 3) * blocks
    fused = layers - blocks * (name == "resnext50_32x4d")  # groups are left
    assert counts == {"fold_norms": layers + down, "join_biases": down, "fuse_relus": fused, "add_upsampled": 3}
    for size in ((64, 96), (40, 72), (33, 65)):  # the last two have levels that are not twice the next
        assert_same(backbone, made, torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(1)))


class Block(nn.Module):
    """What a test does with two convolutions and a norm."""

    def __init__(self, body, **options):
        super().__init__()
        self.body = body
        self.one = nn.Conv2d(4, **{"out_channels": 4, "kernel_size": 3, "padding": 1, **options})
        self.two, self.norm, self.relu = nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4), nn.ReLU(inplace=True)

    def forward(self, x):
        return self.body(self, x)


def block(body, **options):
    torch.manual_seed(0)
    return shaken(Block(body, **options))


def add_in_place(x, y):
    x += y
    return x


@pytest.mark.parametrize(
    ("body", "options", "expected"),
    [
        (lambda m, x: m.relu(m.one(x)), {}, {"fuse_relus": 1}),
        (lambda m, x: F.relu(m.one(x)), {"bias": False}, {"fuse_relus": 1}),
        (lambda m, x: m.one(x).relu(), {"stride": 2, "dilation": 2}, {"fuse_relus": 1}),
        (lambda m, x: torch.relu(x + m.one(x)), {}, {"fuse_relus": 1}),
        (lambda m, x: m.one(x).add(x).relu_(), {}, {}),  # a method
        (lambda m, x: m.relu(add_in_place(m.one(x), x)), {}, {"fuse_relus": 1}),
        (lambda m, x: m.relu(add_in_place(m.norm(m.one(x)), m.two(x))), {}, None),
        (lambda m, x: m.two(x) + m.one(x), {}, {"join_biases": 1}),
        (lambda m, x: m.two(x) + m.one(x), {"bias": False}, {}),
        (lambda m, x: m.norm(m.one(x)), {"bias": False}, {"fold_norms": 1}),
        (lambda m, x: m.norm(x), {}, {}),
        # Read by others too.
        (lambda m, x: (lambda y: m.norm(y) + y)(m.one(x)), {}, {}),
        (lambda m, x: (lambda y: F.relu(y) + y)(m.one(x)), {}, {}),
        (lambda m, x: (lambda y: F.relu(x + y) + y)(m.one(x)), {}, {}),
        (lambda m, x: (lambda y: F.relu(y) + y)(m.one(x) + x), {}, {}),
        # Called twice.
        (lambda m, x: m.norm(m.one(m.one(x))), {}, {}),
        (lambda m, x: m.one(x) + m.one(x.flip(2)), {}, {}),
        # Other convolutions, and other sums.
        (lambda m, x: m.relu(m.one(x)), {"groups": 2}, {}),
        (lambda m, x: m.relu(m.one(x)), {"padding_mode": "reflect"}, {}),
        (lambda m, x: m.relu(m.one(x)), {"padding": "same"}, {}),
        (lambda m, x: torch.relu(torch.add(x, m.one(x), alpha=2)), {}, {}),
        (lambda m, x: torch.relu(m.one(x) + 1), {}, {}),
        (lambda m, x: torch.relu(m.one(x) + m.one.bias.sum()), {}, {"fuse_relus": 1}),
        (lambda m, x: (lambda y: F.relu(y + y))(m.one(x)), {}, {}),
        # Broadcast, either way.
        (lambda m, x: torch.relu(m.one(x) + x.mean(dim=(2, 3), keepdim=True)), {}, {"fuse_relus": 1}),
        (lambda m, x: torch.relu(m.two(x.mean(dim=(2, 3), keepdim=True)) + x), {}, {"fuse_relus": 1}),
        (lambda m, x: m.two(x.mean(dim=(2, 3), keepdim=True)) + m.one(x), {}, {"join_biases": 1}),
        (lambda m, x: m.two(x) + m.one(x), {"out_channels": 1}, {}),
    ],
)
def test_patterns_and_guards(body, options, expected):
    module = block(body, **options)
    made, counts = rewritten(module)
    assert counts == ({"fold_norms": 1, "join_biases": 1, "fuse_relus": 1} if expected is None else expected)
    assert_same(module, made, torch.randn(2, 4, 9, 7, generator=torch.Generator().manual_seed(1)))


def test_norms_in_training_are_left():
    assert rewritten(block(lambda m, x: m.norm(m.one(x))).train())[1] == {}


@pytest.mark.parametrize(
    ("body", "channels"),
    [
        (lambda m, x: m.relu(m.one(x)) if x.sum() > 0 else x, 4),  # can't be traced
        (lambda m, x: (lambda y: m.relu(add_in_place(y, m.one(x))) + y)(x * 2), 4),  # means something else when traced
        (lambda m, x: m.relu(m.one(x)), 5),  # takes no such example
        (lambda m, x: (m.relu(m.one(x)), x), 4),  # gives a pair
    ],
)
def test_a_module_whose_trace_would_differ_stays(body, channels):
    module = block(body)
    made, counts = rewritten(module, 1, channels, 8, 6)
    assert made is module
    assert counts == {}


def enlarge(m, x, fine, mode="nearest"):
    return F.interpolate(m.two(x[:, :, ::2, ::2]), size=fine.shape[-2:], mode=mode)


def of(body):
    """Of features, an input, and a level that is to be enlarged to them."""
    return lambda m, x: body(m, x, m.one(x))


@pytest.mark.parametrize(
    "body",
    [
        of(lambda m, x, fine: fine + enlarge(m, x, fine, "bilinear")),
        of(lambda m, x, fine: fine + enlarge(m, x, fine, "nearest-exact")),
        of(lambda m, x, fine: fine + enlarge(m, x, x)),
        of(lambda m, x, fine: (lambda y: fine + y + y)(enlarge(m, x, fine))),
        of(lambda m, x, fine: fine * enlarge(m, x, fine)),
    ],
)
def test_other_enlargements_are_left(body):
    module = block(body)
    made, counts = rewritten(module)
    assert counts == {}
    assert_same(module, made, torch.randn(1, 4, 8, 6))


def test_a_level_that_others_read_keeps_its_bias():
    module = block(of(lambda m, x, fine: torch.cat([fine + enlarge(m, x, fine), fine])))
    made, counts = rewritten(module)
    assert counts == {"add_upsampled": 1}
    assert made.one.bias is not None
    assert_same(module, made, torch.randn(1, 4, 8, 6))


@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
def test_enlarged_levels_are_added_in_their_layout(layout):
    fine, coarse = (torch.randn(2, 4, *side).contiguous(memory_format=layout) for side in ((6, 10), (3, 5)))
    bias = torch.randn(4)
    for levels in (coarse, coarse[:, :1]):  # the second broadcasts
        enlarged = F.interpolate(levels, scale_factor=2, mode="nearest")
        found, expected = AddUpsampled(bias)(fine, levels), fine + bias[:, None, None] + enlarged
        torch.testing.assert_close(found, expected, rtol=0, atol=rounding(3, expected.abs().max()))
        assert found.is_contiguous(memory_format=layout)
        assert torch.equal(AddUpsampled(None)(fine, levels), fine + enlarged)
    assert AddUpsampled(None)(fine[:, :1], coarse).shape == fine.shape


@pytest.mark.parametrize(
    ("added", "stride", "dilation"),
    [(None, 2, 1), ((2, 8, 5, 4), 2, 1), ((2, 8, 5, 4), 1, 2), ((2, 8, 1, 1), 2, 1), ((2, 8, 1, 4), 1, 2)],
)
def test_the_call_for_a_gpu_is_a_sound_operator(added, stride, dilation):
    side = (9, 7) if stride == 2 else (7, 6)
    convolution = nn.Conv2d(3, 8, 3, stride=stride, dilation=dilation, padding=1).requires_grad_(requires_grad=False)
    given = (torch.randn(2, 3, *side), None if added is None else torch.randn(added))
    options = ([stride] * 2, [1, 1], [dilation] * 2)
    features, other = given
    arguments = (features, convolution.weight, convolution.bias, other, *options)
    torch.library.opcheck(
        torch.ops.maskjet.convolution_relu.default, arguments, test_utils=("test_schema", "test_faketensor")
    )
    found = torch.ops.maskjet.convolution_relu(*arguments)
    expected = ConvolutionReLU(convolution)(*given)
    torch.testing.assert_close(found, expected, rtol=0, atol=rounding(additions(convolution), expected.abs().max()))


@pytest.mark.parametrize("version", [1, 2])
def test_box_heads(version):
    head = FastRCNNConvFCHead((16, 7, 5), [24, 24], [32], nn.BatchNorm2d) if version == 2 else TwoMLPHead(16 * 35, 32)
    head = shaken(head)
    made, counts = rewritten(head, 1, 16, 7, 5)
    assert counts == ({"fold_norms": 2, "fuse_relus": 2} if version == 2 else {})
    for layout in (torch.channels_last, torch.contiguous_format):
        assert_same(head, made, torch.randn(3, 16, 7, 5).contiguous(memory_format=layout))
    assert run(made, torch.randn(0, 16, 7, 5))[0].shape == (0, 32)


@pytest.mark.parametrize(("anchors", "depth"), [(3, 1), (1, 2), (5, 1)])
def test_proposals_from_one_convolution(anchors, depth):
    head = shaken(RPNHead(16, anchors, depth))
    joined = join_predictors(head)
    assert isinstance(joined, JoinedRPNHead)
    features = [torch.randn(2, 16, 9, 6), torch.randn(2, 16, 1, 3)]
    with torch.inference_mode():
        for mine, other in zip(joined(features), head(features), strict=True):
            for level, expected in zip(mine, other, strict=True):
                torch.testing.assert_close(
                    level, expected, rtol=0, atol=rounding(additions(head), expected.abs().max())
                )


def test_another_kind_of_proposal_head_stays():
    strided = RPNHead(16, 3)
    strided.cls_logits = nn.Conv2d(16, 3, 3, padding=1)
    assert join_predictors(strided) is strided


@pytest.mark.gpu
class TestOnGpu:
    @pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
    @pytest.mark.parametrize(
        ("options", "added"),
        [
            ({}, "nothing"),
            ({"stride": 2}, "features"),
            ({"dilation": 2, "bias": False}, "a pixel"),
            ({"kernel_size": 1}, "features"),
        ],
    )
    def test_one_call_is_three(self, dtype, layout, options, added):
        torch.manual_seed(0)
        convolution = nn.Conv2d(32, 48, **{"kernel_size": 3, "padding": 1, **options}).to("cuda", dtype)
        fused = ConvolutionReLU(convolution.to(memory_format=layout)).requires_grad_(requires_grad=False)
        x = torch.randn(2, 32, 21, 18, device="cuda", dtype=dtype).contiguous(memory_format=layout)
        with torch.inference_mode(), convolutions_in_tf32(is_allowed=False):
            plain = convolution(x)
            other = torch.randn_like(plain)[:, :, :1, :1] if added == "a pixel" else torch.randn_like(plain)
            expected = convolution.double()(x.double())
            expected = (expected + other.double() * (added != "nothing")).relu()
            convolution.to(dtype)
            found = fused(x) if added == "nothing" else fused(x, other)
        assert found.dtype == dtype
        if dtype != torch.bfloat16:  # which takes several calls
            assert found.is_contiguous(memory_format=torch.channels_last)
        # Half precision rounds the output, the sum and the product once each; float32 the 288 terms of a product.
        tolerance = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}[dtype]
        torch.testing.assert_close(found.double(), expected, rtol=tolerance, atol=tolerance)

    def test_nan_and_infinity_pass_as_without(self):
        convolution = nn.Conv2d(16, 16, 1).cuda().requires_grad_(requires_grad=False)
        x = torch.randn(1, 16, 4, 4, device="cuda")
        x[0, 0, 0, 0], x[0, 0, 1, 1] = torch.nan, torch.inf
        with torch.inference_mode():
            found, expected = ConvolutionReLU(convolution)(x), convolution(x).relu()
        assert torch.equal(found.isnan(), expected.isnan())
        assert torch.equal(found.isinf(), expected.isinf())

    @pytest.mark.parametrize("size", [(64, 96), (40, 72)])
    def test_backbone_and_its_graph(self, size):
        backbone = shaken(resnet_fpn_backbone(backbone_name="resnet50", weights=None, trainable_layers=5)).cuda()
        made, _ = rewritten(backbone.to(memory_format=torch.channels_last), 1, 3, 64, 64)
        x = torch.randn(2, 3, *size, device="cuda").contiguous(memory_format=torch.channels_last)
        with convolutions_in_tf32(is_allowed=False):
            assert_same(backbone, made, x)
            compiled = torch.compile(made, fullgraph=True, dynamic=False)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the compiler's remarks on itself
                assert_same(backbone, compiled, x)
