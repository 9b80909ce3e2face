"""The quadratic pull towards the parameters of past domains, shared by L2 and EWC.

The sum over past domains k of F_k/2 (theta - theta_k)^2 is, up to a constant, one parabola W/2 (theta - m)^2 with
W = sum F_k and m = sum F_k theta_k / W. Keeping W, m and the constant instead of the two plain sums avoids the
cancellation of large numbers in float32, and any number of domains costs as much as one.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from metadr.core import Params
from metadr.parts.row import row


def pull(params: Params, state: Mapping[str, Tensor]) -> Tensor | float:
    """sum over past domains of F_k/2 (theta - theta_k)^2; 0.0 before the first."""
    if not state:
        return 0.0
    weight, mean = (row(state[f"{kind}.{name}"] for name in params) for kind in ("weight", "mean"))
    return state["constant"].to(weight.dtype) + 0.5 * (weight * (row(params.values()) - mean).square()).sum()


def merge(state: Mapping[str, Tensor], params: Params, importance: Params) -> dict[str, Tensor]:
    """The state with one more domain's parabola added."""
    merged = {}
    constant = state["constant"] if state else torch.zeros((), dtype=torch.float64, device=_device(params))
    for name, value in params.items():
        anchor, weight = value.detach().clone(), importance[name]
        if state:
            old, mean = state[f"weight.{name}"], state[f"mean.{name}"]
            # Where no domain gives a parameter any weight, its mean is free: keep the newest.
            share = torch.where(old + weight > 0, weight / (old + weight), torch.ones_like(weight))
            distance = anchor - mean
            constant = constant + 0.5 * (old * share * distance.square()).sum(dtype=torch.float64)
            anchor, weight = mean + share * distance, old + weight
        merged[f"weight.{name}"], merged[f"mean.{name}"] = weight, anchor
    return {**merged, "constant": constant}


def _device(params: Params) -> torch.device:
    return next(iter(params.values())).device
