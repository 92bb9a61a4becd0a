"""The targets of calls of convolutions, and what they mean."""

CONV2D = "gptrs.numba.conv2d.f32.v1"
"""x [N, H, W, C], weight [KH * KW * C, O], see `gptrs_backend_numba.lowering.convolution`."""
DEPTHWISE = "gptrs.numba.depthwise_conv2d.f32.v1"
"""x [N, H, W, C], weight [KH * KW, C], see `gptrs_backend_numba.lowering.convolution`."""
CHAIN = "gptrs.numba.conv_chain.f32.v1"
"""Some of the two, one after another, see `gptrs_backend_numba.lowering.convolution_chain`."""
