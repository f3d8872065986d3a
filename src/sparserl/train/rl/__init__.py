"""Reinforcement learning: the compiler's verdict and the clock teach the policy."""
