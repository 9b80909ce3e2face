"""The transformations that leave every pixel where it is.

All but the two random ones equal their Pillow call bit for bit. Levels differ from image to image; a level that a
transformation has no use for is ignored.
"""

import torch
from torch import Tensor

from metadr.transforms.registry import transform


@transform()
def identity(images: Tensor, level: Tensor) -> Tensor:
    """Change nothing: the set for runs without randomisation. Not in the paper's sets."""
    return images.clone()


@transform(low=0.2, high=1.8, levels=90)
def brightness(images: Tensor, level: Tensor) -> Tensor:
    """Blend each image with black, as PIL.ImageEnhance.Brightness does."""
    return truncate(images * per_image(level))


@transform(low=0.2, high=1.8, levels=90)
def color(images: Tensor, level: Tensor) -> Tensor:
    """Blend each image with its own grey version, as PIL.ImageEnhance.Color does."""
    x = images.float()
    return blend(luma(x), x, level)


@transform(low=0.2, high=1.8, levels=90)
def contrast(images: Tensor, level: Tensor) -> Tensor:
    """Blend each image with its mean grey, as PIL.ImageEnhance.Contrast does."""
    x = images.float()
    grey = luma(x)
    # In float64, where the sum is exact: a float32 mean flips the rounding on large images.
    mean = grey.sum(dim=(1, 2, 3), keepdim=True, dtype=torch.float64) / (images.shape[2] * images.shape[3])
    return blend((mean + 0.5).floor().float(), x, level)


@transform(low=1, high=120, levels=90, whole=True, stochastic=True)
def rgb_rand(images: Tensor, level: Tensor, *, rng: torch.Generator | None = None) -> Tensor:
    """Add to each channel of each image one number drawn from [-level, level]."""
    unit = torch.rand((len(images), 3, 1, 1), generator=rng, device=images.device)
    return nearest(images + (2 * unit - 1) * per_image(level))


@transform(low=255, high=75, levels=90, whole=True)
def solarize(images: Tensor, level: Tensor) -> Tensor:
    """Invert the values from the threshold int(level) upwards, as PIL.ImageOps.solarize does."""
    threshold = level.trunc().clamp(0, 256).to(torch.int16).view(-1, 1, 1, 1)
    # The sign bit is -1 below the threshold and 0 from there on. A comparison and a `where` take ten times as long.
    below = (images.to(torch.int16) - threshold) >> 15
    return images ^ ~below.to(torch.uint8)


@transform()
def grayscale(images: Tensor, level: Tensor) -> Tensor:
    """Replace the three channels by their grey value, as PIL.ImageOps.grayscale does."""
    return truncate(luma(images.float())).expand(-1, 3, -1, -1).contiguous()


@transform()
def invert(images: Tensor, level: Tensor) -> Tensor:
    """255 - x, as PIL.ImageOps.invert does."""
    return ~images


@transform(low=0, high=30, levels=30, stochastic=True)
def gaussian_noise(images: Tensor, level: Tensor, *, rng: torch.Generator | None = None) -> Tensor:
    """Add to each pixel and channel a number drawn from the normal distribution of standard deviation `level`."""
    noise = torch.randn(images.shape, generator=rng, device=images.device)
    return nearest(noise.mul_(per_image(level)).add_(images))


@transform()
def blur(images: Tensor, level: Tensor) -> Tensor:
    """Average the ring of 16 pixels at distance two, as PIL.ImageFilter.BLUR does; two border pixels are copied."""
    out = images.clone()
    if min(images.shape[2:]) < 5:
        return out
    x = images.to(torch.int16)
    pairs = x[..., :-1] + x[..., 1:]
    row = pairs[..., :-3] + pairs[..., 2:-1] + x[..., 4:]
    column = x[..., 1:-3, :] + x[..., 2:-2, :] + x[..., 3:-1, :]
    ring = row[..., :-4, :] + row[..., 4:, :] + column[..., :-4] + column[..., 4:]
    out[..., 2:-2, 2:-2] = (ring + 8) >> 4
    return out


def per_image(level: Tensor) -> Tensor:
    """One float32 level for all values of an image: the precision in which PIL blends."""
    return level.float().view(-1, 1, 1, 1)


def luma(x: Tensor) -> Tensor:
    """PIL's conversion to "L", (19595 R + 38470 G + 7471 B + 32768) >> 16, as float32 (B, 1, H, W).

    Exact in float32: no sum exceeds 2^24 of its smallest unit, 2^-16, so no term is ever rounded, fused or not.
    """
    red, green, blue = x[:, 0:1], x[:, 1:2], x[:, 2:3]
    grey = torch.add(red * (19595 / 65536), green, alpha=38470 / 65536)
    return grey.add_(blue, alpha=7471 / 65536).add_(0.5).floor_()


def blend(grey: Tensor, x: Tensor, level: Tensor) -> Tensor:
    """PIL.Image.blend: grey + level * (x - grey) in float32, in this order, which decides the last bit."""
    return truncate((x - grey).mul_(per_image(level)).add_(grey))


def truncate(values: Tensor) -> Tensor:
    """Clip and drop the fraction, as PIL's blend does. Overwrites its argument."""
    # Through int16: on a CPU that takes half the time of a direct conversion.
    return values.clamp_(0, 255).to(torch.int16).to(torch.uint8)


def nearest(values: Tensor) -> Tensor:
    """Clip and round to the nearest whole number. Overwrites its argument."""
    return truncate(values.round_())
