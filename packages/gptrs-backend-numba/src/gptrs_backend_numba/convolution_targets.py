"""The targets of calls of convolutions, and what they mean."""

CONV2D = "gptrs.numba.conv2d.f32.v1"
"""x [N, H, W, C], weight [KH * KW * C, O], see `gptrs_backend_numba.lowering.convolution`."""
DEPTHWISE = "gptrs.numba.depthwise_conv2d.f32.v1"
"""x [N, H, W, C], weight [KH * KW, C], see `gptrs_backend_numba.lowering.convolution`."""
GROUPED = "gptrs.numba.grouped_conv2d.f32.v1"
"""x [N, H, W, C], weight [KH * KW * C / groups, groups, O / groups], see the same module."""
GROUP_OUTPUTS = 32
"""A group makes a multiple of so many channels: whole panels, whatever the registers."""
CHAIN = "gptrs.numba.conv_chain.f32.v1"
"""Some of the two, one after another, see `gptrs_backend_numba.lowering.convolution_chain`."""
