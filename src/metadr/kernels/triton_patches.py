"""Images to the patches that a convolution's kernel sees, and back: one program a row and block."""

import triton
import triton.language as tl


@triton.jit
def gather_kernel(
    x_, x_b, x_c, patches_, count, height, width,
    TAPS_H: tl.constexpr, TAPS_W: tl.constexpr, OUT_H: tl.constexpr, OUT_W: tl.constexpr,
    STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr, PAD_H: tl.constexpr, PAD_W: tl.constexpr,
    DILATION_H: tl.constexpr, DILATION_W: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """patches[(channel, tap), (image, output)]: the pixel that this tap meets at this output, or 0 for padding."""
    row = tl.program_id(0)
    channel, tap = row // (TAPS_H * TAPS_W), row % (TAPS_H * TAPS_W)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    image, out = i // (OUT_H * OUT_W), i % (OUT_H * OUT_W)
    y = (out // OUT_W) * STRIDE_H - PAD_H + (tap // TAPS_W) * DILATION_H
    x = (out % OUT_W) * STRIDE_W - PAD_W + (tap % TAPS_W) * DILATION_W
    inside = (i < count) & (y >= 0) & (y < height) & (x >= 0) & (x < width)
    pixel = tl.load(x_ + image * x_b + channel * x_c + y * width + x, inside, 0.0)
    tl.store(patches_ + row.to(tl.int64) * count + i, pixel, i < count)


@triton.jit
def scatter_kernel(
    patches_, x_, count, outputs,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
    TAPS_H: tl.constexpr, TAPS_W: tl.constexpr, OUT_H: tl.constexpr, OUT_W: tl.constexpr,
    STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr, PAD_H: tl.constexpr, PAD_W: tl.constexpr,
    DILATION_H: tl.constexpr, DILATION_W: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """x[channel, (image, pixel)]: the sum over the taps that met this pixel, in their order."""
    channel = tl.program_id(0)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    image, pixel = i // (HEIGHT * WIDTH), i % (HEIGHT * WIDTH)
    total = tl.zeros([BLOCK], tl.float32)
    for tap_y in tl.static_range(TAPS_H):
        for tap_x in tl.static_range(TAPS_W):
            y = pixel // WIDTH + PAD_H - tap_y * DILATION_H
            x = pixel % WIDTH + PAD_W - tap_x * DILATION_W
            out_y, out_x = y // STRIDE_H, x // STRIDE_W
            met = (i < count) & (y >= 0) & (x >= 0) & (out_y < OUT_H) & (out_x < OUT_W)
            met &= (y % STRIDE_H == 0) & (x % STRIDE_W == 0)
            row = (channel * TAPS_H + tap_y) * TAPS_W + tap_x
            at = row.to(tl.int64) * outputs + image * (OUT_H * OUT_W) + out_y * OUT_W + out_x
            total += tl.load(patches_ + at, met, 0.0)
    tl.store(x_ + channel.to(tl.int64) * count + i, total, i < count)
