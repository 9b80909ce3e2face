"""One program a channel. The letters are those of batch_norm.py; `_b` and `_c` are strides of images and channels.

With ROWS what is written goes channel by channel: the values of a channel are a row. With RELU negative values are cut
off, and a gradient passes only where there are others.
"""

import triton
import triton.language as tl


@triton.jit
def move(running_, value, momentum):
    """A running statistic of a channel by one of its batch."""
    tl.store(running_, (1 - momentum) * tl.load(running_) + momentum * value)


@triton.jit
def second_sums(a, a1, a2, a3, s1, s2, wr, n):
    """What the second derivative of a channel needs beside the sums A1, A2 and A3 of batch_norm.py."""
    e = a - wr * a2 / n
    return a3 - (s1 * a1 + s2 * a2) / n, e, e * s1 - wr * s2 * a1 / n, e * s2 - wr * s2 * a2 / n


@triton.jit
def written(i, channel, b, c, count, AREA: tl.constexpr, ROWS: tl.constexpr):
    """Where the values i of a channel go."""
    if ROWS:
        return channel * count + i
    return (i // AREA) * b + channel * c + i % AREA


@triton.jit
def positive(y):
    """A ReLU: what is no number stays that."""
    return tl.where(y <= 0, 0.0, y)


@triton.jit
def passed(g, x, mean, weight, r, shift_, RELU: tl.constexpr):
    """The gradient that a ReLU behind the layer lets through."""
    if RELU:
        g = tl.where((x - mean) * (weight * r) + tl.load(shift_) <= 0, 0.0, g)
    return g


@triton.jit
def normalise_kernel(
    x_, x_b, x_c, plus_, plus_b, plus_c, weight_, bias_, mean_, r_, running_mean_, running_var_, y_, y_b, y_c, count,
    momentum, eps, TRACKED: tl.constexpr, PLUS: tl.constexpr, RELU: tl.constexpr, AREA: tl.constexpr,
    BLOCK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    channel = tl.program_id(0)
    n = count.to(tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, count, BLOCK):
        i = start + tl.arange(0, BLOCK)
        total += tl.load(x_ + (i // AREA) * x_b + channel * x_c + i % AREA, i < count, 0.0)
    mean = tl.sum(total) / n
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, count, BLOCK):
        i = start + tl.arange(0, BLOCK)
        x = tl.load(x_ + (i // AREA) * x_b + channel * x_c + i % AREA, i < count, 0.0)
        away = tl.where(i < count, x - mean, 0.0)
        total += away * away
    squares = tl.sum(total)
    r = 1 / tl.sqrt(squares / n + eps)
    tl.store(mean_ + channel, mean)
    tl.store(r_ + channel, r)
    if TRACKED:
        move(running_mean_ + channel, mean, momentum)
        move(running_var_ + channel, squares / (n - 1), momentum)
    scale, shift = tl.load(weight_ + channel) * r, tl.load(bias_ + channel)
    for start in range(0, count, BLOCK):
        i = start + tl.arange(0, BLOCK)
        x = tl.load(x_ + (i // AREA) * x_b + channel * x_c + i % AREA, i < count, 0.0)
        y = (x - mean) * scale + shift
        if PLUS:
            y += tl.load(plus_ + (i // AREA) * plus_b + channel * plus_c + i % AREA, i < count, 0.0)
        if RELU:
            y = positive(y)
        tl.store(y_ + written(i, channel, y_b, y_c, count, AREA, ROWS), y, i < count)


@triton.jit
def gradient_kernel(
    g_, g_b, g_c, x_, x_b, x_c, weight_, shift_, mean_, r_, dx_, dx_b, dx_c, dw_, db_, count,
    RELU: tl.constexpr, AREA: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    channel = tl.program_id(0)
    n = count.to(tl.float32)
    mean, r, weight = tl.load(mean_ + channel), tl.load(r_ + channel), tl.load(weight_ + channel)
    sum1 = tl.zeros([BLOCK], tl.float32)
    sum2 = tl.zeros([BLOCK], tl.float32)
    for start in range(0, count, BLOCK):
        i = start + tl.arange(0, BLOCK)
        there, image, pixel = i < count, i // AREA, i % AREA
        g = tl.load(g_ + image * g_b + channel * g_c + pixel, there, 0.0)
        x = tl.load(x_ + image * x_b + channel * x_c + pixel, there, 0.0)
        g = passed(g, x, mean, weight, r, shift_ + channel, RELU)
        sum1 += g
        sum2 += g * ((x - mean) * r)
    s1, s2 = tl.sum(sum1), tl.sum(sum2)
    tl.store(db_ + channel, s1)
    tl.store(dw_ + channel, s2)
    for start in range(0, count, BLOCK):
        i = start + tl.arange(0, BLOCK)
        there, image, pixel = i < count, i // AREA, i % AREA
        g = tl.load(g_ + image * g_b + channel * g_c + pixel, there, 0.0)
        x = tl.load(x_ + image * x_b + channel * x_c + pixel, there, 0.0)
        g = passed(g, x, mean, weight, r, shift_ + channel, RELU)
        dx = weight * r * (g - s1 / n - (x - mean) * r * (s2 / n))
        tl.store(dx_ + written(i, channel, dx_b, dx_c, count, AREA, ROWS), dx, there)


@triton.jit
def second_derivative_kernel(
    u_, u_b, u_c, g_, g_b, g_c, x_, x_b, x_c, a_, b_, weight_, shift_, mean_, r_, s1_, s2_, dg_, dx_, dx_b,
    dx_c, dw_, count, RELU: tl.constexpr, AREA: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    channel = tl.program_id(0)
    mean, r, weight = tl.load(mean_ + channel), tl.load(r_ + channel), tl.load(weight_ + channel)
    a, b = tl.load(a_ + channel), tl.load(b_ + channel)
    s1, s2 = tl.load(s1_ + channel), tl.load(s2_ + channel)
    sum1 = tl.zeros([BLOCK], tl.float32)
    sum2 = tl.zeros([BLOCK], tl.float32)
    sum3 = tl.zeros([BLOCK], tl.float32)
    for start in range(0, count, BLOCK):
        i = start + tl.arange(0, BLOCK)
        there, image, pixel = i < count, i // AREA, i % AREA
        u = tl.load(u_ + image * u_b + channel * u_c + pixel, there, 0.0)
        g = tl.load(g_ + image * g_b + channel * g_c + pixel, there, 0.0)
        x = tl.load(x_ + image * x_b + channel * x_c + pixel, there, 0.0)
        g = passed(g, x, mean, weight, r, shift_ + channel, RELU)
        sum1 += u
        sum2 += u * ((x - mean) * r)
        sum3 += u * g
    a1, a2, a3 = tl.sum(sum1), tl.sum(sum2), tl.sum(sum3)
    n = count.to(tl.float32)
    wr = weight * r
    q, e, sum_h, sum_hx = second_sums(a, a1, a2, a3, s1, s2, wr, n)
    tl.store(dw_ + channel, r * q)
    for start in range(0, count, BLOCK):
        i = start + tl.arange(0, BLOCK)
        there, image, pixel = i < count, i // AREA, i % AREA
        u = tl.load(u_ + image * u_b + channel * u_c + pixel, there, 0.0)
        g = tl.load(g_ + image * g_b + channel * g_c + pixel, there, 0.0)
        x = tl.load(x_ + image * x_b + channel * x_c + pixel, there, 0.0)
        g = passed(g, x, mean, weight, r, shift_ + channel, RELU)
        xh = (x - mean) * r
        place = written(i, channel, dx_b, dx_c, count, AREA, ROWS)
        dg = wr * u + e * xh + (b - wr * a1 / n)
        tl.store(dg_ + place, passed(dg, x, mean, weight, r, shift_ + channel, RELU), there)
        dx = -wr * r * s2 / n * u + r * e * g - r * (sum_hx + wr * q) / n * xh - r * sum_h / n
        tl.store(dx_ + place, dx, there)
