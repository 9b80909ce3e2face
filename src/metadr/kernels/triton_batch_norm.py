"""One program a channel: sum over it, then write both gradients. The letters are those of batch_norm.py."""

import triton
import triton.language as tl


@triton.jit
def second_derivative_kernel(
    u_, a_, b_, g_, x_, weight_, mean_, r_, s1_, s2_, dg_, dx_, dw_, channels, area, count, BLOCK: tl.constexpr
):
    channel = tl.program_id(0)
    mean, r, weight = tl.load(mean_ + channel), tl.load(r_ + channel), tl.load(weight_ + channel)
    a, b = tl.load(a_ + channel), tl.load(b_ + channel)
    s1, s2 = tl.load(s1_ + channel), tl.load(s2_ + channel)
    sum1 = tl.zeros([BLOCK], tl.float32)
    sum2 = tl.zeros([BLOCK], tl.float32)
    sum3 = tl.zeros([BLOCK], tl.float32)
    for start in range(0, count, BLOCK):
        i = start + tl.arange(0, BLOCK)
        there = i < count
        at = (i // area) * channels * area + channel * area + i % area
        u = tl.load(u_ + at, there, 0.0)
        g = tl.load(g_ + at, there, 0.0)
        x = tl.load(x_ + at, there, 0.0)
        xh = (x - mean) * r
        sum1 += u
        sum2 += u * xh
        sum3 += u * g
    a1, a2, a3 = tl.sum(sum1), tl.sum(sum2), tl.sum(sum3)
    n = count.to(tl.float32)
    wr = weight * r
    q = a3 - (s1 * a1 + s2 * a2) / n
    e = a - wr * a2 / n
    sum_h = e * s1 - wr * s2 * a1 / n
    sum_hx = e * s2 - wr * s2 * a2 / n
    tl.store(dw_ + channel, r * q)
    for start in range(0, count, BLOCK):
        i = start + tl.arange(0, BLOCK)
        there = i < count
        at = (i // area) * channels * area + channel * area + i % area
        u = tl.load(u_ + at, there, 0.0)
        g = tl.load(g_ + at, there, 0.0)
        x = tl.load(x_ + at, there, 0.0)
        xh = (x - mean) * r
        tl.store(dg_ + at, wr * u + e * xh + (b - wr * a1 / n), there)
        dx = -wr * r * s2 / n * u + r * e * g - r * (sum_hx + wr * q) / n * xh - r * sum_h / n
        tl.store(dx_ + at, dx, there)
