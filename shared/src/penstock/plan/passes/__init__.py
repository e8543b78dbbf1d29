"""Passes over a plan, and what they read of it; one module each."""
