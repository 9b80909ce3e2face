"""Two kernels each: sums over pieces of a channel, then what is made of them, piece by piece.

Programs are (channel, piece). The sums of a channel's pieces lie side by side in `parts_`; every program of the second
kernel adds them up again, all in the same order. Letters are those of batch_norm.py; `x_b` and `x_c` are strides of
images and channels, the same for all images of a call.
"""

import triton
import triton.language as tl

from metadr.kernels.triton_batch_norm import move, passed, positive, second_sums


@triton.jit
def moments_kernel(x_, x_b, x_c, parts_, count, length, AREA: tl.constexpr, BLOCK: tl.constexpr):
    """Of every piece its sum and its squared deviations from its own mean."""
    channel, piece, pieces = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    first = piece * length
    last = tl.minimum(first + length, count)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(first, last, BLOCK):
        i = start + tl.arange(0, BLOCK)
        total += tl.load(x_ + (i // AREA) * x_b + channel * x_c + i % AREA, i < last, 0.0)
    summed = tl.sum(total)
    mean = summed / (last - first).to(tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(first, last, BLOCK):
        i = start + tl.arange(0, BLOCK)
        x = tl.load(x_ + (i // AREA) * x_b + channel * x_c + i % AREA, i < last, 0.0)
        away = tl.where(i < last, x - mean, 0.0)
        total += away * away
    tl.store(parts_ + (2 * channel) * pieces + piece, summed)
    tl.store(parts_ + (2 * channel + 1) * pieces + piece, tl.sum(total))


@triton.jit
def normalise_kernel(
    x_, x_b, x_c, plus_, weight_, bias_, mean_, r_, running_mean_, running_var_, y_, parts_, count, length, momentum,
    eps, TRACKED: tl.constexpr, PLUS: tl.constexpr, RELU: tl.constexpr, AREA: tl.constexpr, BLOCK: tl.constexpr,
    PIECES: tl.constexpr,
):  # fmt: skip
    channel, piece, pieces = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    n = count.to(tl.float32)
    p = tl.arange(0, PIECES)
    sums = tl.load(parts_ + (2 * channel) * pieces + p, p < pieces, 0.0)
    mean = tl.sum(sums) / n
    inside = tl.load(parts_ + (2 * channel + 1) * pieces + p, p < pieces, 0.0)
    sizes = tl.minimum(length, tl.maximum(count - p * length, 1)).to(tl.float32)  # 1 where there is no piece
    apart = tl.where(p < pieces, sums / sizes - mean, 0.0)
    squares = tl.sum(inside + sizes * apart * apart)
    r = 1 / tl.sqrt(squares / n + eps)
    if piece == 0:
        tl.store(mean_ + channel, mean)
        tl.store(r_ + channel, r)
        if TRACKED:
            move(running_mean_ + channel, mean, momentum)
            move(running_var_ + channel, squares / (n - 1), momentum)
    scale, shift = tl.load(weight_ + channel) * r, tl.load(bias_ + channel)
    last = tl.minimum(piece * length + length, count)
    for start in range(piece * length, last, BLOCK):
        i = start + tl.arange(0, BLOCK)
        place = (i // AREA) * x_b + channel * x_c + i % AREA
        y = (tl.load(x_ + place, i < last, 0.0) - mean) * scale + shift
        if PLUS:
            y += tl.load(plus_ + place, i < last, 0.0)
        if RELU:
            y = positive(y)
        tl.store(y_ + place, y, i < last)


@triton.jit
def gradient_sums_kernel(
    g_, x_, x_b, x_c, weight_, shift_, mean_, r_, parts_, count, length,
    RELU: tl.constexpr, AREA: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    channel, piece, pieces = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    mean, r, weight = tl.load(mean_ + channel), tl.load(r_ + channel), tl.load(weight_ + channel)
    sum1 = tl.zeros([BLOCK], tl.float32)
    sum2 = tl.zeros([BLOCK], tl.float32)
    last = tl.minimum(piece * length + length, count)
    for start in range(piece * length, last, BLOCK):
        i = start + tl.arange(0, BLOCK)
        place = (i // AREA) * x_b + channel * x_c + i % AREA
        g, x = tl.load(g_ + place, i < last, 0.0), tl.load(x_ + place, i < last, 0.0)
        g = passed(g, x, mean, weight, r, shift_ + channel, RELU)
        sum1 += g
        sum2 += g * ((x - mean) * r)
    tl.store(parts_ + (2 * channel) * pieces + piece, tl.sum(sum1))
    tl.store(parts_ + (2 * channel + 1) * pieces + piece, tl.sum(sum2))


@triton.jit
def gradient_kernel(
    g_, x_, x_b, x_c, weight_, shift_, mean_, r_, dx_, dw_, db_, parts_, count, length,
    RELU: tl.constexpr, AREA: tl.constexpr, BLOCK: tl.constexpr, PIECES: tl.constexpr,
):  # fmt: skip
    channel, piece, pieces = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    n = count.to(tl.float32)
    mean, r, weight = tl.load(mean_ + channel), tl.load(r_ + channel), tl.load(weight_ + channel)
    p = tl.arange(0, PIECES)
    s1 = tl.sum(tl.load(parts_ + (2 * channel) * pieces + p, p < pieces, 0.0))
    s2 = tl.sum(tl.load(parts_ + (2 * channel + 1) * pieces + p, p < pieces, 0.0))
    if piece == 0:
        tl.store(db_ + channel, s1)
        tl.store(dw_ + channel, s2)
    last = tl.minimum(piece * length + length, count)
    for start in range(piece * length, last, BLOCK):
        i = start + tl.arange(0, BLOCK)
        place = (i // AREA) * x_b + channel * x_c + i % AREA
        g, x = tl.load(g_ + place, i < last, 0.0), tl.load(x_ + place, i < last, 0.0)
        g = passed(g, x, mean, weight, r, shift_ + channel, RELU)
        tl.store(dx_ + place, weight * r * (g - s1 / n - (x - mean) * r * (s2 / n)), i < last)


@triton.jit
def second_sums_kernel(
    u_, g_, x_, x_b, x_c, weight_, shift_, mean_, r_, parts_, count, length,
    RELU: tl.constexpr, AREA: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    channel, piece, pieces = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    mean, r, weight = tl.load(mean_ + channel), tl.load(r_ + channel), tl.load(weight_ + channel)
    sum1 = tl.zeros([BLOCK], tl.float32)
    sum2 = tl.zeros([BLOCK], tl.float32)
    sum3 = tl.zeros([BLOCK], tl.float32)
    last = tl.minimum(piece * length + length, count)
    for start in range(piece * length, last, BLOCK):
        i = start + tl.arange(0, BLOCK)
        place = (i // AREA) * x_b + channel * x_c + i % AREA
        u, g = tl.load(u_ + place, i < last, 0.0), tl.load(g_ + place, i < last, 0.0)
        x = tl.load(x_ + place, i < last, 0.0)
        g = passed(g, x, mean, weight, r, shift_ + channel, RELU)
        sum1 += u
        sum2 += u * ((x - mean) * r)
        sum3 += u * g
    tl.store(parts_ + (3 * channel) * pieces + piece, tl.sum(sum1))
    tl.store(parts_ + (3 * channel + 1) * pieces + piece, tl.sum(sum2))
    tl.store(parts_ + (3 * channel + 2) * pieces + piece, tl.sum(sum3))


@triton.jit
def second_derivative_kernel(
    u_, g_, x_, x_b, x_c, a_, b_, weight_, shift_, mean_, r_, s1_, s2_, dg_, dx_, dw_, parts_, count, length,
    RELU: tl.constexpr, AREA: tl.constexpr, BLOCK: tl.constexpr, PIECES: tl.constexpr,
):  # fmt: skip
    channel, piece, pieces = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    mean, r, weight = tl.load(mean_ + channel), tl.load(r_ + channel), tl.load(weight_ + channel)
    a, b = tl.load(a_ + channel), tl.load(b_ + channel)
    s1, s2 = tl.load(s1_ + channel), tl.load(s2_ + channel)
    p = tl.arange(0, PIECES)
    a1 = tl.sum(tl.load(parts_ + (3 * channel) * pieces + p, p < pieces, 0.0))
    a2 = tl.sum(tl.load(parts_ + (3 * channel + 1) * pieces + p, p < pieces, 0.0))
    a3 = tl.sum(tl.load(parts_ + (3 * channel + 2) * pieces + p, p < pieces, 0.0))
    n = count.to(tl.float32)
    wr = weight * r
    q, e, sum_h, sum_hx = second_sums(a, a1, a2, a3, s1, s2, wr, n)
    if piece == 0:
        tl.store(dw_ + channel, r * q)
    last = tl.minimum(piece * length + length, count)
    for start in range(piece * length, last, BLOCK):
        i = start + tl.arange(0, BLOCK)
        place = (i // AREA) * x_b + channel * x_c + i % AREA
        u, g = tl.load(u_ + place, i < last, 0.0), tl.load(g_ + place, i < last, 0.0)
        x = tl.load(x_ + place, i < last, 0.0)
        g = passed(g, x, mean, weight, r, shift_ + channel, RELU)
        xh = (x - mean) * r
        dg = wr * u + e * xh + (b - wr * a1 / n)
        tl.store(dg_ + place, passed(dg, x, mean, weight, r, shift_ + channel, RELU), i < last)
        dx = -wr * r * s2 / n * u + r * e * g - r * (sum_hx + wr * q) / n * xh - r * sum_h / n
        tl.store(dx_ + place, dx, i < last)
