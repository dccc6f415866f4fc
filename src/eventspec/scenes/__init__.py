"""The synthetic street: a seeded world, its pictures and events, and questions with one right answer."""

SOURCE = "synthetic street"
"""What the source of a recording of it begins with."""
