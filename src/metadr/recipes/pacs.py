"""What the tables of PACS have in common."""

from metadr.recipes.digits import MEMORY_METHODS

PROTOCOL = "pacs/p1"
SEEDS = 5  # "repeat each experiment n = 5 times", Section 5.1
WITHOUT_MEMORY = {"Naive": "naive", "Naive + DR": "dr", "L2 + DR": "dr+l2", "EWC + DR": "dr+ewc", "Meta-DR": "meta-dr"}
WITH_MEMORY = MEMORY_METHODS
ORACLES = {"Oracle (all)": "oracle-all", "Oracle (cumul.)": "oracle-cumulative"}
NETWORK = "The paper names no network for PACS: ResNet-18 with torchvision's ImageNet weights, reading 22."
