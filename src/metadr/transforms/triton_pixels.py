"""All transformations of a slot in one kernel: each program looks up what its image drew and does that alone.

Whole numbers and float32 in the order of photometric.py and geometric.py, so that the pixels are the same; products and
sums must not be fused (enable_fp_fusion=False).
"""

import triton
import triton.language as tl

IDENTITY = tl.constexpr(0)
BRIGHTNESS = tl.constexpr(1)
COLOR = tl.constexpr(2)
CONTRAST = tl.constexpr(3)
RGB_RAND = tl.constexpr(4)
SOLARIZE = tl.constexpr(5)
GRAYSCALE = tl.constexpr(6)
INVERT = tl.constexpr(7)
GAUSSIAN_NOISE = tl.constexpr(8)
BLUR = tl.constexpr(9)
ROTATE = tl.constexpr(10)


@triton.jit
def grey_sum_kernel(images_, sums_, area, BLOCK: tl.constexpr):
    """The sum of each image's grey values."""
    image = tl.program_id(0).to(tl.int64)
    total = tl.zeros([BLOCK], tl.int64)
    for start in range(0, area, BLOCK):
        i = start + tl.arange(0, BLOCK)
        there = i < area
        red = tl.load(images_ + image * 3 * area + i, there, 0).to(tl.int32)
        green = tl.load(images_ + image * 3 * area + area + i, there, 0).to(tl.int32)
        blue = tl.load(images_ + image * 3 * area + 2 * area + i, there, 0).to(tl.int32)
        grey = (19595 * red + 38470 * green + 7471 * blue + 32768) >> 16
        total += tl.where(there, grey, 0).to(tl.int64)
    tl.store(sums_ + image, tl.sum(total))


@triton.jit
def pixels_kernel(
    images_, out_, operation_, apart, level_, cosine_, sine_, levels_apart, code_, sums_, unit_, noise_,
    height, width, area, BLOCK: tl.constexpr,
):  # fmt: skip
    image = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = i < area
    code = tl.load(code_ + tl.load(operation_ + image * apart))
    exact = tl.load(level_ + image * levels_apart)
    level = exact.to(tl.float32)
    first = images_ + image * 3 * area
    red = tl.load(first + i, there, 0).to(tl.int32)
    green = tl.load(first + area + i, there, 0).to(tl.int32)
    blue = tl.load(first + 2 * area + i, there, 0).to(tl.int32)
    grey = (19595 * red + 38470 * green + 7471 * blue + 32768) >> 16
    r, g, b = red, green, blue
    if code == BRIGHTNESS:
        r, g, b = truncated(red * level), truncated(green * level), truncated(blue * level)
    elif code == COLOR:
        r, g, b = blended(grey, red, level), blended(grey, green, level), blended(grey, blue, level)
    elif code == CONTRAST:
        mean = (tl.load(sums_ + image).to(tl.float64) / area + 0.5).to(tl.int32)
        r, g, b = blended(mean, red, level), blended(mean, green, level), blended(mean, blue, level)
    elif code == RGB_RAND:
        r = nearest(red + (2 * tl.load(unit_ + image * 3) - 1) * level)
        g = nearest(green + (2 * tl.load(unit_ + image * 3 + 1) - 1) * level)
        b = nearest(blue + (2 * tl.load(unit_ + image * 3 + 2) - 1) * level)
    elif code == SOLARIZE:
        threshold = exact.to(tl.int32)
        r = tl.where(red < threshold, red, 255 - red)
        g = tl.where(green < threshold, green, 255 - green)
        b = tl.where(blue < threshold, blue, 255 - blue)
    elif code == GRAYSCALE:
        r, g, b = grey, grey, grey
    elif code == INVERT:
        r, g, b = 255 - red, 255 - green, 255 - blue
    elif code == GAUSSIAN_NOISE:
        noise = noise_ + image * 3 * area
        r = nearest(tl.load(noise + i, there, 0.0) * level + red)
        g = nearest(tl.load(noise + area + i, there, 0.0) * level + green)
        b = nearest(tl.load(noise + 2 * area + i, there, 0.0) * level + blue)
    elif code == BLUR:
        row, column = i // width, i % width
        inner = there & (row >= 2) & (row < height - 2) & (column >= 2) & (column < width - 2)
        r = tl.where(inner, ring(first, i, width, inner), red)
        g = tl.where(inner, ring(first + area, i, width, inner), green)
        b = tl.where(inner, ring(first + 2 * area, i, width, inner), blue)
    elif code == ROTATE:
        row, column = i // width, i % width
        cos, sin = tl.load(cosine_ + image * levels_apart), tl.load(sine_ + image * levels_apart)
        half = tl.full([], 0.5, tl.float64)
        middle_x, middle_y = half * width, half * height
        from_x = cos * -middle_x + sin * -middle_y + middle_x + cos * 0.5 + sin * 0.5
        from_y = -sin * -middle_x + cos * -middle_y + middle_y + -sin * 0.5 + cos * 0.5
        x = (fixed_point(from_x) + fixed_point(cos) * column + fixed_point(sin) * row) >> 16
        y = (fixed_point(from_y) + fixed_point(-sin) * column + fixed_point(cos) * row) >> 16
        inside = there & (x >= 0) & (x < width) & (y >= 0) & (y < height)
        source = tl.where(inside, y * width + x, 0)
        r = tl.load(first + source, inside, 0).to(tl.int32)
        g = tl.load(first + area + source, inside, 0).to(tl.int32)
        b = tl.load(first + 2 * area + source, inside, 0).to(tl.int32)
    last = out_ + image * 3 * area
    tl.store(last + i, r.to(tl.uint8), there)
    tl.store(last + area + i, g.to(tl.uint8), there)
    tl.store(last + 2 * area + i, b.to(tl.uint8), there)


@triton.jit
def fixed_point(value):
    return tl.floor(value * 65536.0 + 0.5).to(tl.int32)


@triton.jit
def truncated(values):
    return tl.minimum(tl.maximum(values, 0.0), 255.0).to(tl.int32)


@triton.jit
def nearest(values):
    # 1.5 * 2^23: a sum of that size has no fraction left, and is rounded to even where it lies between two.
    return truncated((values + 12582912.0) - 12582912.0)


@triton.jit
def blended(grey, value, level):
    return truncated((value - grey).to(tl.float32) * level + grey.to(tl.float32))


@triton.jit
def ring(plane, i, width, inner):
    """The mean of the 16 pixels at distance two."""
    total = tl.zeros_like(i)
    for across in tl.static_range(-2, 3):
        total += tl.load(plane + i - 2 * width + across, inner, 0).to(tl.int32)
        total += tl.load(plane + i + 2 * width + across, inner, 0).to(tl.int32)
    for down in tl.static_range(-1, 2):
        total += tl.load(plane + i + down * width - 2, inner, 0).to(tl.int32)
        total += tl.load(plane + i + down * width + 2, inner, 0).to(tl.int32)
    return (total + 8) >> 4
