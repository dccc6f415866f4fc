"""The synthetic street: a seeded world, its pictures and events, and questions with one right answer."""
