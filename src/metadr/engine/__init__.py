"""How a recipe trains: the network with its batch-norm policy, and the learner that steps it."""
