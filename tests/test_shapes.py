import pytest

from tvm_winograd import ConvSpec, Epilogue, TvmWinogradError


def test_output_size_flops_and_bytes():
    stem = ConvSpec(n=2, c=3, h=224, w=224, k=64, r=7, s=7, stride=2, padding=(3, 3, 3, 3))
    assert (stem.oh, stem.ow) == (112, 112)
    assert stem.flops == 2 * 2 * 64 * 112 * 112 * 3 * 49
    assert stem.bytes == 4 * (2 * 3 * 224 * 224 + 64 * 3 * 49 + 2 * 64 * 112 * 112)
    dilated = ConvSpec(1, 8, 16, 16, 8, padding=(2, 2, 2, 2), dilation=2)
    assert (dilated.oh, dilated.ow) == (16, 16)


def test_asymmetric_padding_is_top_left_bottom_right():
    spec = ConvSpec(2, 3, 5, 7, 5, padding=(2, 0, 1, 2))
    assert (spec.oh, spec.ow) == (6, 7)


def test_shapes_follow_the_layout():
    spec = ConvSpec(2, 3, 5, 7, 11, layout="CHWN")
    assert spec.input_shape == (3, 5, 7, 2)
    assert spec.output_shape == (11, 5, 7, 2)
    assert ConvSpec(2, 3, 5, 7, 11, layout="NHWC").output_shape == (2, 5, 7, 11)


def test_integers_accumulate_in_int32():
    spec = ConvSpec(1, 16, 16, 16, 16, dtype="int8")
    assert (spec.acc, spec.out_dtype) == ("int32", "int32")
    assert ConvSpec(1, 1, 8, 8, 1, dtype="float16").acc == "float32"


@pytest.mark.parametrize(
    "spec",
    [
        ConvSpec(1, 64, 56, 56, 64),
        ConvSpec(2, 6, 9, 13, 4, r=3, s=1, stride=2, padding=(2, 0, 1, 2), groups=2),
        ConvSpec(1, 8, 16, 16, 8, dilation=2, dtype="bfloat16", layout="NHWC"),
    ],
)
def test_key_round_trip(spec):
    assert ConvSpec.from_key(spec.key()) == spec


def test_key_is_stable():
    """Tuning logs and artifacts hold these texts: changing the form orphans them."""
    assert ConvSpec(1, 64, 56, 56, 64).key() == "n1c64h56w56k64r3s3_st1_p1.1.1.1_d1_g1_float32_NCHW"
    assert Epilogue(True, True, True).key() == "bias+residual+relu"
    assert Epilogue(bias=True, relu6=True).key() == "bias+relu6"


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("activation", [{}, {"relu": True}, {"relu6": True}])
def test_epilogue_key_round_trip(bias, residual, activation):
    epilogue = Epilogue(bias, residual, **activation)
    assert Epilogue.from_key(epilogue.key()) == epilogue


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"n": 0}, "n=0"),
        ({"padding": (-1, -1, -1, -1)}, "padding"),
        ({"padding": (1, 1)}, "padding"),
        ({"h": 2, "w": 2, "padding": (0, 0, 0, 0)}, "output would be empty"),
        ({"groups": 3}, "groups=3"),
        ({"dtype": "float8"}, "float8"),
        ({"layout": "NCWH"}, "NCWH"),
        ({"stride": 0}, "stride=0"),
        ({"c": 2.5}, "c=2.5"),
        ({"k": True}, "k=True"),
    ],
)
def test_impossible_values_are_refused_by_name(change, named):
    values = {"n": 1, "c": 8, "h": 16, "w": 16, "k": 8} | change
    with pytest.raises(TvmWinogradError, match=named):
        ConvSpec(**values)


@pytest.mark.parametrize("key", ["", "n1c2", "n1c64h56w56k64r3s3_st1_p1_d1_g1_float32_NCHW"])
def test_bad_keys(key):
    with pytest.raises(TvmWinogradError, match="spec key"):
        ConvSpec.from_key(key)


def test_bad_epilogue():
    with pytest.raises(TvmWinogradError, match="swish9"):
        Epilogue.from_key("bias+swish9")
    with pytest.raises(TvmWinogradError, match="not in both"):
        Epilogue.from_key("bias+relu+relu6")
