"""Event features in the target's own space, and what that is worth."""
