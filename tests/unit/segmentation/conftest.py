"""What the tests of segmentation share: a learner that is stopped, and another one that goes on from there."""

import pytest

from metadr.engine.learner import Learner


@pytest.fixture
def assert_goes_on(toys):
    """Of three learners that are alike, one takes nine steps, one is stopped, and the third goes on from its state."""

    def check(whole: Learner, half: Learner, rest: Learner, stop: int) -> None:
        whole.steps(9)
        half.steps(stop)
        rest.load(toys.clone_state(half))
        rest.steps(9 - stop)
        toys.assert_same_bits(rest.state(), whole.state())

    return check
