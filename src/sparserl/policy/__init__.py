"""The policy: what reads a matrix and writes a program, token by token."""
