"""A house with a thermostat: a reader, a verifier, a policy and an environment for pivotrl."""
